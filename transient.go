package bourse

// Transient queues. The catalogue in the first shard knows them, so that they are routed to as others are; what they hold never comes
// to the log. Each has a shard of its own on a memoryLog: a machine as any other, fed by the goroutines that propose.

// lanes are the shards of the transient queues. A map that was stored is not changed any more.
type lanes map[queueID]*shard

// follow opens a lane for each transient queue of t that has none, and closes those of queues that are gone. It is
// called with the first shard's lock, or before anything runs.
func (p *placement) followTransient(t *topology) {
	if p.first.log == nil {
		return // what a log that is replayed says of an earlier process
	}
	had := lanes{}
	if before := p.lanes.Load(); before != nil {
		had = *before
	}
	if len(had) == 0 && t.transients.Len() == 0 {
		return
	}
	now, changed := make(lanes, t.transients.Len()), false
	t.transients.Ascend(func(n numbered) bool {
		s := had[n.id]
		if s == nil {
			changed = true
			s = newShard(p.b, shardOf(n.id), newMachine(roleQueue, topologyOf(*n.def)))
			s.inMemory = true
			log := newMemoryLog(s)
			log.gate = &p.b.gate
			s.Lead(true)
			s.opened(log)
		}
		now[n.id] = s
		return true
	})
	for id, s := range had {
		if now[id] == nil {
			changed = true
			p.closeLane(s, ErrQueueGone)
		}
	}
	if changed {
		p.lanes.Store(&now)
	}
}

// closeLane closes the shard of a queue that is gone, unless close will. Its subscriptions have ended when it returns; its lock
// is taken under that of the first shard here, and never the other way round.
func (p *placement) closeLane(s *shard, why error) {
	s.endAll(why)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.closing.Go(func() { _ = s.close(why) }) // ends by itself; stop waits for it
	}
}
