package bourse

import "sync"

// commands are buffers for reading commands out of the log.
var commands = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledCommand keeps the buffers of rare large messages out of the pool.
const maxPooledCommand = 1 << 20

// read fills d with the message in the command at ref.
func (b *Broker) read(ref Ref, size uint32, d *Delivery) error {
	buf := commands.Get().(*[]byte)
	cmd, err := b.shard.log.Read(ref, int(size), (*buf)[:0])
	if err != nil {
		return err
	}
	if cap(cmd) <= maxPooledCommand {
		*buf = cmd
		defer commands.Put(buf)
	}
	env, err := envelopeOf(cmd)
	if err != nil {
		return err
	}
	if d.Deaths, err = decodeDeaths(env.deaths); err != nil {
		return err
	}
	return env.message(&d.Message)
}
