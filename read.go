package bourse

import (
	"strings"
	"sync"
	"unsafe"
)

// Bodies of deliveries that are small are cut from slabs, since an allocation for each costs more than all else that is done
// for it. Who keeps one body keeps its slab.
const (
	slabBytes = 128 << 10
	slabMost  = 4 << 10 // bytes of a body that is cut from one
)

// Deliveries are made in blocks for the same reason, but where the bodies are large: else who keeps one would keep those of its
// neighbours. So many fill a size class of the allocator of which a span holds several, as do blockConfirms.
const blockDeliveries = 19

// space is memory for deliveries to come. Nil gives each memory of its own.
type space struct {
	deliveries []Delivery
	slab       []byte
}

var spaces = sync.Pool{New: func() any { return new(space) }}

// borrowSpace gives a space to one goroutine, until giveBack.
func borrowSpace() *space {
	s, _ := spaces.Get().(*space) // the pool holds nothing else
	return s
}

func (s *space) giveBack() { spaces.Put(s) }

// delivery returns an empty one, for a message in a command of size bytes.
func (s *space) delivery(size uint32) *Delivery {
	if size > slabMost {
		return new(Delivery)
	}
	if len(s.deliveries) == 0 {
		s.deliveries = make([]Delivery, blockDeliveries)
	}
	d := &s.deliveries[0]
	s.deliveries = s.deliveries[1:]
	return d
}

// room returns an empty slice with room for n bytes, of nobody else's.
func (s *space) room(n int) []byte {
	if s == nil || n > slabMost {
		return make([]byte, 0, n)
	}
	if len(s.slab) < n {
		s.slab = unzeroed(slabBytes)
	}
	b := s.slab[:0:n]
	s.slab = s.slab[n:]
	return b
}

// sureBytes: a command that is longer may be compressed, and then reading as much as its size says costs more than a look at its
// length before.
const sureBytes = 32 << 10

// unzeroed is memory that holds anything: who gets it writes before it reads. To clear a slab costs as much as to copy the bodies
// into it, and only what builds a string is spared that.
func unzeroed(n int) []byte {
	var b strings.Builder
	b.Grow(n)
	b.WriteByte(0)
	return unsafe.Slice(unsafe.StringData(b.String()), n)
}

// read fills d with the message in the command at ref, or a part of it. Its body is put into in.
func (s *shard) read(in *space, ref Ref, part uint8, size uint32, d *Delivery) error {
	cmd, env, err := s.readEnvelope(in, ref, part, size)
	if err == nil {
		cmd, err = env.expand(cmd)
	}
	if err != nil {
		return err
	}
	return s.fill(d, cmd, &env)
}

// readCompressed is read, but leaves the body as it is: if it is compressed, that comes with it.
func (s *shard) readCompressed(ref Ref, part uint8, size uint32, d *Delivery) (*compressed, error) {
	cmd, env, err := s.readEnvelope(nil, ref, part, size)
	if err == nil {
		err = s.fill(d, cmd, &env)
	}
	if err != nil || env.flags&flagCompressed == 0 {
		return nil, err
	}
	return &compressed{block: env.body, saved: env.saved}, nil
}

// readEnvelope reads the command at ref, or a part of it, into memory of its own that has room for the body as it was published.
func (s *shard) readEnvelope(in *space, ref Ref, part uint8, size uint32) (cmd []byte, env envelope, err error) {
	if part != 0 {
		return s.readPart(in, ref, part, size)
	}
	known := int(size)
	if known > sureBytes {
		known = 0
	}
	if cmd, err = s.log.Read(ref, known, in.room(int(size)+messageRoom)); err == nil {
		env, err = envelopeOf(cmd)
	}
	return cmd, env, err
}

// fill makes a delivery of what was read.
func (s *shard) fill(d *Delivery, cmd []byte, env *envelope) (err error) {
	if d.Deaths, err = decodeDeaths(env.deaths); err != nil {
		return err
	}
	d.Transient = s.inMemory
	return env.message(cmd, &d.Message)
}

// bundles is memory for bundles, of which a part is read.
var bundles = sync.Pool{New: func() any { return new([]byte) }}

// readPart reads a part of a bundle, into memory of its own.
func (s *shard) readPart(in *space, ref Ref, part uint8, size uint32) (b []byte, env envelope, err error) {
	whole, _ := bundles.Get().(*[]byte) // the pool holds nothing else
	defer bundles.Put(whole)
	if *whole, err = s.log.Read(ref, 0, (*whole)[:0]); err != nil {
		return nil, env, err
	}
	found, err := partOf(*whole, part)
	if err != nil {
		return nil, env, err
	}
	b = append(in.room(max(len(found), int(size))+messageRoom), found...)
	env, err = envelopeIn(b)
	return b, env, err
}
