package bourse

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: a view is the state of its moment, whatever the machine does afterwards and while the view is written. Method: a queue goes
// through random commands; now and then its snapshot is taken at once, and a view that is written on another goroutine while
// the commands go on, or only at the end. Both must be equal. The race detector watches the sharing.

func TestViewIsOfItsMoment(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, seed))
	m := newMachine(roleAll, newTopology(topologyLimits{}))
	now, ref := instant(1), Ref(0)
	held := []effect{} // loans without a verdict
	apply := func(cmd []byte) Answer {
		ref++
		res, out := m.apply(ref, cmd, nil)
		for _, e := range out {
			if e.kind == effectDeliver {
				held = append(held, e)
			}
		}
		return res.answer
	}
	session := uint32(apply(appendOpen(nil, now, false)).Code - answerNumber)
	q := Queue{Name: "q", Priorities: 3, MaxRetries: 3, Retry: Backoff{Min: time.Millisecond}}
	apply(appendDeclare(nil, now, 0, topologyLimits{}, []Declaration{q}))
	def, _ := m.topology.queue("q")
	c := consumerID(session)<<32 | 1
	apply(attach{queue: def.id, consumer: c, prefetch: 20}.appendTo(nil, now))

	type taken struct{ want, got []byte }
	results := make(chan taken, 1000)
	views := 0
	write := func(v *view, want []byte) {
		var got []byte
		_ = v.write(func(piece []byte) error { got = append(got, piece...); return nil })
		results <- taken{want, got}
	}
	var late []func()
	for step := range 20000 {
		now += instant(r.IntN(int(time.Millisecond / 10)))
		switch k := r.IntN(10); {
		case k < 5 && m.queues[def.id].size() < 3000:
			cmd := appendTargets(appendHeader(nil, cmdEnqueue, now), []queueID{def.id})
			apply(appendMessage(cmd, &Message{Priority: uint8(r.IntN(3)), Body: []byte("x")}, messageID{1, 1}, nil))
		case k < 9 && len(held) > 0:
			i := r.IntN(len(held))
			e := held[i]
			held = slices.Delete(held, i, i+1)
			v := []verdict{verdictAck, verdictAck, verdictAck, verdictNack, verdictReject, verdictRelease}[r.IntN(6)]
			s := settle{queue: def.id, consumer: c, tag: e.tag, slot: e.slot, verdict: v}
			s.pause = time.Duration(r.IntN(3)) * time.Millisecond
			apply(s.appendTo(nil, now))
		default:
			apply(appendTick(nil, now))
		}
		if step%200 == 0 {
			v, want := m.view(), m.appendTo(nil)
			views++
			if step%400 == 0 {
				go write(v, want) // its result is waited for below
			} else {
				late = append(late, func() { write(v, want) })
			}
		}
	}
	for _, f := range late {
		f()
	}
	for range views {
		got := <-results
		require.Equal(t, got.want, got.got, "seed %d", seed)
	}
	m.check()
}
