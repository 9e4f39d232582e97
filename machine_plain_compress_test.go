package bourse

// append adds msg to a command, sometimes as a message whose body is compressed, and returns how large the command counts: as if
// no body ever were.
func (w *walker) append(cmd []byte, msg Message, deaths []Death) ([]byte, uint32) {
	if !w.one(5) {
		cmd = appendMessage(cmd, &msg, messageID{}, deaths)
		return cmd, uint32(len(cmd))
	}
	c := &compressed{block: msg.Body, saved: 6 + w.rng.IntN(300)}
	plain := msg
	plain.Body = make([]byte, len(msg.Body)+c.saved)
	size := len(appendMessage(cmd[:len(cmd):len(cmd)], &plain, messageID{}, deaths))
	return appendCompressed(cmd, &msg, c, messageID{}, deaths), uint32(size)
}
