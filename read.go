package bourse

import "sync"

// Bodies of deliveries that are small are cut from slabs, since an allocation for each costs more than all else that is done
// for it. Who keeps one body keeps its slab.
const (
	slabBytes = 32 << 10
	slabMost  = 4 << 10 // bytes of a body that is cut from one
)

var slabs = sync.Pool{New: func() any { return new(slab) }}

type slab struct{ rest []byte }

// room returns an empty slice with room for n bytes, of nobody else's.
func room(n int) []byte {
	if n > slabMost {
		return make([]byte, 0, n)
	}
	s, _ := slabs.Get().(*slab) // the pool holds nothing else
	if len(s.rest) < n {
		s.rest = make([]byte, slabBytes)
	}
	b := s.rest[:0:n]
	s.rest = s.rest[n:]
	slabs.Put(s)
	return b
}

// read fills d with the message in the command at ref, or a part of it.
func (s *shard) read(ref Ref, part uint8, size uint32, d *Delivery) error {
	var cmd []byte
	var env envelope
	var err error
	if part == 0 {
		if cmd, err = s.log.Read(ref, int(size), room(int(size)+messageRoom)); err == nil {
			env, err = envelopeOf(cmd)
		}
	} else {
		cmd, env, err = s.readPart(ref, part)
	}
	if err != nil {
		return err
	}
	if d.Deaths, err = decodeDeaths(env.deaths); err != nil {
		return err
	}
	d.Transient = s.inMemory
	return env.message(cmd, &d.Message)
}

// bundles is memory for bundles, of which a part is read.
var bundles = sync.Pool{New: func() any { return new([]byte) }}

// readPart reads a part of a bundle, into memory of its own.
func (s *shard) readPart(ref Ref, part uint8) (b []byte, env envelope, err error) {
	whole, _ := bundles.Get().(*[]byte) // the pool holds nothing else
	defer bundles.Put(whole)
	if *whole, err = s.log.Read(ref, 0, (*whole)[:0]); err != nil {
		return nil, env, err
	}
	found, err := partOf(*whole, part)
	if err != nil {
		return nil, env, err
	}
	b = append(room(len(found)+messageRoom), found...)
	env, err = envelopeIn(b)
	return b, env, err
}
