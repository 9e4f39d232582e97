package bourse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boursemq/bourse/internal/wire"
)

// shard is the shell around a machine: it feeds it from the log, and does what the machine orders. It
// implements Machine.
type shard struct {
	b    *Broker // fixed, as number and lost are
	log  Log     // fixed after opened, before which nothing is proposed
	lost bool    // consumers of an earlier session went down with their process

	number uint64
	// inMemory: on a memoryLog. What it holds is gone with it.
	inMemory bool
	base     *shard // of which this is the annex for a queue; nil: it is none

	gone    atomic.Bool // closed since its queue is gone
	leads   atomic.Bool // leading, for who must not take mu
	syncing sync.Mutex  // held by syncAnnex

	mu        sync.Mutex // guards below; taken before Subscription.mu, never around a proposal
	m         *machine
	out       []effect // kept for its memory
	leading   bool
	subs      map[consumerID]*Subscription
	doors     map[queueID]*door // where publishes wait; none that is empty
	consumers uint32            // numbers given in this session
	session   uint32
	serving   error           // why consumers cannot attach; nil while a session is open
	turned    chan struct{}   // closed when serving or leading changes, and replaced
	over      bool            // it is being closed; serving stays as it is
	starts    sync.WaitGroup  // goroutines that open a session, or propose for a door
	turns     uint64          // times it began to lead
	touched   []*Subscription // got something in this Apply
	weight    weight          // of m, as far as the budget was told
	stopWake  func() bool     // stops the timer of the next tick; nil: none is set
}

func newShard(b *Broker, number uint64, m *machine) *shard {
	_, local := b.engine.(*localEngine)
	return &shard{
		b: b, number: number, lost: local, m: m, subs: make(map[consumerID]*Subscription),
		doors: make(map[queueID]*door), serving: errNoSession, turned: make(chan struct{}),
	}
}

// Apply implements Machine. It runs on the log's goroutine.
func (s *shard) Apply(bodies Bodies, entries []Entry) {
	s.mu.Lock()
	for i := range entries {
		e := &entries[i]
		var res applied
		res, s.out = s.m.apply(e.Ref, e.Cmd, s.out[:0])
		e.Answer = res.answer
		if res.kept > 0 {
			bodies.Keep(e.Ref, res.kept)
		}
		s.run(bodies, s.out)
	}
	if cap(s.out) > 1<<16 {
		s.out = nil
	}
	s.wakeTouchedLocked()
	s.weighLocked(s.m.weigh())
	if len(s.doors) > 0 {
		s.letAllInLocked()
	}
	s.mu.Unlock()
}

// run does what the effects say. While this replica does not lead, only what concerns its own store.
func (s *shard) run(bodies Bodies, effects []effect) {
	for i := range effects {
		e := &effects[i]
		switch {
		case e.kind == effectFree:
			bodies.Free(e.ref)
			continue
		case e.kind == effectTopology:
			s.b.placement.changed(s.m.topology)
			continue
		case e.kind == effectRetire: // the affair of who leads the catalogue
			s.b.janitor.add(e.queue)
			continue
		case !s.leading || s.log == nil: // leadLocked orders it anew
			continue
		}
		switch e.kind {
		case effectFree, effectTopology, effectRetire: // done above
		case effectDeliver:
			if sub := s.subs[e.consumer]; sub != nil {
				if len(sub.incoming) == 0 {
					s.touched = append(s.touched, sub)
				}
				sub.incoming = append(sub.incoming, e.lent())
			}
		case effectActive:
			if sub := s.subs[e.consumer]; sub != nil {
				sub.epoch.Store(e.seq)
			}
		case effectWithdraw:
			if sub := s.subs[e.consumer]; sub != nil {
				sub.push() // it may be among these
				sub.withdraw(e.tag)
			}
		case effectGone:
			if sub := s.subs[e.consumer]; sub != nil {
				s.endLocked(sub, ErrQueueGone)
			}
		case effectForward:
			s.b.mover.add(order{effect: *e})
		case effectFire:
			s.b.scheduler.add(scheduleID(e.seq))
		case effectWake:
			s.setWakeLocked(e.at)
		}
	}
}

// wakeTouchedLocked wakes each consumer once for all that a batch brought it.
func (s *shard) wakeTouchedLocked() {
	for i, sub := range s.touched {
		sub.push()
		sub.wake()
		s.touched[i] = nil
	}
	s.touched = s.touched[:0]
}

