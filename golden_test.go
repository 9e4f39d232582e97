package bourse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// Goal: a directory that a release has written is read by every later one. Method: testdata/golden has one that was closed and one that a
// killed process left, with each kind of queue and message, and beside them in text what is to be found there. A test opens copies,
// compares all of it, and drains them. They are made by
//
//	go test -run TestGolden -rewrite .
//
// which is right only while no release has written the format that changes. After that a new format gets directories of its own, beside
// the old ones, and these stay.

const goldenDir = "testdata/golden"

// goldenBroker opens dir with a clock at the time when the directories were made.
func goldenBroker(t *testing.T, dir string) (*bourse.Broker, *handClock) {
	t.Helper()
	e, err := bourse.NewLocalEngine(dir, bourse.LocalOptions{SegmentBytes: 4 << 10, CheckpointBytes: 5 << 10})
	require.NoError(t, err)
	clock := newHandClock()
	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: e, Clock: clock})
	require.NoError(t, err)
	return b, clock
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	for !tryCopyDir(t, from, to) { // the log made or removed a file meanwhile
		require.NoError(t, os.RemoveAll(to))
	}
}

func tryCopyDir(t *testing.T, from, to string) (whole bool) {
	t.Helper()
	require.NoError(t, os.MkdirAll(to, 0o700))
	files, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, f := range files {
		if f.Name() == "LOCK" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, f.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, f.Name()), b, 0o600))
	}
	again, err := os.ReadDir(from)
	require.NoError(t, err)
	return slices.EqualFunc(files, again, func(a, b os.DirEntry) bool { return a.Name() == b.Name() })
}

