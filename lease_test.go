package bourse

// Goal: a queue with a shard of its own ends in both places or in none, whatever is on the way between them. Method: two machines, the
// catalogue and the queue, and random commands to both; what one orders for the other comes late, twice, in any order or not at
// all, until at the end everything is told anew, as it is when a leader changes.

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/wire"
	"github.com/boursemq/bourse/storage"
)

// couple is a catalogue and the shard of its one queue.
type couple struct {
	t         *testing.T
	rng       *rand.Rand
	now       instant
	catalogue *machine
	own       *machine // nil: not open
	id        queueID
	def       Queue
	used      instant  // the last use that the queue has accepted
	pending   []func() // on the way
	ends      int
	left      bool // its last consumer has left, and it goes with it
	saved     int  // ends that a redeclare came before
	leaves    int
}

func (c *couple) tell(m *machine, cmd []byte) applied {
	res, out := m.apply(1, cmd, nil)
	m.check()
	for i := range out {
		if out[i].kind == effectRetire {
			c.retire()
		}
	}
	return res
}

// retire proposes to the catalogue what the queue ordered.
func (c *couple) retire() {
	id, revision, why := c.id, c.own.revision, c.own.order[0].lease.ending
	c.pending = append(c.pending, func() {
		before := c.catalogue.topology
		res := c.tell(c.catalogue, appendRetire(nil, c.now, id, why, revision))
		if id != c.id {
			require.Same(c.t, before, c.catalogue.topology, "a queue that is gone was deleted again")
			return
		}
		q := c.own.order[0]
		switch res.answer.Code {
		case answerStale:
			require.Equal(c.t, endsUnused, why)
			c.saved++
			c.redefine() // as the janitor does
		case answerOK:
			require.False(c.t, q.attended())
			require.Equal(c.t, why, q.lease.ending)
			if why == endsUnused {
				require.LessOrEqual(c.t, c.used+instant(c.def.Expires), c.now)
				c.ends++
			} else {
				require.True(c.t, c.left)
				c.leaves++
			}
			c.own = nil
			c.declare()
		}
	})
}

// redefine brings the queue what the catalogue says now.
func (c *couple) redefine() {
	id, revision := c.id, c.catalogue.topology.revision(c.id)
	def, ok := c.catalogue.topology.queueByID(id)
	require.True(c.t, ok)
	c.pending = append(c.pending, func() {
		if c.own == nil || id != c.id {
			return // its shard is closed
		}
		had := c.own.revision
		res := c.tell(c.own, appendRedefine(nil, c.now, def, revision))
		require.Equal(c.t, c.left, res.answer.Code == answerGone)
		if c.own.revision > had {
			c.used = c.now
			require.Equal(c.t, endsNot, c.own.order[0].lease.ending)
		}
	})
}

func (c *couple) declare() {
	c.tell(c.catalogue, appendDeclare(nil, c.now, 0, topologyLimits{}, []Declaration{c.def}))
	def, ok := c.catalogue.topology.queue(c.def.Name)
	require.True(c.t, ok)
	if c.own == nil {
		require.NotEqual(c.t, c.id, def.id)
		c.id, c.used, c.left = def.id, c.now, false
		c.own = newMachine(roleQueue, topologyOf(queueDef{def.id, c.catalogue.topology.declared(def)}))
		c.tell(c.own, appendOpen(nil, c.now, false))
		return
	}
	c.redefine()
}

// reload takes m through a snapshot.
func (c *couple) reload(m *machine) *machine {
	b := m.appendTo(nil)
	again, err := decodeMachine(b, func(Ref) {})
	require.NoError(c.t, err)
	require.True(c.t, bytes.Equal(b, again.appendTo(nil)))
	again.lead(nil)
	return again
}

func (c *couple) step() {
	q := c.own.order[0]
	consumer := consumerID(c.own.session)<<32 | consumerID(1+c.rng.IntN(3))
	lasts := q.lease.ending == endsNot
	switch c.rng.IntN(12) {
	case 0, 1:
		c.now += instant(c.rng.IntN(12)) * instant(time.Second)
	case 2:
		if end := q.leaseEnd(); end != 0 {
			c.now = max(c.now, end+instant(c.rng.IntN(3)-1))
		}
	case 3, 4:
		c.tell(c.own, appendTick(nil, c.now))
	case 5:
		res := c.tell(c.own, attach{queue: c.id, consumer: consumer, prefetch: int32(c.rng.IntN(2))}.appendTo(nil, c.now))
		if res.answer.Code == answerOK {
			require.True(c.t, lasts)
			c.used = c.now
		}
	case 6:
		was := q.attended()
		c.tell(c.own, detach{queue: c.id, consumer: consumer}.appendTo(nil, c.now))
		if was && !q.attended() {
			c.used, c.left = c.now, c.def.AutoDelete
		}
	case 7:
		if res := c.tell(c.own, take{queue: c.id, consumer: consumer}.appendTo(nil, c.now)); res.answer.Code == answerEmpty {
			require.True(c.t, lasts)
			c.used = c.now
		}
	case 8:
		c.declare()
	case 9:
		if c.rng.IntN(4) == 0 {
			was := q.attended()
			c.tell(c.own, appendOpen(nil, c.now, c.rng.IntN(2) == 0))
			if was {
				c.used, c.left = c.now, c.def.AutoDelete
			}
		}
	case 10:
		c.own, c.catalogue = c.reload(c.own), c.reload(c.catalogue)
	}
	for len(c.pending) > 0 && c.rng.IntN(3) == 0 {
		i := c.rng.IntN(len(c.pending))
		one := c.pending[i]
		if k := c.rng.IntN(8); k > 1 { // else it comes again
			c.pending = append(c.pending[:i], c.pending[i+1:]...)
			if k == 2 {
				continue // it is lost
			}
		}
		one()
	}
}

