package bourse

import "context"

// Goal: tests from outside can compare whole topologies, and see what must not grow. Method: the encoding, which is equal for
// equal topologies; counts.

func (b *Broker) EncodedTopology() []byte { return b.topology.Load().appendTo(nil) }

// Pullers is how many queues a consumer for Get is kept for.
func (b *Broker) Pullers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pullers)
}

// PerQueue gives every queue of e a log of its own.
func PerQueue(e Engine) Engine { return perQueue{e} }

// Resting reports whether nobody who waited for room is on the way into a queue.
func (b *Broker) Resting() bool {
	for def := range b.topology.Load().queues {
		shard := b.placement.of(def.id)
		if shard == nil {
			continue
		}
		shard.mu.Lock()
		door := shard.doors[def.id]
		flying := door != nil && door.flying > 0
		shard.mu.Unlock()
		if flying {
			return false
		}
	}
	return true
}

// Annexes is how many queues have one.
func (b *Broker) Annexes() int {
	if open := b.placement.annexes.open.Load(); open != nil {
		return len(*open)
	}
	return 0
}

// Pause is what Work does when it stops.
func (s *Subscription) Pause() { s.pause() }

// Routes reports whether the broker routes to a queue of that name.
func (b *Broker) Routes(queue string) bool {
	_, ok := b.topology.Load().queue(queue)
	return ok
}

// Served waits until consumers can attach to every queue that is led here.
func (b *Broker) Served(ctx context.Context) {
	for _, s := range b.placement.all() {
		_ = s.serves(ctx) // an error: it is led elsewhere
	}
}

// Weighed is what the budget counts of messages and ids.
func (b *Broker) Weighed() int64 {
	m := &b.gate.memory
	return m.messages.Load() + m.bodies.Load() + m.ids.Load()
}

// Rewrite reports whether what is in testdata is to be made anew.
func Rewrite() bool { return *rewriteFlag }

// CommandKinds is how many kinds of commands a machine knows.
func CommandKinds() (n int) {
	knows := func(kind int) (known bool) {
		defer func() {
			_, newer := recover().(newerCommand) // the others say that the command is cut off
			known = !newer
		}()
		newMachine(roleAll, newTopology(topologyLimits{})).apply(0, appendHeader(nil, commandKind(kind), 1), nil)
		return true
	}
	for knows(n + 1) {
		n++
	}
	return n
}
