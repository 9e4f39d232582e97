package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"slices"
	"sync"
	"time"
)

// What the tests put on top of a log: an application so small that its state after
// any prefix of its records can be computed by itself, and compared. It is the owner
// that the crash and fault tests recover.

// op is one record: put a body, or take an earlier one away. Records are numbered from
// 1 without gaps; salt tells two records of one number, before and after a crash, apart.
type op struct {
	id, salt, drop uint64 // drop: the id to take away; 0: put
	size           int
	sync           bool
}

func (o op) AppendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, o.id)
	dst = binary.LittleEndian.AppendUint64(dst, o.salt)
	dst = binary.LittleEndian.AppendUint64(dst, o.drop)
	x := o.id*0x9e3779b97f4a7c15 + o.salt
	for range o.size {
		x = x*6364136223846793005 + 1442695040888963407
		dst = append(dst, byte(x>>56))
	}
	return dst
}

// app is the application. mu guards all; the log's goroutines call report.
type app struct {
	mu       sync.Mutex
	cond     sync.Cond
	log      *Log
	ops      []op // ops[i].id == i+1: what was appended
	last     uint64
	live     map[uint64]Position
	reported uint64 // id of the last record reported without an error
	synced   uint64 // id of the last one of these that asked for a sync
	failed   error
	wantMark bool
	mark     *Mark
	state    []byte
	bad      error
}

func newApp() *app {
	a := &app{live: map[uint64]Position{}}
	a.cond.L = &a.mu
	return a
}

// open opens the log and recovers the state. ops are what may be found, in order.
func (a *app) open(dir string, o Options, ops []op) error {
	a.mu.Lock()
	a.ops = slices.Clone(ops)
	a.mu.Unlock()
	o.Commit = a.report
	l, err := Open(dir, o)
	if err != nil {
		return err
	}
	a.log = l
	if err := a.recover(); err != nil {
		l.Close()
		return err
	}
	return nil
}

func (a *app) recover() error {
	r, found, err := a.log.Checkpoint()
	if err != nil {
		return err
	}
	if found {
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			return err
		}
		a.last = binary.LittleEndian.Uint64(b)
		for b = b[8:]; len(b) >= 16; b = b[16:] {
			pos := Position(binary.LittleEndian.Uint64(b[8:]))
			a.live[binary.LittleEndian.Uint64(b)] = pos
			a.log.Keep(pos, 1)
		}
	}
	if err := a.log.Replay(func(batch []Committed) error {
		for _, c := range batch {
			if err := a.apply(c); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if int(a.last) > len(a.ops) {
		return fmt.Errorf("recovered %d records, only %d were appended", a.last, len(a.ops))
	}
	a.mu.Lock()
	a.ops = a.ops[:a.last]
	a.reported, a.synced = a.last, a.last
	a.mu.Unlock()
	return a.check()
}

var errModel = errors.New("model")

func (a *app) apply(c Committed) error {
	id := binary.LittleEndian.Uint64(c.Data)
	if id != a.last+1 || int(id) > len(a.ops) {
		return fmt.Errorf("%w: record %d after %d, of %d", errModel, id, a.last, len(a.ops))
	}
	o := a.ops[id-1]
	if !bytes.Equal(o.AppendTo(nil), c.Data) {
		return fmt.Errorf("%w: record %d has other bytes than were appended", errModel, id)
	}
	a.last = id
	if o.drop != 0 {
		pos, ok := a.live[o.drop]
		if !ok {
			return fmt.Errorf("%w: record %d takes away %d, which is not there", errModel, id, o.drop)
		}
		delete(a.live, o.drop)
		a.log.Free(pos)
	} else {
		a.live[id] = c.Pos
		a.log.Keep(c.Pos, 1)
	}
	return nil
}

func (a *app) report(batch []Committed, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.cond.Broadcast()
	if err != nil {
		a.failed = err
		return
	}
	for _, c := range batch {
		if err := a.apply(c); err != nil && a.bad == nil {
			a.bad = err
		}
		a.reported = a.last
		if c.Owner.(op).sync {
			a.synced = a.last
		}
	}
	if a.wantMark {
		m := a.log.Mark()
		a.mark, a.state, a.wantMark = &m, a.encode(), false
	}
}

func (a *app) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, a.last)
	for _, id := range sortedIDs(a.live) {
		b = binary.LittleEndian.AppendUint64(b, id)
		b = binary.LittleEndian.AppendUint64(b, uint64(a.live[id]))
	}
	return b
}

