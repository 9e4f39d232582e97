package storage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
)

// The table in a checkpoint: where the records are that its state refers to. It is the first thing in the blocks, before what the
// owner wrote:
//
//	count   of segments
//	each    number less that before, count of records, 1 if any has moved or 0,
//	        each record: offset less that before in units of 8, size class (1 byte), and
//	        with that 1, its position, or 0: at home
//
// Numbers are uvarints. It holds all records that had references, and may hold some that had none.

// writeTable writes the table of views, which are in order.
func writeTable(w io.Writer, views []rollView) error {
	buf := binary.AppendUvarint(make([]byte, 0, maxBlock+64), uint64(len(views)))
	last := uint32(0)
	for i := range views {
		v := &views[i]
		buf = binary.AppendUvarint(buf, uint64(v.segment-last))
		last = v.segment
		buf = binary.AppendUvarint(buf, uint64(len(v.offsets)))
		moved := byte(0)
		if v.where != nil {
			moved = 1
		}
		buf = append(buf, moved)
		before := uint32(0)
		for j, offset := range v.offsets {
			buf = binary.AppendUvarint(buf, uint64(offset-before)/chunkAlign)
			before = offset
			buf = append(buf, v.sizes[j])
			if v.where != nil {
				place := v.where[j]
				if place == at(v.segment, offset) {
					place = 0
				}
				buf = binary.AppendUvarint(buf, uint64(place))
			}
			if len(buf) >= maxBlock {
				if _, err := w.Write(buf); err != nil {
					return err
				}
				buf = buf[:0]
			}
		}
	}
	_, err := w.Write(buf)
	return err
}

// readTable reads what writeTable wrote, as rolls without references. Memory follows what is read, not what a count says.
func readTable(r *bufio.Reader, rolls map[uint32]*roll) error {
	var failed error
	fail := func(err error) {
		if failed == nil {
			failed = err
		}
	}
	number := func(most uint64) uint64 {
		if failed != nil {
			return 0
		}
		n, err := binary.ReadUvarint(r)
		if err != nil || n > most {
			fail(cmpErr(err, errTable))
			return 0
		}
		return n
	}
	segment := uint64(0)
	for range number(math.MaxUint32) {
		step := number(math.MaxUint32)
		segment += step
		count, moved := number(math.MaxUint32/chunkAlign), number(1) == 1
		if step == 0 || segment > math.MaxUint32 {
			fail(errTable)
		}
		roll, offset := &roll{}, uint64(0)
		for range count {
			step := number(math.MaxUint32/chunkAlign) * chunkAlign
			offset += step
			size, err := r.ReadByte()
			if err != nil || step == 0 || offset > math.MaxUint32 {
				fail(cmpErr(err, errTable))
				return failed
			}
			roll.offsets, roll.sizes = append(roll.offsets, uint32(offset)), append(roll.sizes, size)
			if moved {
				place := Position(number(math.MaxUint64))
				if place == 0 {
					place = at(uint32(segment), uint32(offset))
				}
				roll.where = append(roll.where, place)
			}
		}
		if failed != nil {
			return failed
		}
		roll.refs = make([]uint8, count)
		roll.offsets, roll.sizes, roll.where = slices.Clip(roll.offsets), slices.Clip(roll.sizes), slices.Clip(roll.where)
		rolls[uint32(segment)] = roll
	}
	return failed
}

var errTable = errors.New("a number out of its range")

// findTable reads the table of the newest checkpoint, unless Checkpoint did.
func (l *Log) findTable() error {
	if l.tabled {
		return nil
	}
	r, found, err := l.Checkpoint()
	if found {
		err = r.Close()
	}
	return err
}