// makeGolden writes the directories closed and killed below to.
func makeGolden(t *testing.T, to string) {
	dir := t.TempDir()
	b, _ := goldenBroker(t, dir)
	day := 24 * time.Hour
	require.NoError(t, b.Declare(ctx,
		bourse.Exchange{Name: "events", Kind: bourse.Topic, Alternate: "rest"}, bourse.Exchange{Name: "rest", Kind: bourse.Fanout},
		bourse.Exchange{Name: "by header", Kind: bourse.HeadersMatch}, bourse.Exchange{Name: "ring", Kind: bourse.ConsistentHash},
		bourse.Queue{Name: "plain", DeadLetter: bourse.DeadLetter{Exchange: "rest", RoutingKey: "late"}}, bourse.Queue{Name: "rest"},
		bourse.Queue{Name: "levels", Priorities: 10, Fairness: bourse.Fairness{LowerOneIn: 5, Aging: time.Hour}, BumpOnRedelivery: true},
		bourse.Queue{Name: "retries", MaxRetries: 3, Retry: bourse.Backoff{Min: time.Second, Max: time.Minute, Jitter: 0.5, AtTail: true}},
		bourse.Queue{Name: "times", TTL: day}, bourse.Queue{Name: "groups", GroupConcurrency: 2},
		bourse.Queue{Name: "limits", MaxMessages: 3, MaxBytes: 1 << 20, Overflow: bourse.DropHead},
		bourse.Queue{Name: "single", SingleActiveConsumer: true},
		bourse.Queue{Name: "rate", Rate: bourse.Rate{Deliveries: 5, Per: time.Minute}},
		bourse.Queue{Name: "dedup", Dedup: bourse.Dedup{Window: day}}, bourse.Queue{Name: "inbox", Inbox: bourse.InboxMemory{Window: day}},
		bourse.Queue{Name: "leased", Expires: 100 * day}, bourse.Queue{Name: "paused"}, bourse.Queue{Name: "loans"},
		bourse.Binding{Exchange: "events", Queue: "plain", Key: "order.#"}, bourse.Binding{Exchange: "rest", Queue: "rest"},
		bourse.Binding{Exchange: "by header", Queue: "plain", Headers: map[string]any{"x-match": "any", "n": 1}},
		bourse.Binding{Exchange: "ring", Queue: "plain", Weight: 2}, bourse.Binding{Exchange: "ring", Destination: "rest"},
		bourse.Schedule{Name: "yearly", Cron: "0 0 1 6 *", Message: bourse.Message{RoutingKey: "plain", Body: []byte("of a schedule")}},
	))
	publish := func(m bourse.Message) { require.NoError(t, b.Publish(ctx, m)) }
	publish(bourse.Message{RoutingKey: "plain", Body: []byte("an id that the broker made")})
	publish(bourse.Message{Exchange: "events", RoutingKey: "order.paid", ID: "routed", Timestamp: time.Unix(1, 5), Headers: map[string]any{
		"n": int64(1), "f": 1.5, "s": "text", "b": true, "raw": []byte{0, 255}, "at": time.Unix(7, 0).UTC()}})
	publish(bourse.Message{Exchange: "events", RoutingKey: "nowhere", ID: "by the alternate"})
	text := bytes.Repeat([]byte("what compresses well "), 300)
	publish(bourse.Message{RoutingKey: "plain", ID: "compressed", Body: text})
	for i := range 6 {
		publish(bourse.Message{RoutingKey: "levels", ID: fmt.Sprint("level ", i), Priority: uint8(i * 2)})
		publish(bourse.Message{RoutingKey: "limits", ID: fmt.Sprint("limit ", i)})
		publish(bourse.Message{RoutingKey: "groups", ID: fmt.Sprint("group ", i), GroupID: string(rune('a' + i%2))})
	}
	publish(bourse.Message{RoutingKey: "times", ID: "ttl", TTL: time.Hour})
	publish(bourse.Message{RoutingKey: "times", ID: "delayed", Delay: time.Minute, TTL: time.Hour})
	for _, q := range []string{"single", "rate", "dedup", "inbox", "inbox", "leased", "paused", "retries", "retries"} {
		publish(bourse.Message{RoutingKey: q, ID: "in " + q, Body: []byte(q)})
	}
	require.NoError(t, b.PublishAtomic(ctx, []bourse.Message{
		{RoutingKey: "plain", ID: "part 1", Body: text}, {Exchange: "rest", ID: "part 2"}}))
	require.NoError(t, b.Pause(ctx, "paused"))
	require.NoError(t, b.Update(ctx, bourse.Queue{Name: "paused", MaxRetries: 7}))

	d := mustGet(t, b, "retries")
	require.NoError(t, d.Nack())
	d = mustGet(t, b, "plain")
	require.NoError(t, d.Reject("to the exchange of the dead"))
	d = mustGet(t, b, "rate")
	require.NoError(t, d.Reject("to be parked"))
	moved := func() bool { return stats(t, b, bourse.ParkingQueue).Ready == 1 && stats(t, b, "rest").Ready == 3 }
	require.Eventually(t, moved, testTimeout, 1e6)
	inbox, err := b.Inbox("inbox")
	require.NoError(t, err)
	require.NoError(t, inbox.Done(ctx, mustGet(t, b, "inbox")))
	for i := range 300 { // so that segments end, and a checkpoint is taken
		publish(bourse.Message{RoutingKey: "leased", ID: fmt.Sprint("gone ", i)})
		require.NoError(t, mustGet(t, b, "leased").Ack())
	}
	for i := range 5 {
		publish(bourse.Message{RoutingKey: "loans", ID: fmt.Sprint("loan ", i)})
	}
	s := consume(t, b, "loans", 2)
	require.NoError(t, next(t, s).Nack())
	require.NoError(t, next(t, s).AckSync(ctx))
	next(t, s)
	require.Positive(t, b.Stats().Storage.Checkpoints)
	copyDir(t, dir, filepath.Join(to, "killed"))
	require.NoError(t, s.Close())
	require.NoError(t, b.Close())
	copyDir(t, dir, filepath.Join(to, "closed"))
}

func mustGet(t *testing.T, b *bourse.Broker, queue string) *bourse.Delivery {
	t.Helper()
	d, err := b.Get(ctx, queue)
	require.NoError(t, err)
	return d
}