func TestLeaseOfOwnShard(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	ends, saved, leaves := 0, 0, 0
	for walk := range uint64(300) {
		c := &couple{
			t: t, rng: rand.New(rand.NewPCG(seed, walk)), now: instant(1_700_000_000 * time.Second),
			catalogue: newMachine(roleCatalogue, newTopology(topologyLimits{})), def: Queue{Name: "q", Expires: 10 * time.Second},
		}
		c.def.AutoDelete = walk%3 == 1
		c.def.Transient = c.def.AutoDelete
		c.declare()
		for range 150 {
			c.step()
		}
		// Everybody leaves, and leaders are made anew until nothing is left to do.
		c.left = c.left || c.def.AutoDelete && c.own.order[0].attended()
		c.tell(c.own, appendOpen(nil, c.now, false))
		c.pending = nil
		id := c.id
		for range 3 {
			c.now += instant(10 * time.Second)
			if c.id == id {
				c.tell(c.own, appendTick(nil, c.now))
				c.redefine()
				if c.own.order[0].lease.ending != endsNot {
					c.retire()
				}
			}
			for _, one := range c.pending {
				one()
			}
		}
		require.NotEqual(t, id, c.id, "a queue that nobody uses is still there")
		ends, saved, leaves = ends+c.ends, saved+c.saved, leaves+c.leaves
	}
	require.Greater(t, ends, 300)
	require.Greater(t, saved, 100)
	require.Greater(t, leaves, 100)
}

// A lease in a snapshot that no machine can have is refused.
func TestLeaseDecodesStrictly(t *testing.T) {
	for _, c := range []struct {
		name    string
		lease   lease
		expires time.Duration // -1: it goes with its last consumer
		own, ok bool
	}{
		{"ending without its last consumer", lease{ending: endsLeft}, -1, true, true},
		{"ending without its last consumer beside the catalogue", lease{ending: endsLeft}, -1, false, false},
		{"ending without its last consumer, which it bears", lease{ending: endsLeft}, 0, true, false},
		{"none", lease{}, 0, false, true},
		{"begun", lease{begun: true, since: 7}, 1, false, true},
		{"begun in its shard", lease{begun: true, since: 7}, 1, true, true},
		{"not begun", lease{}, 1, false, false},
		{"not begun in its shard", lease{}, 1, true, true},
		{"of a queue that does not expire", lease{begun: true}, 0, true, false},
		{"ending", lease{begun: true, ending: endsUnused}, 1, true, true},
		{"ending beside the catalogue", lease{begun: true, ending: endsUnused}, 1, false, false},
		{"ending before it began", lease{ending: endsUnused}, 1, true, false},
		{"ending in a way that there is not", lease{begun: true, ending: endsLast + 1}, 1, true, false},
	} {
		q := queue{def: queueDef{Queue: Queue{Expires: max(c.expires, 0), AutoDelete: c.expires < 0}}}
		r := wire.NewReader(c.lease.appendTo(nil))
		q.decodeLease(&r, c.own)
		require.Equal(t, c.ok, r.Done() == nil, c.name)
		if c.ok {
			require.Equal(t, c.lease, q.lease, c.name)
		}
	}
}

// deposed is an engine with a log for each queue whose catalogue another node leads while away is set.
type deposed struct {
	perQueue
	away atomic.Bool
}

func (e *deposed) Open(ctx context.Context, shard uint64, m Machine) (Log, error) {
	log, err := e.perQueue.Open(ctx, shard, m)
	if shard == 1 {
		log = deposedLog{log, &e.away}
	}
	return log, err
}

type deposedLog struct {
	Log
	away *atomic.Bool
}

func (l deposedLog) Propose(p Proposal) error {
	if l.away.Load() {
		return ErrNotLeader
	}
	return l.Log.Propose(p)
}

