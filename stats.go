package bourse

import "time"

// Stats is a picture of a broker at one moment.
type Stats struct {
	Queues     []QueueStats    // by name; ParkingQueue among them
	Schedules  []ScheduleStats // by name
	Published  uint64          // messages confirmed since the broker was opened, the unroutable included
	Unroutable uint64          // those of them that were dropped, since nothing was bound for them
	Pending    int             // publishes not yet confirmed
	Storage    StorageStats    // of the local log; zero with another Engine
	Memory     MemoryStats
}

// StorageStats are figures of the local log.
type StorageStats struct {
	Segments    int    // files of the log that are in use
	Spares      int    // files prepared for use
	Bytes       int64  // size of both
	References  int64  // of messages in queues to the log
	Records     uint64 // written since the broker was opened
	Written     uint64 // bytes of them
	Syncs       uint64 // since the broker was opened
	Checkpoints uint64 // likewise
	Tail        int64  // bytes of log since the last checkpoint, which an open would replay
	DiskFull    bool   // there is no room for more segments: publishes get ErrDiskFull
	DiskLow     bool   // less than Options.MinFreeDisk was free when it was last looked at: likewise
	DiskFree    int64  // bytes free now in the file system of the directory; -1: there is no telling
}

// ScheduleStats is the state of one schedule. Totals are since it was declared, and survive a restart.
type ScheduleStats struct {
	Name       string
	Next       time.Time // of the next fire; zero: there is none, or it is about to be found. In the past: it is being carried out
	Last       time.Time // of the last one, by the schedule; zero: none yet
	Fired      uint64    // messages published
	Skipped    uint64    // fires passed over by CatchUp; of each gap up to 10,000 are counted
	Unroutable uint64    // fires whose message was routed to no queue
}

func (b *Broker) scheduleStats() (all []ScheduleStats) {
	first := b.placement.first
	first.mu.Lock()
	defer first.mu.Unlock()
	for def := range first.m.topology.schedules {
		a := first.m.agenda.find(def.id)
		s := ScheduleStats{Name: a.Name, Fired: a.fired, Skipped: a.skipped, Unroutable: a.unroutable}
		if a.due != 0 && a.due != never {
			s.Next = time.Unix(0, int64(a.due))
		}
		if a.last != 0 {
			s.Last = time.Unix(0, int64(a.last))
		}
		all = append(all, s)
	}
	return all
}

// QueueStats is the state of one queue. Totals are since it was declared, and survive a restart.
type QueueStats struct {
	Name      string
	Ready     int   // wait for a consumer
	Unacked   int   // are on loan
	Delayed   int   // wait for a time
	Dying     int   // are on the way to a dead-letter queue
	Bytes     int64 // of all of them, headers and names included
	Transient int   // of all of them those that are in memory only; totals count such until the broker is closed
	Consumers int
	Waiting   int // publishes that wait for room here, see Block

	Length      int64 // messages that count against MaxMessages
	LengthBytes int64 // their bytes, which count against MaxBytes
	MaxMessages int64 // the limits of the queue; 0: none
	MaxBytes    int64

	Oldest time.Duration // how long the next message has waited since it arrived; 0 if none is ready
	Paused bool          // by Broker.Pause
	// HeldUntil is until when Queue.Rate allows no delivery, whether any message waits or not; zero: it allows one now.
	HeldUntil time.Time
	Epoch     uint64       // of the active consumer, see Queue.SingleActiveConsumer; 0: there is none, or the queue is not of that kind
	Levels    []LevelStats // by level, from 0; nil if there is only one

	Enqueued  uint64 // messages that arrived
	Delivered uint64 // deliveries made
	Acked     uint64 // messages done
	Failed    uint64 // deliveries that went wrong
	Released  uint64 // deliveries that came back without a failure
	TimedOut  uint64 // those of Failed whose deadline passed
	Dead      uint64 // messages that died
	Expired   uint64 // those of Dead that waited too long
	Evicted   uint64 // those of Dead that had to go at a limit
	// Discarded are those of Dead that were dropped: by DeadLetter.Discard, by Cancel, or expired or evicted without a
	// dead-letter exchange.
	Discarded uint64
	Purged    uint64 // messages that Purge removed
	Cancelled uint64 // messages that Cancel removed, but for the dying
	Replayed  uint64 // messages that Replay took back to the queue they had died in
	Rejected  uint64 // publishes that were refused at a limit

	IDs        int    // that Queue.Dedup remembers, some of which may have expired
	InboxIDs   int    // likewise, that the inbox does
	Duplicates uint64 // publishes that repeated one of them
	Forgotten  uint64 // IDs that were forgotten early, since there were Dedup.MaxIDs, or Inbox.MaxIDs
	Done       uint64 // those of Acked that Inbox.Done ended
}

