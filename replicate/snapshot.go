package replicate

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	sm "github.com/lni/dragonboat/v4/statemachine"

	"github.com/boursemq/bourse"
)

// A snapshot:
//
//	0   8  magic, which ends in the version
//	8   8  epoch
//	16  8  sequence
//	24  8  commands applied
//	32  8  number of kept commands
//	40  4  CRC32C of all before it
//	44     each kept command: ref, 8; length, 4; CRC32C of ref, length and bytes, 4; bytes
//	       the machine's snapshot in chunks: length, 4; CRC32C of number, 8, and bytes, 4; bytes
//	       a chunk of length 0
//
// The machine sees only bytes that have been checked, and the end of the last chunk only
// if it is there.
const (
	snapshotMagic  = "BOURSR\x00\x01"
	snapshotHeader = 44
	chunkBytes     = 256 << 10
)

var errSnapshot = errors.New("damaged snapshot")

func writeSnapshot(to io.Writer, m moment, stop <-chan struct{}) error {
	w := bufio.NewWriterSize(to, chunkBytes)
	b := append(make([]byte, 0, snapshotHeader), snapshotMagic...)
	for _, v := range [...]uint64{m.position.epoch, m.position.seq, m.position.commands, uint64(len(m.kept))} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if _, err := w.Write(b); err != nil {
		return err
	}
	for _, k := range m.kept {
		if stopped(stop) {
			return sm.ErrSnapshotStopped
		}
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(k.ref))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(k.data)))
		b = binary.LittleEndian.AppendUint32(b, crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, k.data))
		if _, err := w.Write(b); err != nil {
			return err
		}
		if _, err := w.Write(k.data); err != nil {
			return err
		}
	}
	c := &chunkWriter{to: w, stop: stop}
	if _, err := m.machine.WriteTo(c); err != nil {
		return err
	}
	if err := c.end(); err != nil {
		return err
	}
	return w.Flush()
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// chunkSum is the checksum of chunk number n: chunks cannot change places.
func chunkSum(n uint64, b []byte) uint32 {
	var num [8]byte
	binary.LittleEndian.PutUint64(num[:], n)
	return crc32.Update(crc32.Checksum(num[:], castagnoli), castagnoli, b)
}

type chunkWriter struct {
	to   io.Writer
	stop <-chan struct{}
	n    uint64
	buf  []byte
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part := p[:min(len(p), chunkBytes-len(c.buf))]
		c.buf = append(c.buf, part...)
		p = p[len(part):]
		if len(c.buf) == chunkBytes {
			if stopped(c.stop) {
				return n - len(p), sm.ErrSnapshotStopped
			}
			if err := c.flush(); err != nil {
				return n - len(p), err
			}
		}
	}
	return n, nil
}

// flush writes a chunk, or the end if nothing is left.
func (c *chunkWriter) flush() error {
	var b [8]byte
	binary.LittleEndian.PutUint32(b[:], uint32(len(c.buf)))
	binary.LittleEndian.PutUint32(b[4:], chunkSum(c.n, c.buf))
	if _, err := c.to.Write(b[:]); err != nil {
		return err
	}
	if _, err := c.to.Write(c.buf); err != nil {
		return err
	}
	c.n++
	c.buf = c.buf[:0]
	return nil
}

func (c *chunkWriter) end() error {
	if len(c.buf) > 0 {
		if err := c.flush(); err != nil {
			return err
		}
	}
	return c.flush()
}

// readSnapshot restores m and returns the position and the bodies that m kept.
func readSnapshot(from io.Reader, m bourse.Machine, stop <-chan struct{}) (position, map[bourse.Ref]*body, error) {
	r := bufio.NewReaderSize(from, chunkBytes)
	fail := func(format string, args ...any) (position, map[bourse.Ref]*body, error) {
		return position{}, nil, fmt.Errorf("%w: %w: %s", bourse.ErrStorage, errSnapshot, fmt.Sprintf(format, args...))
	}
	var b [snapshotHeader]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fail("header: %v", err)
	}
	if string(b[:8]) != snapshotMagic {
		return fail("it starts with %q", b[:8])
	}
	if got, want := crc32.Checksum(b[:40], castagnoli), binary.LittleEndian.Uint32(b[40:]); got != want {
		return fail("checksum of the header is %08x, says %08x", got, want)
	}
	p := position{
		epoch:    binary.LittleEndian.Uint64(b[8:]),
		seq:      binary.LittleEndian.Uint64(b[16:]),
		commands: binary.LittleEndian.Uint64(b[24:]),
	}
	rest := &restoring{found: map[bourse.Ref]*body{}, held: map[bourse.Ref]*body{}}
	for i, n := uint64(0), binary.LittleEndian.Uint64(b[32:]); i < n; i++ {
		if stopped(stop) {
			return position{}, nil, sm.ErrSnapshotStopped
		}
		if _, err := io.ReadFull(r, b[:16]); err != nil {
			return fail("kept command %d of %d: %v", i+1, n, err)
		}
		ref, size := bourse.Ref(binary.LittleEndian.Uint64(b[:])), binary.LittleEndian.Uint32(b[8:])
		if size > MaxCommandBytes {
			return fail("kept command %d of %d has %d bytes", i+1, n, size)
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(r, data); err != nil {
			return fail("kept command %d of %d: %v", i+1, n, err)
		}
		sum := crc32.Checksum(data, castagnoli)
		if crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, data) != binary.LittleEndian.Uint32(b[12:]) {
			return fail("checksum of kept command %d of %d", i+1, n)
		}
		rest.found[ref] = &body{data: data, sum: sum}
	}
	c := &chunkReader{from: r, stop: stop}
	if err := m.Restore(rest, c); err != nil {
		return position{}, nil, err
	}
	if _, err := io.Copy(io.Discard, c); err != nil { // to the end, which must be there
		return position{}, nil, err
	}
	if rest.lost != 0 {
		return fail("command %d is referred to and not in it", rest.lost)
	}
	return p, rest.held, nil
}

// chunkReader reads what chunkWriter wrote.
type chunkReader struct {
	from io.Reader
	stop <-chan struct{}
	n    uint64
	buf  []byte // checked and not read yet
	all  []byte
	err  error
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.buf) == 0 && c.err == nil && len(p) > 0 {
		c.next()
	}
	if len(c.buf) == 0 {
		return 0, c.err
	}
	n := copy(p, c.buf)
	c.buf = c.buf[n:]
	return n, nil
}

func (c *chunkReader) next() {
	damaged := func(err error) {
		c.err = fmt.Errorf("%w: %w: chunk %d of the machine's state: %w", bourse.ErrStorage, errSnapshot, c.n+1, err)
	}
	if stopped(c.stop) {
		c.err = sm.ErrSnapshotStopped
		return
	}
	var b [8]byte
	if _, err := io.ReadFull(c.from, b[:]); err != nil {
		damaged(err)
		return
	}
	size := binary.LittleEndian.Uint32(b[:])
	if size > chunkBytes {
		damaged(fmt.Errorf("it has %d bytes", size))
		return
	}
	if c.all == nil {
		c.all = make([]byte, chunkBytes)
	}
	data := c.all[:size]
	if _, err := io.ReadFull(c.from, data); err != nil {
		damaged(err)
		return
	}
	if chunkSum(c.n, data) != binary.LittleEndian.Uint32(b[4:]) {
		damaged(errors.New("wrong checksum"))
		return
	}
	c.n++
	c.buf = data
	if size == 0 {
		c.err = io.EOF
	}
}