// Where another node leads the catalogue that node deletes the queue; until then it is ending here and lets nobody in. What
// failed in between is made up for when it is led here.
func TestLeaseWhereCatalogueIsLedElsewhere(t *testing.T) {
	ctx := context.Background()
	e, err := NewLocalEngine("data", LocalOptions{FS: &storage.MemFS{}})
	require.NoError(t, err)
	catalogue := &deposed{perQueue: perQueue{e}}
	b, err := NewBroker(ctx, Options{Engine: catalogue})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, Queue{Name: "q", Expires: MaxDelay}))
	def, _ := b.topology.Load().queue("q")
	own := b.placement.of(def.id)
	catalogue.away.Store(true)
	_, err = own.call(ctx, lazily, func(dst []byte, at instant) []byte { return appendTick(dst, at+instant(MaxDelay)) })
	require.NoError(t, err)
	_, why := own.ending()
	require.Equal(t, endsUnused, why)
	require.NoError(t, b.janitor.retire(ctx, def.id))
	require.NoError(t, b.Check(Queue{Name: "q", Expires: MaxDelay}))
	_, err = b.Subscribe(ctx, "q", SubscribeOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	_, err = b.Get(ctx, "q")
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, b.Publish(ctx, Message{RoutingKey: "q"}), "it may still be kept")

	catalogue.away.Store(false)
	require.NoError(t, b.Declare(ctx, Queue{Name: "q", Expires: MaxDelay}), "which keeps it")
	again, _ := b.topology.Load().queue("q")
	require.Equal(t, def.id, again.id)
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.AckSync(ctx))

	catalogue.away.Store(true)
	_, err = own.call(ctx, lazily, func(dst []byte, at instant) []byte { return appendTick(dst, at+2*instant(MaxDelay)) })
	require.NoError(t, err)
	catalogue.away.Store(false)
	b.placement.wake() // as when it begins to be led here
	for b.Check(Queue{Name: "q", Expires: MaxDelay}) == nil {
		require.NoError(t, b.Declare(ctx))
	}
	require.Nil(t, b.placement.of(def.id))
	require.NoError(t, b.Close())
}

// A call that finds the log of a transient queue closed, since its queue is gone, says so, and a publish to others beside it goes on.
func TestLaneIsGone(t *testing.T) {
	ctx := context.Background()
	b, err := NewBroker(ctx, Options{})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, Exchange{Name: "e", Kind: Fanout}, Queue{Name: "kept"}, Queue{Name: "q", Transient: true},
		Binding{Exchange: "e", Queue: "kept"}, Binding{Exchange: "e", Queue: "q"}))
	d, err := b.Get(ctx, "kept")
	require.ErrorIs(t, err, ErrEmpty)
	require.Nil(t, d)
	_, err = b.Get(ctx, "q")
	require.ErrorIs(t, err, ErrEmpty)
	def, _ := b.topology.Load().queue("q")
	require.NoError(t, b.placement.of(def.id).close(ErrQueueGone)) // the topology still has it, as it has for a moment
	require.NoError(t, b.Publish(ctx, Message{Exchange: "e"}))
	kept, _ := b.QueueStats("kept")
	require.Equal(t, 1, kept.Ready)
	_, err = b.Subscribe(ctx, "q", SubscribeOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	_, err = b.Get(ctx, "q")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = b.Purge(ctx, "q")
	require.ErrorIs(t, err, ErrQueueGone)
	require.NoError(t, b.Delete(ctx, Queue{Name: "q"}))
	require.NoError(t, b.Close())
}

// A declare that finds a queue on its way out, since its last consumer has left, ends it and makes another.
func TestDeclareEndsWhatWasLeft(t *testing.T) {
	ctx := context.Background()
	b, err := NewBroker(ctx, Options{})
	require.NoError(t, err)
	b.janitor.stop()
	q := Queue{Name: "q", Transient: true, AutoDelete: true}
	require.NoError(t, b.Declare(ctx, q))
	was, _ := b.topology.Load().queue("q")
	s, err := b.Subscribe(ctx, "q", SubscribeOptions{})
	require.NoError(t, err)
	_, err = s.shard.call(ctx, lazily, func(dst []byte, at instant) []byte {
		return detach{queue: was.id, consumer: s.id}.appendTo(dst, at)
	})
	require.NoError(t, err)
	require.NoError(t, b.Check(q), "nobody has told the catalogue")
	_, err = b.Subscribe(ctx, "q", SubscribeOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, b.Declare(ctx, q))
	is, _ := b.topology.Load().queue("q")
	require.NotEqual(t, was.id, is.id)
	_, err = b.Subscribe(ctx, "q", SubscribeOptions{})
	require.NoError(t, err)
	require.NoError(t, b.Close())
}
