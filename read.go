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

// read fills d with the message in the command at ref.
func (s *shard) read(ref Ref, size uint32, d *Delivery) error {
	cmd, err := s.log.Read(ref, int(size), room(int(size)+messageRoom))
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
