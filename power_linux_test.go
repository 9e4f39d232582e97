package bourse_test

// Goal: after the power is cut at any moment, also while a broker opens, recovers, or makes a checkpoint, what was confirmed is there, what
// AckSync has confirmed does not come back, and messages are in order, with counters that may have happened. Method: that of
// kill_test.go, on disks that lose what was not synced: the parent kills the process that worked there, cuts the disk's power, mounts the
// disk again, cuts it some more times while it opens what was left, and compares. Acks and deliveries that were not synced may be
// lost here, so the model knows a range for the counters where that of TestKill knows a number.
//
// The process goes before the power, by an instant: of a sync that is on its way while Linux shuts a file system down, ext4 and XFS may say
// that it was done, and then drop its transaction. A cut of the power leaves nobody who could say so.

import (
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

var (
	powerCuts = flag.Int("power.cuts", 0, "cuts of TestPower, which then must run; 0: a few, if it can")
	powerFS   = flag.String("power.fs", "ext4", "file system of TestPower: ext4 or xfs")
	powerSeed = flag.Int64("power.seed", 0, "seed of TestPower; 0: from the clock")
)

// powerLanes disks are cut beside each other, since a cycle is mostly waiting.
const powerLanes = 4

// powerRun is one disk and what is known of it.
type powerRun struct {
	*killRun
	disk        *disk
	cuts        int // in all
	recovering  int // of them those while a broker opened
	checkpoints int // times a process left another checkpoint than it found
	newest      string
}

func (r *powerRun) again() {
	require.Empty(r.t, r.disk.files(), "left open; %s", r.replay)
	require.NoError(r.t, r.disk.again(), r.replay)
}

// recover opens what is there and cuts the power meanwhile. Whether it opens does not matter: nothing was confirmed.
func (r *powerRun) recover(gen int) {
	done := make(chan struct{}) // closed by the timer
	timer := time.AfterFunc(time.Duration(r.rng.Int63n(int64(10*time.Millisecond))), func() {
		defer close(done)
		r.cut()
	})
	b, err := killOpen("power", r.dir, gen)
	if timer.Stop() { // opening was faster
		r.cut()
	} else {
		<-done
	}
	r.cuts++
	if err == nil {
		_ = b.Close()
	} else {
		require.True(r.t, errors.Is(err, bourse.ErrStorage) || errors.Is(err, bourse.ErrClosed), "%v; %s", err, r.replay)
	}
	r.recovering++
	r.again()
}

// checkpoint is the name of the newest.
func (r *powerRun) checkpoint() (newest string) {
	names, _ := filepath.Glob(filepath.Join(r.dir, "*.ckpt"))
	for _, n := range names {
		newest = max(newest, n)
	}
	return newest
}

func (r *powerRun) cycle(gen int) {
	r.once(gen)
	r.cuts++
	r.again()
	if c := r.checkpoint(); c != r.newest {
		r.checkpoints++
	}
	for r.rng.Intn(10) < 3 {
		r.recover(gen)
	}
	r.check(gen)
	r.newest = r.checkpoint()
}

func TestPower(t *testing.T) {
	seed, cuts, must := *powerSeed, *powerCuts, *powerCuts > 0
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	if !must {
		if testing.Short() {
			t.Skip("it mounts")
		}
		cuts = 12
	}
	size := int64(128 << 20)
	if *powerFS == "xfs" {
		size = 320 << 20 // the least that mkfs.xfs makes
	}
	var mu sync.Mutex
	var all powerRun
	total := newKillModel()
	t.Run(*powerFS, func(t *testing.T) {
		for lane := range powerLanes {
			d := newDisk(t, *powerFS, size, must)
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				r := &powerRun{disk: d, killRun: &killRun{
					t: t, dir: filepath.Join(d.dir, "data"), rng: rand.New(rand.NewSource(seed + int64(lane))), model: newKillModel(),
					mode: "power", longest: 60 * time.Millisecond,
					replay: fmt.Sprintf("the same delays: go test -run '^TestPower$' . -power.cuts %d -power.fs %s -power.seed %d",
						cuts, *powerFS, seed),
				}}
				r.model.power = true
				r.cut = func() {
					if err := d.cut(); err != nil {
						t.Error(err)
					}
				}
				for gen := 0; r.cuts < (cuts+powerLanes-1)/powerLanes; gen++ {
					r.cycle(gen)
				}
				mu.Lock()
				defer mu.Unlock()
				m := r.model
				all.cuts, all.recovering, all.checkpoints = all.cuts+r.cuts, all.recovering+r.recovering, all.checkpoints+r.checkpoints
				total.confirmed, total.got, total.acked = total.confirmed+m.confirmed, total.got+m.got, total.acked+m.acked
				total.dead, total.lost, total.found = total.dead+m.dead, total.lost+m.lost, total.found+m.found
			})
		}
	})
	if t.Failed() || all.cuts == 0 {
		return
	}
	fmt.Printf("power: %d cuts of %s, %d of them while recovering, %d checkpoints between, %d confirmed, %d delivered, "+
		"%d acked for certain, %d dead, %d found, 0 lost; seed %d\n",
		all.cuts, *powerFS, all.recovering, all.checkpoints, total.confirmed, total.got, total.acked, total.dead, total.found, seed)
	if !must || cuts < 100 {
		return
	}
	require.GreaterOrEqual(t, all.cuts, cuts)
	require.Greater(t, all.recovering, cuts/10)
	require.Greater(t, all.checkpoints, cuts/10)
	require.Greater(t, total.confirmed, 20*cuts, "too few messages to mean anything")
	require.Greater(t, total.acked, cuts/4)
}
