package bourse

import (
	"errors"
	"fmt"
	"io"

	"github.com/boursemq/bourse/internal/wire"
)

// checkpoint is the state of all shards of a local engine, to be written beside their going on. Its content:
//
//	version  1 byte
//	count    uvarint
//	shards   for each: id, then the snapshot in pieces, each with its length before it, and a length of 0
//
// The pieces make it possible to write a snapshot whose length is not known before. The log adds a checksum.
type checkpoint struct {
	shards []savedShard
	bytes  int64 // written
}

type savedShard struct {
	id    uint64
	state io.WriterTo
}

const checkpointVersion = 1

// WriteTo implements io.WriterTo. It can be called again, from the start.
func (c *checkpoint) WriteTo(w io.Writer) (int64, error) {
	p := pieces{w: w}
	p.plain(wire.AppendUvarint([]byte{checkpointVersion}, uint64(len(c.shards))))
	for _, s := range c.shards {
		p.plain(wire.AppendUvarint(nil, s.id))
		if _, err := s.state.WriteTo(&p); err != nil && p.err == nil {
			p.err = err
		}
		p.plain([]byte{0})
	}
	c.bytes = p.n
	return p.n, p.err
}

// pieces writes what it is given with the length before it.
type pieces struct {
	w   io.Writer
	n   int64
	err error // the first; nothing is written after it
}

func (p *pieces) plain(b []byte) {
	if p.err != nil {
		return
	}
	n, err := p.w.Write(b)
	p.n += int64(n)
	p.err = err
}

// Write implements io.Writer.
func (p *pieces) Write(b []byte) (int, error) {
	if len(b) > 0 {
		p.plain(wire.AppendUvarint(nil, uint64(len(b))))
		p.plain(b)
	}
	if p.err != nil {
		return 0, p.err
	}
	return len(b), nil
}

// decodeCheckpoint returns the snapshots in a checkpoint by shard.
func decodeCheckpoint(b []byte) (map[uint64][]byte, error) {
	r := wire.NewReader(b)
	if v := r.Byte(); r.Err() == nil && v != checkpointVersion {
		return nil, fmt.Errorf("%w: checkpoint of version %d, this binary reads %d", ErrForeignDir, v, checkpointVersion)
	}
	shards := make(map[uint64][]byte)
	for range r.Count(2) {
		id := r.Uvarint()
		var state []byte
		for piece := r.Bytes(); len(piece) > 0; piece = r.Bytes() {
			state = append(state, piece...)
		}
		if shards[id] != nil {
			r.Fail()
		}
		shards[id] = state
	}
	if err := r.Done(); err != nil {
		return nil, errors.Join(ErrStorage, fmt.Errorf("checkpoint: %w", err))
	}
	return shards, nil
}
