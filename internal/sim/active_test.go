package sim

import "testing"

// Goal and method as in observer_test.go, for queues with a single active consumer.

const (
	clara = 1<<32 | 3 // of queue 4, prefetch 1
	dora  = 1<<32 | 4 // of queue 4, prefetch 2, of a higher rank
)

// single declares queue 4, with clara and dora, the first of whom is active.
func (h *history) single() {
	h.do(Command{Kind: Declare, Spec: Spec{Name: "c", Levels: 1, Retries: Unlimited, Deadline: second, Single: true}}, Outcome{Number: 4})
	h.do(Command{Kind: Attach, Queue: 4, Consumer: clara, Prefetch: 1}, Outcome{Effects: []Effect{active(clara, 1)}})
	h.do(Command{Kind: Attach, Queue: 4, Consumer: dora, Prefetch: 2, Rank: 1}, Outcome{})
}

func active(consumer, epoch uint64) Effect {
	return Effect{Kind: Active, Queue: 4, Consumer: consumer, Seq: 4<<32 | epoch}
}

// leave ends clara, whose loan comes back.
func (h *history) leave(effects ...Effect) {
	h.do(Command{Kind: Detach, Queue: 4, Consumer: clara}, Outcome{Effects: effects})
}

// again is the second delivery of a message that clara held.
func (h *history) again(consumer, ref uint64) Effect {
	e := h.loan(4, consumer, ref)
	e.Deliveries = 2
	return e
}

func TestObserverFindsActive(t *testing.T) {
	for name, run := range map[string]func(h *history){
		"one that stands by is served": func(h *history) {
			h.publish(7, 0, 4, h.loan(4, dora, h.next()))
		},
		"two hold messages": func(h *history) {
			h.publish(7, 0, 4, h.loan(4, clara, h.next()))
			h.publish(8, 0, 4, h.loan(4, dora, h.next()))
		},
		"a higher rank takes over": func(h *history) {
			h.do(Command{Kind: Tick}, Outcome{Effects: []Effect{active(dora, 2)}})
		},
		"a message goes before the next is active": func(h *history) {
			h.publish(7, 0, 4, h.loan(4, clara, h.next()))
			h.leave(h.again(dora, h.ref), active(dora, 2))
		},
		"nobody follows": func(h *history) {
			h.leave()
		},
		"the rank does not count": func(h *history) {
			h.do(Command{Kind: Attach, Queue: 4, Consumer: dora + 1, Prefetch: 1}, Outcome{})
			h.leave(active(dora+1, 2))
		},
		"one who takes is active": func(h *history) {
			h.do(Command{Kind: Attach, Queue: 4, Consumer: dora + 1, Rank: 9}, Outcome{})
			h.leave(active(dora+1, 2))
		},
		"a queue of another kind": func(h *history) {
			h.do(Command{Kind: Tick}, Outcome{Effects: []Effect{{Kind: Active, Queue: 2, Consumer: anna, Seq: 1}}})
		},
		"an epoch comes again": func(h *history) {
			w := Runner{obs: h.o, epochs: map[string]uint64{}}
			for range 2 {
				e := active(clara, 1)
				w.hear(&e)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t)
			h.single()
			if found := judged(func() { run(h) }); found == nil || found.Rule != "I26" {
				t.Errorf("found %v, want I26", found)
			}
		})
	}
	h := newHistory(t)
	h.single()
	if found := judged(func() {
		h.publish(7, 0, 4, h.loan(4, clara, h.next()))
		ref := h.ref
		h.do(Command{Kind: Take, Queue: 4, Consumer: dora}, Outcome{Code: Held})
		h.leave(active(dora, 2), h.again(dora, ref))
		h.do(Command{Kind: Settle, Queue: 4, Consumer: clara, Tag: 1, Slot: 1}, Outcome{Code: Stale})
		h.do(Command{Kind: Detach, Queue: 4, Consumer: dora}, Outcome{})
	}); found != nil {
		t.Error(found)
	}
}
