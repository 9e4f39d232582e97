// Package replicate is the engine that makes a bourse broker survive the loss of machines:
// every shard's log is a Raft group (Dragonboat) over the nodes of a cluster.
//
//	node, err := replicate.Start(replicate.Config{
//		NodeID:      1,
//		RaftAddress: "a.example:7000",
//		Members:     map[uint64]string{1: "a.example:7000", 2: "b.example:7000", 3: "c.example:7000"},
//		Dir:         "data",
//		CAFile:      "ca.pem", CertFile: "a.pem", KeyFile: "a.key",
//	})
//	b, err := bourse.NewBroker(ctx, bourse.Options{Engine: node})
//
// # What holds
//
//   - A command whose Done came without an error is on the disks of a majority of the
//     members, synced, and is never lost while a majority of the disks lives.
//   - All replicas apply the same commands in the same order, and give them the same Index,
//     Ref and Answer.
//   - A command is applied once, also when this package had to send it several times, and
//     commands of one goroutine at one node are applied in the order of the calls.
//   - ErrNotLeader and ErrClosed mean that the command is not in the log and never will be.
//     ErrUnknownOutcome comes only if this node was cut off, crashed or fell so far behind
//     that it was sent a snapshot, with the command on its way.
//   - Proposals are accepted where the shard is led, after the node has applied all that
//     earlier leaders committed. A leader that was deposed stops to act as soon as it
//     applies its successor's first entry or hears of it, whichever is first; until
//     then two nodes may act, but only one can have a command committed.
//   - Every proposal is as durable as a durable one.
//
// # What is not there yet
//
//   - Members are fixed. A node cannot join, leave or be replaced, every member holds a
//     replica of every shard, and leaders stay where elections put them.
//   - A node that does not lead refuses; it does not forward.
//   - Kept commands are held in memory, and go into every snapshot.
//   - The log store does not notice everything. See the next section.
//
// # The log store
//
// The Raft library keeps its log in a Pebble of 2022. That opens without an error after
// damage to its newest file, or with that file cut short, and goes on without what was
// behind the damage. Such a node has forgotten commands that it acknowledged, and votes as
// if it had not. Until this package brings a log store of its own: a node whose disk was
// damaged, restored from a copy or lost must not come back with its NodeID.
//
// # Crash-only
//
// The Raft library ends the process when it cannot write or sync its log, when the disk is
// full, and when it finds its own files inconsistent. It is right to: a node that goes
// on after a failed sync lies. Run nodes under a supervisor, and keep space free. Starting
// again is safe.
package replicate
