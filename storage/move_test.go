package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: the directory stays within twice what is referred to and eight segments (128 MiB, as they are by default),
// whatever the pattern in which records lose their references; moved records read back the same, also after restarts; a
// log at rest writes nothing. Method: an owner that takes checkpoints as the broker's engine does, and patterns that have
// blown up other logs.

// keeper is an owner of a log. Its records put a body, or take one away, or say nothing.
type keeper struct {
	l *Log

	mu     sync.Mutex
	cond   sync.Cond
	at     map[uint64]Position
	size   map[uint64]int
	told   int
	err    error
	saving bool
	saves  int
}

func newKeeper() *keeper {
	k := &keeper{at: map[uint64]Position{}, size: map[uint64]int{}}
	k.cond.L = &k.mu
	return k
}

// keepRecord is what a keeper appends: id, bytes of the body or -1 to take it away.
type keepRecord struct {
	id   uint64
	size int
	sync bool
}

func (r keepRecord) AppendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, r.id), uint64(int64(r.size)))
	for i := range max(r.size, 0) {
		dst = append(dst, byte(r.id)^byte(i>>3))
	}
	return dst
}

func (k *keeper) open(t *testing.T, fs FS, segment int) {
	t.Helper()
	l, err := Open("d", Options{FS: fs, SegmentBytes: segment, CacheBytes: -1, Commit: k.commit})
	require.NoError(t, err)
	k.l = l
	r, found, err := l.Checkpoint()
	require.NoError(t, err)
	if found {
		b, err := io.ReadAll(r)
		require.NoError(t, errors.Join(err, r.Close()))
		for ; len(b) > 0; b = b[24:] {
			id, pos := binary.LittleEndian.Uint64(b), Position(binary.LittleEndian.Uint64(b[8:]))
			k.at[id], k.size[id] = pos, int(binary.LittleEndian.Uint64(b[16:]))
			l.Keep(pos, 1)
		}
	}
	require.NoError(t, l.Replay(func(batch []Committed) error { k.applyLocked(batch); return nil }))
}

func (k *keeper) applyLocked(batch []Committed) {
	for _, c := range batch {
		id, size := binary.LittleEndian.Uint64(c.Data), int(int64(binary.LittleEndian.Uint64(c.Data[8:])))
		switch {
		case id == 0:
		case size >= 0:
			k.at[id], k.size[id] = c.Pos, size
			k.l.Keep(c.Pos, 1)
		default:
			k.l.Free(k.at[id])
			delete(k.at, id)
			delete(k.size, id)
		}
	}
}

func (k *keeper) commit(batch []Committed, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.cond.Broadcast()
	if err != nil {
		k.err = err
		return
	}
	k.applyLocked(batch)
	k.told += len(batch)
	if !k.saving && (k.l.SinceCheckpoint() >= 1<<20 || k.l.Reclaimable() > 0) {
		k.saving = true
		m, state := k.l.Mark(), k.encodeLocked()
		go func() { // ends with the checkpoint; rest waits for it
			err := k.l.WriteCheckpoint(m, bytes.NewReader(state))
			k.mu.Lock()
			k.saving, k.saves = false, k.saves+1
			if err != nil && k.err == nil {
				k.err = err
			}
			k.cond.Broadcast()
			k.mu.Unlock()
			if k.l.Reclaimable() > 0 {
				k.l.Poke()
			}
		}()
	}
}

func (k *keeper) encodeLocked() (b []byte) {
	for _, id := range sortedIDs(k.at) {
		b = binary.LittleEndian.AppendUint64(b, id)
		b = binary.LittleEndian.AppendUint64(b, uint64(k.at[id]))
		b = binary.LittleEndian.AppendUint64(b, uint64(k.size[id]))
	}
	return b
}

