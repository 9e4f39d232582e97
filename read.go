package bourse

// read fills d with the message in the command at ref.
func (s *shard) read(ref Ref, size uint32, d *Delivery) error {
	cmd, err := s.log.Read(ref, int(size), make([]byte, 0, int(size)+messageRoom))
	if err != nil {
		return err
	}
	env, err := envelopeOf(cmd)
	if err != nil {
		return err
	}
	if d.Deaths, err = decodeDeaths(env.deaths); err != nil {
		return err
	}
	return env.message(cmd, &d.Message)
}