// Stats returns a picture of the broker. It stops the application of commands for a moment, so call it every few
// seconds rather than for each message.
func (b *Broker) Stats() Stats {
	now := b.now()
	out := Stats{Published: b.published.Load(), Unroutable: b.unroutable.Load()}
	out.Pending = int(b.gate.loaded().count())
	out.Memory = b.memoryStats()
	if e, ok := b.engine.(*localEngine); ok {
		out.Storage = e.stats()
	}
	out.Schedules = b.scheduleStats()
	for def := range b.topology.Load().queues {
		if q, ok := b.queueStats(def.id, now); ok {
			out.Queues = append(out.Queues, q)
		}
	}
	return out
}

// QueueStats returns the state of one queue; false if there is none of that name.
func (b *Broker) QueueStats(queue string) (QueueStats, bool) {
	def, ok := b.topology.Load().queue(queue)
	if !ok {
		return QueueStats{}, false
	}
	return b.queueStats(def.id, b.now())
}

func (b *Broker) queueStats(id queueID, now instant) (QueueStats, bool) {
	shard := b.placement.of(id)
	if shard == nil {
		return QueueStats{}, false
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	q := shard.m.queues[id]
	if q == nil {
		return QueueStats{}, false
	}
	stats := q.stats(now)
	stats.Waiting = shard.waitersLocked(id)
	if annex := b.placement.annex(id); annex != nil {
		annex.mu.Lock()
		defer annex.mu.Unlock()
		if beside := annex.m.queues[id]; beside != nil {
			stats.add(beside.stats(now))
		}
	}
	return stats, true
}

// add counts what is in the annex of a queue.
func (s *QueueStats) add(a QueueStats) {
	s.Transient = a.Ready + a.Unacked + a.Delayed + a.Dying
	s.Ready += a.Ready
	s.Unacked += a.Unacked
	s.Delayed += a.Delayed
	s.Dying += a.Dying
	s.Bytes += a.Bytes
	s.Oldest = max(s.Oldest, a.Oldest)
	for i := range min(len(a.Levels), len(s.Levels)) { // an Update may be on its way
		s.Levels[i].Ready += a.Levels[i].Ready
		s.Levels[i].Oldest = max(s.Levels[i].Oldest, a.Levels[i].Oldest)
	}
	s.Enqueued += a.Enqueued
	s.Delivered += a.Delivered
	s.Acked += a.Acked
	s.Failed += a.Failed
	s.Released += a.Released
	s.TimedOut += a.TimedOut
	s.Dead += a.Dead
	s.Expired += a.Expired
	s.Discarded += a.Discarded
	s.Purged += a.Purged
	s.Cancelled += a.Cancelled
}

func (q *queue) stats(now instant) QueueStats {
	s := QueueStats{
		Name: q.def.Name, Ready: q.ready.n, Unacked: q.ledger.n, Delayed: q.delayedLen(), Dying: q.dyingLen(),
		Bytes:     q.ready.bytes + q.ledger.bytes + q.delayedBytes + q.dyingBytes,
		Consumers: q.consumers(),
		Paused:    q.valve.paused,
		Epoch:     q.epoch(),
		Levels:    q.levels(now),
		Enqueued:  q.count.Enqueued, Delivered: q.count.Delivered, Acked: q.count.Acked, Failed: q.count.Failed,
		Released: q.count.Released, TimedOut: q.count.TimedOut, Dead: q.count.Dead,
		Expired: q.count.Expired, Evicted: q.count.Evicted, Discarded: q.count.Discarded, Rejected: q.count.Rejected,
		Purged: q.count.Purged, Cancelled: q.count.Cancelled, Replayed: q.count.Replayed,
		IDs: q.ids.len(), InboxIDs: q.inbox.len(), Duplicates: q.count.Duplicates, Forgotten: q.count.Forgotten,
		Done: q.count.Done, MaxMessages: q.def.MaxMessages, MaxBytes: q.def.MaxBytes,
	}
	if at := q.heldUntil(now); at != 0 {
		s.HeldUntil = time.Unix(0, int64(at))
	}
	s.Length, s.LengthBytes = q.length()
	if q.ready.n > 0 {
		s.Oldest = max(0, time.Duration(now-q.foremost(now).arrived))
	}
	return s
}