// do appends records and waits until they are reported.
func (k *keeper) do(t *testing.T, records ...keepRecord) {
	t.Helper()
	k.mu.Lock()
	want := k.told + len(records)
	k.mu.Unlock()
	for _, r := range records {
		require.NoError(t, k.l.Append(r.id, r.sync, r))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.told < want && k.err == nil {
		k.cond.Wait()
	}
	require.NoError(t, k.err)
}

// rest waits until the log has nothing to do, and returns what the directory takes and what of it is live.
func (k *keeper) rest(t *testing.T, fs *MemFS) (used, live int64) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for quiet := 0; quiet < 100; runtime.Gosched() {
		require.True(t, time.Now().Before(deadline), "the log does not come to rest: %+v", k.l.Stats())
		u, _ := k.l.survey()
		segment := int64(k.l.opts.SegmentBytes)
		k.mu.Lock()
		busy := k.saving || k.l.Reclaimable() > 0 || k.l.restless(u) ||
			u.garbage > u.live/2+segment/2+2*segment/weighEvery && u.best.bytes.Load() <= u.best.size/4*3
		err := k.err
		k.mu.Unlock()
		require.NoError(t, err)
		// Files that are being removed are in no list any more. Beside those of the log there are a checkpoint and its reserve.
		busy = busy || fs.Used() > k.l.Stats().Bytes+k.l.checkpointBytes.Load()+2*segment
		k.l.mu.Lock()
		busy = busy || len(k.l.free) > keepFree || len(k.l.spares) < k.l.opts.Spare || !k.l.reserve.Load()
		k.l.mu.Unlock()
		if quiet++; busy {
			quiet = 0
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.size {
		live += int64(recordSize(n + 16))
	}
	return fs.Used(), live
}

// check reads all bodies.
func (k *keeper) check(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, pos := range k.at {
		b, err := k.l.Read(pos, 0, nil)
		require.NoError(t, err, "record %d", id)
		require.True(t, bytes.Equal(keepRecord{id: id, size: k.size[id]}.AppendTo(nil), b), "record %d", id)
	}
}

func TestCompactionKeepsSpaceSmall(t *testing.T) {
	const segment = 64 << 10
	const constant = 8*segment + segment*3/4 // the reserve is a whole segment of this size, and a quarter of one by default
	rng := rand.New(rand.NewSource(5))
	next := uint64(0)
	put := func(k *keeper, size int) uint64 {
		next++
		k.do(t, keepRecord{next, size, next%16 == 0})
		return next
	}
	drop := func(k *keeper, id uint64) { k.do(t, keepRecord{id: id, size: -1}) }
	for name, fill := range map[string]func(k *keeper){
		"one old record under many newer ones that are gone": func(k *keeper) {
			put(k, 100)
			for range 20_000 {
				drop(k, put(k, 1000))
			}
		},
		"one of a hundred stays": func(k *keeper) {
			for i := range 30_000 {
				if id := put(k, 500); i%100 != 0 {
					drop(k, id)
				}
			}
		},
		"at random": func(k *keeper) {
			var ids []uint64
			for range 30_000 {
				if len(ids) < 200 || rng.Intn(2) == 0 && len(ids) < 5000 {
					ids = append(ids, put(k, rng.Intn(2000)))
					continue
				}
				i := rng.Intn(len(ids))
				drop(k, ids[i])
				ids[i] = ids[len(ids)-1]
				ids = ids[:len(ids)-1]
			}
		},
		"what says nothing passes over one that stays": func(k *keeper) {
			put(k, 100)
			for range 30_000 {
				k.do(t, keepRecord{size: 40})
			}
		},
		"big ones among small ones": func(k *keeper) {
			var big []uint64
			for i := range 300 {
				put(k, 50)
				big = append(big, put(k, segment-100))
				if i >= 5 {
					drop(k, big[i-5])
				}
			}
		},
		"twice over": func(k *keeper) { // what was moved is moved again
			var old []uint64
			for range 3 {
				for i := range 4000 {
					if id := put(k, 300); i%20 == 0 {
						old = append(old, id)
					} else {
						drop(k, id)
					}
				}
				for i, id := range old {
					if i%2 == 0 {
						drop(k, id)
					}
				}
				kept := old[:0]
				for i, id := range old {
					if i%2 != 0 {
						kept = append(kept, id)
					}
				}
				old = kept
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := &MemFS{Volatile: true}
			k := newKeeper()
			k.open(t, fs, segment)
			fill(k)
			used, live := k.rest(t, fs)
			st := k.l.Stats()
			k.mu.Lock()
			saves := k.saves
			k.mu.Unlock()
			fmt.Printf("compaction: %s: %d KiB used, %d KiB live, %d records moved, %d KiB written, %d checkpoints\n",
				name, used>>10, live>>10, st.Moved, st.Written>>10, saves)
			require.LessOrEqual(t, used, 2*live+constant, "%+v", st)
			require.Equal(t, len(k.at), int(st.Live))
			require.InEpsilon(t, live, st.LiveBytes, 0.1)
			k.check(t)

			// At rest nothing is written. What rest sees may come before the last look of the compactor.
			rested := false
			for try := 0; try < 10 && !rested; try++ {
				written := k.l.Stats().Written
				k.l.Poke()
				k.rest(t, fs)
				rested = k.l.Stats().Written == written
			}
			require.True(t, rested, "%+v", k.l.Stats())

			for range 2 { // from a checkpoint, and one that was written after that
				require.NoError(t, k.l.Close())
				again := newKeeper()
				again.open(t, fs, segment)
				require.Equal(t, k.at, again.at)
				again.check(t)
				k = again
				k.do(t, keepRecord{size: 10, sync: true})
			}
			for id := range k.at {
				drop(k, id)
			}
			used, _ = k.rest(t, fs)
			require.LessOrEqual(t, used, int64(constant), "%+v", k.l.Stats())
			require.NoError(t, k.l.Close())
		})
	}
}