// setWakeLocked sets the timer of the next tick; at 0 there is none.
func (s *shard) setWakeLocked(at instant) {
	if s.stopWake != nil {
		s.stopWake()
		s.stopWake = nil
	}
	if at == 0 || s.b.closing.Load() {
		return
	}
	s.stopWake = s.b.clock.AfterFunc(time.Duration(at-s.b.now()), func() { s.ring(at) })
}

// retryRing is the pause after a tick that did not find room on a full disk.
const retryRing = time.Second

// ring proposes the tick that is due at. The machine asks once for it, so a full disk must not swallow it. Another error means
// that the log is closed, has failed or is led elsewhere: then nothing is due here any more.
func (s *shard) ring(at instant) {
	err := s.post(func(dst []byte, now instant) []byte { return appendTick(dst, max(now, at)) })
	if errors.Is(err, ErrDiskFull) {
		s.b.clock.AfterFunc(retryRing, func() { s.ring(at) })
	}
}

// opened gives the shard its log, and starts what had to wait for it.
func (s *shard) opened(log Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = log
	s.reportEnding()
	if s.leading {
		s.leadLocked()
	}
}

// Lead implements Machine. It may come before opened.
func (s *shard) Lead(leading bool) {
	s.leads.Store(leading)
	if !leading {
		defer func() { // once mu is free
			s.endWaits(s.b.lostLog)
			s.b.placement.closeAnnexes(s.b.lostLog, func(_ queueID, annex *shard) bool { return annex.base == s })
		}()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.leading == leading:
	case leading:
		s.leading = true
		if s.log != nil {
			s.leadLocked()
		}
	default:
		s.leading = false
		s.setWakeLocked(0)
		s.serveLocked(errNoSession)
		for _, sub := range s.subs {
			s.endLocked(sub, s.b.lostLog)
		}
	}
}

