package bourse

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/wire"
	"github.com/boursemq/bourse/storage"
)

// Goal: a body is what it was on every way through a broker, is kept compressed where that pays and nowhere else, counts as published,
// and a block that is not what its message says is an error that costs no memory. Method: one broker with compression and one
// without do the same and must look the same; envelopes that lie; a fuzz target for the decoder.

func testText(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	var b []byte
	for len(b) < n {
		b = append(b, []string{"order ", "invoice ", "customer ", "address ", "paid, ", "sent. "}[r.IntN(6)]...)
	}
	return b[:n]
}

func testNoise(n int) []byte {
	r := rand.New(rand.NewPCG(2, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestCompressWhenItPays(t *testing.T) {
	mixed := func(noise, text int) []byte { return append(testNoise(noise), testText(text)...) }
	for _, c := range []struct {
		name string
		body []byte
		pays bool
	}{
		{"none", nil, false},
		{"text below the threshold", testText(compressLeast - 1), false},
		{"text", testText(compressLeast), true},
		{"zeros", make([]byte, 1<<20), true},
		{"noise", testNoise(1 << 20), false},
		{"noise at the threshold", testNoise(compressLeast), false},
		{"a tenth can be saved", mixed(85_000, 15_000), false},
		{"a sixth can be saved", mixed(75_000, 25_000), true},
	} {
		z := compress(c.body)
		require.Equal(t, c.pays, z != nil, c.name)
		if z == nil {
			continue
		}
		require.Equal(t, len(c.body), len(z.block)+z.saved, c.name)
		require.GreaterOrEqual(t, z.saved, len(c.body)/compressPart, c.name)
		got, err := s2.Decode(nil, z.block)
		require.NoError(t, err)
		require.True(t, bytes.Equal(c.body, got), c.name)
		z.release()
	}
}

// openCompressing opens a broker on fs.
func openCompressing(t *testing.T, fs *storage.MemFS, how Compression) *Broker {
	t.Helper()
	e, err := NewLocalEngine("data", LocalOptions{FS: fs, SegmentBytes: 8 << 20})
	require.NoError(t, err)
	b, err := NewBroker(context.Background(), Options{Engine: e, Compression: how})
	require.NoError(t, err)
	return b
}

// keptCompressed says for each message of a queue whether its body is compressed where it is kept, in order of arrival.
func keptCompressed(t *testing.T, b *Broker, queue string) (all []bool) {
	t.Helper()
	for m, err := range b.Browse(context.Background(), queue, BrowseOptions{}) {
		require.NoError(t, err)
		s := b.placement.holding(m.Locator.id, m.Seq)
		now, err := s.see(m.Locator.id, m.Locator.at())
		require.NoError(t, err)
		_, env, err := s.readEnvelope(nil, now.entry.ref, now.entry.part, now.entry.size)
		require.NoError(t, err)
		all = append(all, env.flags&flagCompressed != 0)
	}
	return all
}

// TestCompressEveryWay: all ways in, through and out of a broker bring the body that was published, and count it alike.
func TestCompressEveryWay(t *testing.T) {
	ctx := context.Background()
	var seen [2]string
	for i, how := range []Compression{CompressAuto, CompressOff} {
		fs := new(storage.MemFS)
		b := openCompressing(t, fs, how)
		require.NoError(t, b.Declare(ctx,
			Exchange{Name: "dead", Kind: Fanout}, Queue{Name: "graves"}, Binding{Exchange: "dead", Queue: "graves"},
			Exchange{Name: "all", Kind: Fanout}, Binding{Exchange: "all", Queue: "q"}, Binding{Exchange: "all", Queue: "other"},
			Binding{Exchange: "all", Queue: "memory"},
			Queue{Name: "q", DeadLetter: DeadLetter{Exchange: "dead"}}, Queue{Name: "other", MaxBytes: 100_000},
			Queue{Name: "memory", Transient: true},
			Queue{Name: "block", MaxBytes: 60_000, Overflow: Block}, Queue{Name: "parts"},
		))
		bodies := [][]byte{testText(2500), testNoise(2500), testText(40_000), testText(100)}
		message := func(exchange, key string, k int) Message {
			return Message{Exchange: exchange, RoutingKey: key, ID: fmt.Sprintf("%s%s%d", exchange, key, k), Body: bodies[k%len(bodies)]}
		}
		for k := range bodies {
			require.NoError(t, b.Publish(ctx, message("all", "", k)))
		}
		require.NoError(t, b.PublishBatch(ctx, []Message{message("", "q", 4), message("", "q", 5)}))
		require.NoError(t, b.PublishAsync(ctx, message("", "q", 6)).Wait(ctx))
		require.NoError(t, b.PublishAtomic(ctx, []Message{message("", "parts", 0), message("", "parts", 1), message("", "parts", 2)}))
		require.Equal(t, []bool{i == 0, false, i == 0, false, i == 0, false, i == 0}, keptCompressed(t, b, "q"))
		require.Equal(t, []bool{i == 0, false, i == 0}, keptCompressed(t, b, "parts"))
		require.Equal(t, []bool{false, false, false, false}, keptCompressed(t, b, "memory"), "a transient queue")

		// A publisher that waits for room.
		require.NoError(t, b.Publish(ctx, message("", "block", 2)))
		waiting := b.PublishAsync(ctx, message("", "block", 6))
		d, err := b.Get(ctx, "block")
		require.NoError(t, err)
		require.Equal(t, bodies[2], d.Body)
		require.NoError(t, d.AckSync(ctx))
		require.NoError(t, waiting.Wait(ctx))
		require.Equal(t, []bool{i == 0}, keptCompressed(t, b, "block"))
		require.ErrorIs(t, b.Publish(ctx, Message{RoutingKey: "other", Body: testText(60_000)}), ErrQueueFull, "it counts as published")
		require.ErrorIs(t, b.Publish(ctx, Message{RoutingKey: "other", Body: testText(100_000)}), ErrInvalid)

		for k := range 3 { // to the dead
			d, err := b.Get(ctx, "q")
			require.NoError(t, err)
			require.Equal(t, bodies[k], d.Body)
			require.NoError(t, d.Reject("for the test"))
		}
		require.Eventually(t, func() bool { return len(browseWhole(t, b, "graves")) == 3 }, time.Minute, time.Millisecond)
		graves := browseWhole(t, b, "graves")
		require.Equal(t, []bool{i == 0, false, i == 0}, keptCompressed(t, b, "graves"))
		require.NoError(t, b.Edit(ctx, graves[1].Locator, func(m *Message) error { m.Body = testText(3000); return nil }))
		require.Equal(t, []bool{i == 0, i == 0, i == 0}, keptCompressed(t, b, "graves"))

		done, err := b.Replay(ctx, "graves", ReplayOptions{})
		require.NoError(t, err)
		require.Equal(t, 3, done.Moved)
		require.Equal(t, []bool{i == 0, i == 0, i == 0}, keptCompressed(t, b, "q")[4:])

		// The same after a restart of a broker with the other setting.
		require.NoError(t, b.Close())
		b = openCompressing(t, fs, 1-how)
		for _, q := range b.Stats().Queues {
			seen[i] += fmt.Sprintln(q.Name, q.Ready, q.Bytes)
			for _, m := range browseWhole(t, b, q.Name) {
				seen[i] += fmt.Sprintf("%s %x %v\n", m.ID, m.Body, len(m.Deaths))
			}
		}
		require.NoError(t, b.Close())
	}
	require.Equal(t, seen[1], seen[0])
}

func browseWhole(t *testing.T, b *Broker, queue string) (all []*Browsed) {
	t.Helper()
	for m, err := range b.Browse(context.Background(), queue, BrowseOptions{}) {
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

// TestCompressedMovesAsItIs: a dead letter is not compressed anew, and comes whole from a broker that compresses nothing.
func TestCompressedMovesAsItIs(t *testing.T) {
	ctx := context.Background()
	fs := new(storage.MemFS)
	b := openCompressing(t, fs, CompressAuto)
	require.NoError(t, b.Declare(ctx, Queue{Name: "q", MaxRetries: NoRetry}))
	require.NoError(t, b.Publish(ctx, Message{RoutingKey: "q", Body: testText(5000)}))
	require.NoError(t, b.Close())
	b = openCompressing(t, fs, CompressOff)
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.NoError(t, d.Nack())
	require.Eventually(t, func() bool { return len(browseWhole(t, b, ParkingQueue)) == 1 }, time.Minute, time.Millisecond)
	require.Equal(t, []bool{true}, keptCompressed(t, b, ParkingQueue))
	d, err = b.Get(ctx, ParkingQueue)
	require.NoError(t, err)
	require.Equal(t, testText(5000), d.Body)
	require.Len(t, d.Deaths, 1)
	require.NoError(t, b.Close())
}

// compressedCommand is an enqueue whose body is block, which is to be longer by saved.
func compressedCommand(block []byte, saved int) []byte {
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, 1), []queueID{1})
	return appendCompressed(cmd, &Message{RoutingKey: "key"}, &compressed{block: block, saved: saved}, messageID{1, 2}, nil)
}

func TestCompressedRefused(t *testing.T) {
	body := testText(2000)
	block := s2.Encode(nil, body)
	saved := len(body) - len(block)
	bad := append([]byte(nil), block...)
	bad[len(bad)/2] ^= 0x55
	huge := s2.Encode(nil, make([]byte, 1<<20))
	for _, c := range []struct {
		name   string
		cmd    []byte
		broken bool // already for a machine
	}{
		{"nothing saved", compressedCommand(block, 0), true},
		{"less saved than it costs", compressedCommand(block, 2), true},
		{"more saved than a body can have", compressedCommand(block, MaxBodyBytes+1), true},
		{"too little", compressedCommand(block, saved-1), false},
		{"too much", compressedCommand(block, saved+1), false},
		{"a block of more than it says", compressedCommand(huge, 100), false},
		{"no block", compressedCommand(nil, 100), false},
		{"half a block", compressedCommand(block[:len(block)/2], saved+len(block)-len(block)/2), false},
		{"no block, with the length of one", compressedCommand(append(wire.AppendUvarint(nil, 2000), make([]byte, 30)...), 2000-32), false},
	} {
		env, err := envelopeOf(c.cmd)
		if c.broken {
			require.ErrorIs(t, err, wire.ErrMalformed, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		_, err = env.expand(c.cmd)
		require.ErrorIs(t, err, wire.ErrMalformed, c.name)
	}
	good := compressedCommand(block, saved)
	env, err := envelopeOf(good)
	require.NoError(t, err)
	size := env.plain(len(good))
	require.Equal(t, size, uint32(len(appendMessage(appendTargets(appendHeader(nil, cmdEnqueue, 1), []queueID{1}),
		&Message{RoutingKey: "key", Body: body}, messageID{1, 2}, nil))), "it counts as if it was not compressed")
	whole, err := env.expand(append(make([]byte, 0, int(size)+messageRoom), good...))
	require.NoError(t, err)
	require.Equal(t, body, env.body)
	require.Equal(t, body, whole[len(whole)-len(body):])
}

// TestCompressedDamaged: a message whose block is none any more is unreadable, and the others are not.
func TestCompressedDamaged(t *testing.T) {
	ctx := context.Background()
	b := openCompressing(t, new(storage.MemFS), CompressAuto)
	require.NoError(t, b.Declare(ctx, Queue{Name: "q"}))
	def, _ := b.topology.Load().queue("q")
	block := s2.Encode(nil, testText(5000))
	_, err := b.placement.first.call(ctx, durably, func(dst []byte, at instant) []byte { // a log never holds this
		dst = appendTargets(appendHeader(dst, cmdEnqueue, at), []queueID{def.id})
		return appendCompressed(dst, &Message{ID: "lies"}, &compressed{block: block, saved: 100 << 20}, messageID{}, nil)
	})
	require.NoError(t, err)
	require.NoError(t, b.Publish(ctx, Message{RoutingKey: "q", ID: "good", Body: testText(5000)}))
	_, err = b.Get(ctx, "q")
	require.ErrorIs(t, err, ErrStorage)
	d, err := b.Get(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "good", d.ID)
	require.NoError(t, b.Close())
}

func FuzzExpand(f *testing.F) {
	f.Add(s2.Encode(nil, testText(2000)), 1900, 0)
	f.Add(s2.Encode(nil, make([]byte, 5000)), 4900, 5000)
	f.Add([]byte{}, 10, 10)
	f.Fuzz(func(t *testing.T, block []byte, saved, room int) {
		saved, room = min(max(saved, 0), 1<<20), min(max(room, 0), 1<<20)
		cmd := compressedCommand(block, saved)
		cmd = append(make([]byte, 0, len(cmd)+room), cmd...)
		env, err := envelopeOf(cmd)
		if err != nil {
			return
		}
		head := bytes.Clone(cmd[:len(cmd)-len(block)])
		whole, err := env.expand(cmd)
		if err != nil {
			require.ErrorIs(t, err, wire.ErrMalformed)
			return
		}
		want, err := s2.Decode(nil, block)
		require.NoError(t, err)
		require.Len(t, want, len(block)+saved)
		require.True(t, bytes.Equal(want, env.body))
		require.True(t, bytes.Equal(head, whole[:len(head)]), "it wrote over what comes before the body")
	})
}