// wholeState is everything that can be seen of a broker, as text.
func wholeState(t *testing.T, b *bourse.Broker) string {
	t.Helper()
	var out strings.Builder
	topology := b.EncodedTopology()
	for len(topology) > 0 {
		n := min(60, len(topology))
		_, _ = fmt.Fprintf(&out, "topology %x\n", topology[:n])
		topology = topology[n:]
	}
	all := b.Stats()
	for _, s := range all.Schedules {
		_, _ = fmt.Fprintf(&out, "schedule %s next %v last %v fired %d\n", s.Name, s.Next.UTC(), s.Last.UTC(), s.Fired)
	}
	for _, q := range all.Queues {
		_, _ = fmt.Fprintf(&out, "queue %+v\n", q)
		for m, err := range b.Browse(ctx, q.Name, bourse.BrowseOptions{}) {
			require.NoError(t, err)
			body := fmt.Sprintf("%q", m.Body)
			if len(m.Body) > 100 {
				body = fmt.Sprintf("%.30q... of %d bytes", m.Body, len(m.Body))
			}
			_, _ = fmt.Fprintf(&out, "\tseq %d %v level %d id %q from %q %q group %q ttl %v timestamp %v body %s\n",
				m.Seq, m.State, m.Level, m.ID, m.Exchange, m.RoutingKey, m.GroupID, m.TTL, m.Timestamp.UTC(), body)
			_, _ = fmt.Fprintf(&out, "\t\tenqueued %v ready %v expires %v deliveries %d failures %d headers %v\n",
				m.EnqueuedAt.UTC(), m.ReadyAt.UTC(), m.ExpiresAt.UTC(), m.Deliveries, m.Failures, m.Headers)
			for _, d := range m.Deaths {
				d.First, d.Last = d.First.UTC(), d.Last.UTC()
				_, _ = fmt.Fprintf(&out, "\t\tdeath %+v\n", d)
			}
		}
	}
	return out.String()
}

func TestGolden(t *testing.T) {
	fresh := t.TempDir()
	makeGolden(t, fresh)
	for _, name := range []string{"closed", "killed"} {
		from, file := filepath.Join(goldenDir, name), filepath.Join(goldenDir, name+".txt")
		t.Run("fresh "+name, func(t *testing.T) {
			noLeaks(t)
			got := drainGolden(t, filepath.Join(fresh, name))
			if bourse.Rewrite() {
				require.NoError(t, os.RemoveAll(from))
				copyDir(t, filepath.Join(fresh, name), from)
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
			}
		})
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			noLeaks(t)
			require.Equal(t, string(want), drainGolden(t, from))
		})
	}
}

// drainGolden opens a copy of a directory, drains it and returns what it held.
func drainGolden(t *testing.T, from string) string {
	dir := t.TempDir()
	copyDir(t, from, dir)
	b, clock := goldenBroker(t, dir)
	got := wholeState(t, b)
	// It goes on, and can be drained.
	require.NoError(t, b.Resume(ctx, "paused"))
	require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "dedup", ID: "in dedup"}))
	require.Equal(t, 1, stats(t, b, "dedup").Ready, "the id is remembered")
	inbox, err := b.Inbox("inbox")
	require.NoError(t, err)
	seen, err := inbox.Seen(ctx, mustGet(t, b, "inbox"))
	require.NoError(t, err)
	require.True(t, seen)
	clock.advance(t, b, 2*time.Minute)
	for _, q := range b.Stats().Queues {
		s, err := b.Subscribe(ctx, q.Name, bourse.SubscribeOptions{Prefetch: 1})
		require.NoError(t, err)
		for range q.Ready + q.Delayed { // what was delayed is ready by now, unless it has expired
			if now := stats(t, b, q.Name); now.Ready+now.Unacked > 0 {
				require.NoError(t, next(t, s).AckSync(ctx))
			}
		}
		require.NoError(t, s.Close())
		now := stats(t, b, q.Name)
		require.Zero(t, now.Ready+now.Delayed+now.Dying, q.Name)
	}
	require.NoError(t, b.Close())
	b, _ = goldenBroker(t, dir)
	for _, q := range b.Stats().Queues {
		if q.Name != "inbox" { // its message is on loan above, and comes back
			require.Zero(t, q.Ready, q.Name)
		}
	}
	require.NoError(t, b.Close())
	return got
}
