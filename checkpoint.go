package bourse

import (
	"bufio"
	"encoding/binary"
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

// scanCheckpoint gives the snapshots in a checkpoint to fn, which need not read all of one. An error of fn ends it.
func scanCheckpoint(from io.Reader, fn func(shard uint64, state io.Reader) error) error {
	r := bufio.NewReaderSize(from, pieceBytes)
	malformed := errors.Join(ErrStorage, fmt.Errorf("checkpoint: %w", wire.ErrMalformed))
	bad := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return malformed
		}
		return err
	}
	version, err := r.ReadByte()
	switch {
	case err != nil:
		return bad(err)
	case version != checkpointVersion:
		return fmt.Errorf("%w: checkpoint of version %d, this binary reads %d", ErrForeignDir, version, checkpointVersion)
	}
	count, err := binary.ReadUvarint(r)
	if err != nil {
		return bad(err)
	}
	seen := make(map[uint64]bool)
	for range count {
		id, err := binary.ReadUvarint(r)
		if err != nil {
			return bad(err)
		}
		if seen[id] {
			return malformed
		}
		seen[id] = true
		state := &joined{r: r}
		if err := fn(id, state); err != nil {
			return bad(err)
		}
		if _, err := io.Copy(io.Discard, state); err != nil {
			return bad(err)
		}
	}
	_, err = r.ReadByte()
	switch {
	case err == nil:
		return malformed
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// joined reads what pieces wrote, up to the length of 0.
type joined struct {
	r    *bufio.Reader
	left uint64 // of the piece
	over bool
}

// Read implements io.Reader. It is io.ErrUnexpectedEOF if the input ends before the length of 0.
func (j *joined) Read(b []byte) (int, error) {
	for j.left == 0 && !j.over {
		n, err := binary.ReadUvarint(j.r)
		if err != nil {
			return 0, cutOff(err)
		}
		j.left, j.over = n, n == 0
	}
	if j.over {
		return 0, io.EOF
	}
	n, err := j.r.Read(b[:min(uint64(len(b)), j.left)])
	j.left -= uint64(n)
	return n, cutOff(err)
}

// cutOff is err where the input must go on.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// measured is a reader that says how much it has, see snapshotReader.
type measured struct {
	io.Reader
	left int
}

func (s *measured) Len() int { return s.left }

func (s *measured) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	s.left -= n
	return n, err
}
