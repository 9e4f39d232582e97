package bourse

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"

	"github.com/boursemq/bourse/internal/wire"
)

// Compression says which bodies a broker keeps compressed. It concerns what this broker brings into its log; whatever is there can
// be read by any. Queue.MaxBytes, Options.MaxBodyBytes and Stats count bodies as they were published.
type Compression uint8

const (
	// CompressAuto compresses a body of 2 KiB or more with S2 before it goes to the log, and keeps that if it takes at least an eighth
	// off it. Data that does not compress is noticed early. It is the default.
	CompressAuto Compression = iota
	// CompressOff keeps bodies as they are.
	CompressOff
)

const (
	compressLeast    = 2 << 10 // a shorter body costs more to compress than to keep
	compressPart     = 8       // of a body is what it must save at least, one of so many
	mostPooledMemory = 2 << 20 // more is left to the collector
)

// compressed is a body as a log keeps it: one block of S2, which begins with the length of the body.
type compressed struct {
	block  []byte
	saved  int    // by how much it is shorter than the body
	memory []byte // of block, and its room
}

var compressors = sync.Pool{New: func() any { return new(compressed) }}

// compress returns the body compressed, until release; nil if it is to be kept as it is.
func compress(body []byte) *compressed {
	if len(body) < compressLeast {
		return nil
	}
	most := s2.MaxEncodedLen(len(body))
	c, _ := compressors.Get().(*compressed) // the pool holds nothing else
	if cap(c.memory) < most {
		c.memory = make([]byte, most)
	}
	c.block = s2.Encode(c.memory[:cap(c.memory)], body)
	if c.saved = len(body) - len(c.block); c.saved < len(body)/compressPart {
		c.release()
		return nil
	}
	return c
}

// release gives the memory of c to others. Nil is fine.
func (c *compressed) release() {
	if c == nil {
		return
	}
	if c.block = nil; cap(c.memory) > mostPooledMemory {
		c.memory = nil
	}
	compressors.Put(c)
}

// compress is the body compressed as Options.Compression says.
func (b *Broker) compress(body []byte) *compressed {
	if b.opts.Compression == CompressOff {
		return nil
	}
	return compress(body)
}

// compress is the body compressed for this shard.
func (s *shard) compress(body []byte) *compressed {
	if s.inMemory {
		return nil
	}
	return s.b.compress(body)
}

var errCompressed = fmt.Errorf("%w: a compressed body that is not what its message says", wire.ErrMalformed)

// expand makes the body of m what it was when it was published. cmd ends with the body, and is longer afterwards if it has the
// room. Nothing is allocated beyond the length that the message says, which decodeAttributes has bounded.
func (m *envelope) expand(cmd []byte) ([]byte, error) {
	if m.flags&flagCompressed == 0 {
		return cmd, nil
	}
	n := len(m.body) + m.saved
	if has, err := s2.DecodedLen(m.body); err != nil || has != n {
		return nil, errCompressed
	}
	c, _ := compressors.Get().(*compressed) // the pool holds nothing else
	defer c.release()
	c.memory = append(c.memory[:0], m.body...)
	head := len(cmd) - len(m.body)
	if cap(cmd) < head+n {
		m.body = make([]byte, n)
	} else {
		cmd = cmd[:head+n]
		m.body = cmd[head:]
	}
	if _, err := s2.Decode(m.body[:n:n], c.memory); err != nil {
		return nil, errCompressed
	}
	return cmd, nil
}
