package bourse

// Goal: an exclusive queue belongs to the session that declared it, by SEMANTICS 6. Method: a broker beside the commands of another
// one, as a log with several proposers would bring them, and each call that a queue can be named in.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/storage"
)

func TestSemanticsExclusive(t *testing.T) {
	ctx := context.Background()
	fs := &storage.MemFS{}
	start := func() *Broker {
		e, err := NewLocalEngine("data", LocalOptions{FS: fs})
		require.NoError(t, err)
		b, err := NewBroker(ctx, Options{Engine: e})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, Exchange{Name: "e", Kind: Fanout}, Queue{Name: "open", Transient: true}))
		return b
	}
	b := start()
	// stranger proposes what another broker would.
	stranger := func(encode func(dst []byte, at instant, session sessionID) []byte) error {
		a, err := b.placement.first.call(ctx, durably, func(dst []byte, at instant) []byte { return encode(dst, at, b.session()+2) })
		require.NoError(t, err)
		if a.Code == answerError {
			return decodeError(a.Data)
		}
		require.Equal(t, answerOK, a.Code)
		return nil
	}
	declares := func(ds ...Declaration) error {
		return stranger(func(dst []byte, at instant, session sessionID) []byte {
			return appendDeclare(dst, at, session, topologyLimits{}, ds)
		})
	}
	mine := Queue{Name: "mine", Transient: true, Exclusive: true}
	theirs := Queue{Name: "theirs", Transient: true, Exclusive: true, Inbox: InboxMemory{Window: time.Hour}}
	require.NoError(t, b.Declare(ctx, mine, Binding{Exchange: "e", Queue: "mine"}))
	require.NoError(t, declares(theirs, Binding{Exchange: "e", Queue: "theirs"}))

	// The owner sees no difference, and declares it again.
	require.NoError(t, b.Declare(ctx, mine, Binding{Exchange: "e", Queue: "mine"}))
	require.NoError(t, declares(theirs))
	require.NoError(t, b.Check(mine))
	require.NoError(t, b.Publish(ctx, Message{Exchange: "e"}))
	require.NoError(t, b.Publish(ctx, Message{RoutingKey: "theirs", Mandatory: true}))
	d, err := b.Get(ctx, "mine")
	require.NoError(t, err)
	require.NoError(t, d.Ack())
	shared := mine
	shared.TTL = time.Hour
	require.NoError(t, b.Update(ctx, shared))
	require.NoError(t, b.Update(ctx, mine))
	_, err = b.Purge(ctx, "mine")
	require.NoError(t, err)

	var differs *PreconditionError
	require.ErrorAs(t, b.Declare(ctx, Queue{Name: "mine", Transient: true}), &differs)
	require.Equal(t, []FieldDiff{{"Exclusive", "true", "false"}}, differs.Fields)

	// Others are locked out, whatever they want.
	for name, f := range map[string]func() error{
		"declare":            func() error { return b.Declare(ctx, theirs) },
		"declare, different": func() error { return b.Declare(ctx, Queue{Name: "theirs"}) },
		"check":              func() error { return b.Check(theirs) },
		"bind":               func() error { return b.Declare(ctx, Binding{Exchange: "e", Queue: "theirs", Key: "k"}) },
		"unbind":             func() error { return b.Delete(ctx, Binding{Exchange: "e", Queue: "theirs"}) },
		"update":             func() error { return b.Update(ctx, Queue{Name: "theirs", Transient: true, Exclusive: true}) },
		"delete":             func() error { return b.Delete(ctx, Queue{Name: "open"}, theirs) },
		"purge":              func() error { _, err := b.Purge(ctx, "theirs"); return err },
		"pause":              func() error { return b.Pause(ctx, "theirs") },
		"resume":             func() error { return b.Resume(ctx, "theirs") },
		"subscribe":          func() error { _, err := b.Subscribe(ctx, "theirs", SubscribeOptions{}); return err },
		"get":                func() error { _, err := b.Get(ctx, "theirs"); return err },
		"inbox":              func() error { _, err := b.Inbox("theirs"); return err },
		"find":               func() error { _, err := b.Find(ctx, "theirs", "id"); return err },
		"browse": func() error {
			for _, err := range b.Browse(ctx, "theirs", BrowseOptions{}) {
				return err
			}
			return nil
		},
		"work": func() error {
			return b.Work(ctx, "theirs", func(context.Context, *Delivery) error { return nil }, WorkOptions{})
		},
		"another's declare": func() error { return declares(mine) },
		"another's bind":    func() error { return declares(Binding{Exchange: "e", Queue: "mine", Key: "k"}) },
		"another's update": func() error {
			return stranger(func(dst []byte, at instant, session sessionID) []byte { return appendUpdate(dst, at, session, shared) })
		},
		"another's delete": func() error {
			return stranger(func(dst []byte, at instant, session sessionID) []byte {
				return appendRemove(dst, at, session, 0, []Declaration{Queue{Name: "open"}, mine})
			})
		},
	} {
		require.ErrorIs(t, f(), ErrLocked, name)
	}
	require.ErrorContains(t, b.Declare(ctx, theirs), `queue "theirs": locked`)
	require.NoError(t, b.Check(mine, Queue{Name: "open", Transient: true}), "what was refused changed nothing")
	s, _ := b.QueueStats("theirs")
	require.Equal(t, 2, s.Ready)

	// With the declaration goes the lock: of another queue of that name somebody else is the owner.
	require.NoError(t, b.Delete(ctx, mine))
	require.NoError(t, declares(mine))
	require.ErrorIs(t, b.Declare(ctx, mine), ErrLocked)

	// The state with its owners comes through a checkpoint, and is gone with the session.
	b.placement.first.mu.Lock()
	m, err := decodeMachine(b.placement.first.m.appendTo(nil), func(Ref) {})
	require.NoError(t, err)
	def, _ := m.topology.queue("theirs")
	require.Equal(t, b.session()+2, m.topology.owner(def.id))
	require.Equal(t, 2, m.topology.owners.Len())
	b.placement.first.mu.Unlock()
	require.NoError(t, b.Close())
	b = start()
	for _, q := range []Queue{mine, theirs} {
		require.ErrorIs(t, b.Check(q), ErrNotFound)
		require.NoError(t, b.Declare(ctx, q))
	}
	require.NoError(t, b.Close())
}