// leadLocked opens a session, in which consumers can attach, and then does what the state orders anew. Not before: what comes due
// would be lent to consumers of the session before, which nobody is any more, and fail with them.
func (s *shard) leadLocked() {
	s.turns++
	turn := s.turns
	s.starts.Go(func() { // ends with the answer, which Log.Close brings at the latest
		answer, err := s.call(context.Background(), lazily, func(dst []byte, at instant) []byte {
			return appendOpen(dst, at, s.lost)
		})
		if err != nil {
			s.b.log.Warn("no session was opened", "shard", s.number, "err", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if turn == s.turns && s.leading && !s.over {
			s.out = s.m.lead(s.out[:0])
			s.run(nil, s.out)
		}
		if err != nil {
			if turn == s.turns { // else another open is on its way, or has come
				s.serveLocked(err)
			}
			return
		}
		// If leadership was lost and won again meanwhile, another open is on its way. It ends this session, and
		// whoever attaches in it until then must be told.
		session := uint32(answer.Code - answerNumber)
		if !s.leading || s.over || session <= s.session {
			return
		}
		s.session, s.consumers = session, 0
		for id, sub := range s.subs {
			if id.session() != session {
				s.endLocked(sub, s.b.lostLog)
			}
		}
		s.serveLocked(nil)
		s.b.placement.wake() // it may have missed a change of its queue
	})
}

// errNoSession says that a session is about to be opened.
var errNoSession = errors.New("no session yet")

func (s *shard) serveLocked(err error) {
	if s.over {
		return
	}
	s.serving = err
	close(s.turned)
	s.turned = make(chan struct{})
}

// serves waits until consumers can attach here.
func (s *shard) serves(ctx context.Context) error {
	for {
		s.mu.Lock()
		serving, leading, turned := s.serving, s.leading, s.turned
		s.mu.Unlock()
		switch {
		case serving != nil && !errors.Is(serving, errNoSession):
			return serving
		case !leading:
			return s.b.lostLog
		case serving == nil:
			return nil
		}
		select {
		case <-turned:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Snapshot implements Machine.
func (s *shard) Snapshot() (io.WriterTo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return snapshot{s.m.view()}, nil
}

// snapshot writes a view.
type snapshot struct{ view *view }

func (s snapshot) WriteTo(w io.Writer) (n int64, err error) {
	err = s.view.write(func(piece []byte) error {
		k, err := w.Write(piece)
		n += int64(k)
		return err
	})
	return n, err
}

// snapshotReader reads r as it comes if r says how long it is, as a bytes.Reader does, and else as a whole.
func snapshotReader(r io.Reader) (wire.Reader, error) {
	if sized, ok := r.(interface{ Len() int }); ok {
		return wire.NewStreamReader(r, sized.Len()), nil
	}
	b, err := io.ReadAll(r)
	return wire.NewReader(b), err
}

// Restore implements Machine.
func (s *shard) Restore(bodies Bodies, r io.Reader) error {
	input, err := snapshotReader(r)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	m, err := readMachine(input, func(ref Ref) { bodies.Keep(ref, 1) })
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.role != s.m.role {
		return fmt.Errorf("restore: shard %d: the data is of another placement", s.number)
	}
	s.m = m
	s.weighNothingLocked()
	s.weighLocked(m.weigh())
	s.reportEnding()
	if m.role != roleQueue {
		s.b.placement.changed(m.topology)
	}
	return nil
}

// isDying reports whether the message still waits to be moved.
func (s *shard) isDying(queue queueID, seq uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.m.queues[queue]
	return q != nil && q.isDying(seq)
}

// appointment is a copy of the state of a schedule, and whether there is one.
func (s *shard) appointment(id scheduleID) (appointment, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.m.agenda.find(id)
	if a == nil {
		return appointment{}, false
	}
	return *a, true
}

// newConsumer gives an id that was never used before.
func (s *shard) newConsumer() consumerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumers++
	return consumerID(s.session)<<32 | consumerID(s.consumers)
}

func (s *shard) register(sub *Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs[sub.id] = sub
}

func (s *shard) unregister(sub *Subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.subs, sub.id)
}

// endLocked ends a subscription whose consumer is gone from the machine, or will be: there is nothing more to tell it.
func (s *shard) endLocked(sub *Subscription, err error) {
	sub.end(err)
	delete(s.subs, sub.id)
}

// endAll ends all subscriptions.
func (s *shard) endAll(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		s.endLocked(sub, err)
	}
}

// posting is a proposal whose outcome nobody waits for.
type posting struct {
	b      *Broker
	how    durability
	encode func(dst []byte, at instant) []byte
}

// durability is what a command asks of the log.
type durability byte

const (
	lazily  durability = iota // written before it is applied, synced with the next that is durable
	durably                   // synced before it is applied
	freeing                   // likewise, and let in on a full disk, since it gives space back
)

func (p *posting) AppendTo(dst []byte) []byte { return p.encode(dst, p.b.now()) }
func (p *posting) Durable() bool              { return p.how != lazily }
func (p *posting) Frees() bool                { return p.how == freeing } // for storage.Freer
func (p *posting) Done(Answer, error)         {}

// calling is a proposal whose answer somebody waits for.
type calling struct {
	posting
	answer Answer
	err    error
	done   chan struct{} // closed by Done
}

func (c *calling) Done(a Answer, err error) {
	c.answer, c.err = Answer{Code: a.Code, Data: append([]byte(nil), a.Data...)}, err
	close(c.done)
}

// call proposes a command and waits for the answer.
func (s *shard) call(ctx context.Context, how durability, encode func([]byte, instant) []byte) (Answer, error) {
	if err := ctx.Err(); err != nil {
		return Answer{}, err
	}
	c := &calling{posting: posting{b: s.b, how: how, encode: encode}, done: make(chan struct{})}
	if err := s.propose(c); err != nil {
		return Answer{}, err
	}
	if _, known := await(ctx, c.done); !known {
		return Answer{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
	}
	return c.answer, c.err
}

// post proposes a command and does not wait.
func (s *shard) post(encode func([]byte, instant) []byte) error {
	return s.propose(&posting{b: s.b, encode: encode})
}

// propose gives p to the log. The error is ErrQueueGone if that is closed with its queue.
func (s *shard) propose(p Proposal) error { return s.orGone(s.log.Propose(p)) }

// orGone is err, but ErrQueueGone where it is ErrClosed since the queue is gone.
func (s *shard) orGone(err error) error {
	if errors.Is(err, ErrClosed) && s.gone.Load() {
		return ErrQueueGone
	}
	if s.base != nil && errors.Is(err, ErrClosed) && !s.b.closing.Load() {
		return s.b.lostLog
	}
	return err
}

// close ends the consumers in good order, and closes the log. One command ends them together: were they detached one by one,
// what the first gives back would be lent to the next. It opens another session, so an attach that comes behind it
// is refused; one that came before it may have registered after the first look.
func (s *shard) close(why error) error {
	s.gone.Store(errors.Is(why, ErrQueueGone))
	s.mu.Lock()
	s.setWakeLocked(0)
	s.serveLocked(why)
	s.over = true
	s.mu.Unlock()
	s.endWaits(why)
	s.endAll(why)
	// An error means that the log has failed or leads elsewhere: the messages come back from there.
	_ = s.post(func(dst []byte, at instant) []byte { return appendOpen(dst, at, false) })
	s.endAll(why)
	err := s.log.Close()
	s.starts.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weighNothingLocked()
	return err
}