func sortedIDs(m map[uint64]Position) []uint64 {
	ids := make([]uint64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// check compares the state with the model, and every live body with what was put.
func (a *app) check() error {
	want := map[uint64]bool{}
	for _, o := range a.ops[:a.last] {
		if o.drop != 0 {
			delete(want, o.drop)
		} else {
			want[o.id] = true
		}
	}
	if len(want) != len(a.live) {
		return fmt.Errorf("%w: %d live records, want %d", errModel, len(a.live), len(want))
	}
	for id, pos := range a.live {
		if !want[id] {
			return fmt.Errorf("%w: record %d is live and should not be", errModel, id)
		}
		o := a.ops[id-1]
		b, err := a.log.Read(pos, 24+o.size, nil)
		if err != nil {
			return fmt.Errorf("live record %d: %w", id, err)
		}
		if !bytes.Equal(b, o.AppendTo(nil)) {
			return fmt.Errorf("%w: record %d reads back other bytes", errModel, id)
		}
	}
	return nil
}

// append adds a record. It must be called from one goroutine.
func (a *app) append(o op) error {
	a.mu.Lock()
	o.id = uint64(len(a.ops) + 1)
	a.ops = append(a.ops, o)
	a.mu.Unlock()
	err := a.log.Append(o.id%3, o.sync, o)
	if err != nil {
		a.mu.Lock()
		a.ops = a.ops[:len(a.ops)-1]
		a.mu.Unlock()
	}
	return err
}

// wait waits until all that was appended is reported. It returns the failure of the
// log if there is one.
func (a *app) wait() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for int(a.reported) < len(a.ops) && a.failed == nil && a.bad == nil {
		a.cond.Wait()
	}
	return errors.Join(a.failed, a.bad)
}

// writeCheckpoint marks at the report of a record of its own, and writes.
func (a *app) writeCheckpoint(salt uint64) error {
	a.mu.Lock()
	a.wantMark, a.mark = true, nil
	a.mu.Unlock()
	if err := a.append(op{salt: salt}); err != nil {
		return err
	}
	a.mu.Lock()
	for a.mark == nil && a.failed == nil && a.bad == nil {
		a.cond.Wait()
	}
	m, state := a.mark, a.state
	err := errors.Join(a.failed, a.bad)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return a.log.WriteCheckpoint(*m, bytes.NewReader(state))
}

// work runs steps random operations, and stops at the first error.
func (a *app) work(rng *rand.Rand, steps int) error {
	salt := rng.Uint64()
	alive := func() []uint64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		return sortedIDs(a.live)
	}
	dropped := map[uint64]bool{}
	for i := range steps {
		o := op{salt: salt, size: rng.Intn(400), sync: rng.Intn(2) == 0}
		if rng.Intn(40) == 0 {
			o.size = 1000 + rng.Intn(8000) // longer than a segment
		}
		if ids := alive(); rng.Intn(2) == 0 && len(ids) > 0 {
			if id := ids[rng.Intn(len(ids))]; !dropped[id] {
				dropped[id] = true
				o = op{salt: salt, drop: id, sync: rng.Intn(4) == 0}
			}
		}
		if err := a.append(o); err != nil {
			return err
		}
		if rng.Intn(3) == 0 {
			if err := a.wait(); err != nil {
				return err
			}
		}
		if rng.Intn(60) == 0 {
			if err := a.log.Shrink(func() error { return a.writeCheckpoint(salt) }); err != nil {
				return err
			}
		}
		if i%17 == 16 {
			if err := a.writeCheckpoint(salt); err != nil {
				return err
			}
		}
	}
	return a.wait()
}

// within fails a test that hangs with all goroutines shown.
func within(d time.Duration, what string, fn func()) {
	t := time.AfterFunc(d, func() { panic(what + " hangs") })
	defer t.Stop()
	fn()
}
