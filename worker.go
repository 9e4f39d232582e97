package bourse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Handler works on one delivery and settles it by its result: nil acks, an error nacks, Reject(err) rejects,
// RetryAfter(err, pause) nacks with that pause. A panic counts as an error, and so does runtime.Goexit, which
// testing.T.FailNow calls. A handler may also give the verdict itself; its result is then ignored. ctx ends at the deadline
// of the delivery, which Delivery.Extend and WorkOptions.AutoExtend move, or after the grace of a Work that stops.
type Handler func(ctx context.Context, d *Delivery) error

// WorkOptions are the choices of a Work.
//
// What is prefetched and has waited for a handler for two thirds of Queue.AckDeadline goes back, without a failure: it may go to
// another consumer, and a job in front of it that takes until its deadline does not cost it a retry.
type WorkOptions struct {
	Concurrency int           // handlers at once; default 1, at most MaxPrefetch
	Prefetch    int           // default twice Concurrency, at least Concurrency
	Priority    int           // as SubscribeOptions.Priority
	Timeout     time.Duration // for a handler, then its ctx ends; default and most: until the delivery's deadline
	Grace       time.Duration // for handlers still running at the end, then their ctx ends; default 10 s
	// AutoExtend extends what the Work holds instead, by Queue.AckDeadline each time that a third of it has passed: while it waits for
	// a handler, and while its handler runs. So the deadline only says how long a lost process keeps its messages, and may
	// be short, while Timeout, by default 24 hours and at most MaxAckDeadline, is how long a handler may run. Then its ctx
	// ends, and its delivery is not extended any more: a handler that does not heed its ctx loses it within one deadline.
	AutoExtend bool
}

const defaultGrace = 10 * time.Second

func (o WorkOptions) withDefaults() (WorkOptions, error) {
	switch {
	case o.Concurrency < 0 || o.Concurrency > MaxPrefetch:
		return o, invalid("WorkOptions.Concurrency", "%d, must be 0 to %d", o.Concurrency, MaxPrefetch)
	case o.Prefetch < 0 || o.Prefetch > MaxPrefetch:
		return o, invalid("WorkOptions.Prefetch", "%d, must be 0 to %d", o.Prefetch, MaxPrefetch)
	case o.Priority < -MaxConsumerPriority || o.Priority > MaxConsumerPriority:
		return o, invalid("WorkOptions.Priority", "%d, must be %d to %d", o.Priority, -MaxConsumerPriority, MaxConsumerPriority)
	case o.Timeout < 0:
		return o, invalid("WorkOptions.Timeout", "%v is negative", o.Timeout)
	case o.Grace < 0:
		return o, invalid("WorkOptions.Grace", "%v is negative", o.Grace)
	case o.AutoExtend && o.Timeout > MaxAckDeadline:
		return o, invalid("WorkOptions.Timeout", "%v, must be at most %v with AutoExtend", o.Timeout, MaxAckDeadline)
	}
	if o.Concurrency == 0 {
		o.Concurrency = 1
	}
	if o.Timeout == 0 && o.AutoExtend {
		o.Timeout = defaultRuntime
	}
	if o.Prefetch == 0 {
		o.Prefetch = min(2*o.Concurrency, MaxPrefetch)
	}
	if o.Prefetch < o.Concurrency {
		return o, invalid("WorkOptions.Prefetch", "%d, must be at least Concurrency, %d", o.Prefetch, o.Concurrency)
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	return o, nil
}

type rejection struct{ error }

func (r rejection) Unwrap() error { return r.error }

// Reject wraps a handler's error: the message is dead at once, with the error as the reason in its history.
func Reject(err error) error {
	if err == nil {
		err = errors.New("rejected")
	}
	return rejection{err}
}

type retryAfter struct {
	error
	pause time.Duration
}

func (r retryAfter) Unwrap() error { return r.error }

// RetryAfter wraps a handler's error: the message has failed and is ready again after pause, whatever
// Queue.Retry says. The pause is cut to 0 to MaxDelay.
func RetryAfter(err error, pause time.Duration) error {
	if err == nil {
		err = errors.New("retry")
	}
	return retryAfter{err, min(max(pause, 0), MaxDelay)}
}

// Work runs h on the deliveries of queue until ctx ends or the broker shuts down. Then it takes no more, gives
// running handlers opts.Grace, and releases the rest without counting a failure. It returns nil if every
// handler ended in time. Errors: ErrNotFound, an *InvalidError, ErrClosed if the broker was closed before
// or under it, ErrQueueGone, ErrStorage, or that handlers outlived the grace: they
// may still run, and their verdicts come to nothing.
func (b *Broker) Work(ctx context.Context, queue string, h Handler, opts WorkOptions) error {
	opts, err := opts.withDefaults()
	if err == nil && h == nil {
		err = invalid("Handler", "is nil")
	}
	if err != nil {
		return fmt.Errorf("broker: work on %q: %w", queue, err)
	}
	if !b.workStarts() {
		return fmt.Errorf("broker: work on %q: %w", queue, ErrClosed)
	}
	defer b.workEnds()
	sub, err := b.Subscribe(ctx, queue, SubscribeOptions{Prefetch: opts.Prefetch, Priority: opts.Priority})
	if err != nil {
		return err
	}
	w := &work{b: b, sub: sub, h: h, opts: opts, extender: newExtender(sub, opts.AutoExtend)}
	defer w.extender.close()
	return w.run(ctx)
}

// work is one call of Work.
type work struct {
	b    *Broker
	sub  *Subscription
	h    Handler
	opts WorkOptions

	extender *extender
}

func (w *work) run(ctx context.Context) error {
	// intake ends when no more deliveries are to be taken, handling when handlers must stop.
	intake, stopIntake := context.WithCancel(ctx)
	defer stopIntake()
	handling, stopHandling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHandling()

	var handlers sync.WaitGroup
	failed := make(chan error, w.opts.Concurrency)
	var start func()
	start = func() {
		// Each ends when intake does or the subscription fails, and its last handler returns; run waits for
		// them, but for no longer than the grace. If a handler ends the goroutine another takes its place.
		handlers.Go(func() {
			returned := false
			defer func() {
				if !returned {
					start()
				}
			}()
			err := w.loop(intake, handling)
			returned = true
			if err != nil {
				stopIntake()
				failed <- err
			}
		})
	}
	for range w.opts.Concurrency {
		start()
	}
	done := make(chan struct{})
	go func() { // ends with the handlers
		handlers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-intake.Done():
	case <-w.b.draining:
	}
	stopIntake()
	w.sub.pause()
	grace := make(chan struct{})
	stopGrace := w.b.clock.AfterFunc(w.opts.Grace, func() { close(grace) })
	defer stopGrace()
	var late error
	select {
	case <-done:
	case <-grace:
		late = fmt.Errorf("broker: work on %q: handlers still run after the grace of %v", w.sub.queue.Name, w.opts.Grace)
		stopHandling()
	}
	closed := w.sub.Close()
	select {
	case err := <-failed:
		return err
	default:
	}
	if late == nil && closed == nil && ctx.Err() == nil {
		if err := w.b.open(); err != nil {
			return fmt.Errorf("broker: work on %q: %w", w.sub.queue.Name, err)
		}
	}
	return errors.Join(late, closed)
}

// loop handles deliveries one after the other. It returns an error if the subscription fails.
func (w *work) loop(intake, handling context.Context) error {
	for {
		d, err := w.sub.Next(intake)
		switch {
		case err == nil:
			w.handle(handling, d)
		case intake.Err() != nil:
			return nil
		case errors.Is(err, errUnreadable):
			// It stays on loan and fails at its deadline, so in the end it is dead where it is; the others go on.
			w.b.log.Error("a message cannot be read", "queue", w.sub.queue.Name, "err", err)
		default:
			return err
		}
	}
}

func (w *work) handle(ctx context.Context, d *Delivery) {
	ctx, cancel := context.WithCancelCause(ctx)
	limit := &timeLimit{clock: w.b.clock, cancel: cancel}
	if w.opts.Timeout > 0 {
		limit.most = w.b.clock.Now().Add(w.opts.Timeout)
	}
	d.loan.limit = limit
	limit.move(d.Deadline()) // it counts from when the message was lent, and it may have waited for this handler
	running := w.extender.begin(ctx, d)
	err := errGoexit
	defer func() {
		w.extender.end(running)
		limit.end(nil)
		w.settle(d, err)
	}()
	err = w.protected(ctx, d)
}

// errGoexit is the result of a handler that did not return and did not panic.
var errGoexit = errors.New("the handler called runtime.Goexit")

// settle makes the result of a handler the verdict.
func (w *work) settle(d *Delivery, err error) {
	var verdict error
	var reject rejection
	var retry retryAfter
	switch {
	case err == nil:
		verdict = d.settle("ack", verdictAck, 0, "", nil)
	case errors.As(err, &reject):
		verdict = d.settle("reject", verdictReject, 0, err.Error(), nil)
	case errors.As(err, &retry):
		verdict = d.settle("nack", verdictNack, retry.pause, err.Error(), nil)
	default:
		verdict = d.settle("nack", verdictNack, -1, err.Error(), nil)
	}
	// Unknown means that the handler settled it itself, stale or closed that the loan is over: the message
	// is elsewhere by now, and this result does not count.
	if verdict != nil && !errors.Is(verdict, ErrUnknownDelivery) {
		w.b.log.Debug("a result came too late", "queue", d.Queue, "tag", d.Tag, "err", verdict)
	}
}

// timeLimit ends the ctx of a handler when the deadline of its delivery comes. A nil one does nothing.
type timeLimit struct {
	clock  Clock // fixed, as cancel and most are
	cancel context.CancelCauseFunc
	most   time.Time // the deadline of WorkOptions.Timeout; zero: none

	mu   sync.Mutex // guards below; leaf lock
	turn int        // counts moves: a timer that was moved just as it fired does nothing
	stop func() bool
	over bool
}

// move sets the end of the ctx to deadline, or to most if that comes first.
func (t *timeLimit) move(deadline time.Time) {
	if t == nil {
		return
	}
	if !t.most.IsZero() && t.most.Before(deadline) {
		deadline = t.most
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if t.stop != nil {
		t.stop()
	}
	t.turn++
	turn := t.turn
	t.stop = t.clock.AfterFunc(deadline.Sub(t.clock.Now()), func() {
		t.mu.Lock()
		due := turn == t.turn && !t.over
		t.over = t.over || due
		t.mu.Unlock()
		if due {
			t.cancel(context.DeadlineExceeded)
		}
	})
}

// end ends the ctx now, for good.
func (t *timeLimit) end(cause error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.over = true
	if t.stop != nil {
		t.stop()
	}
	t.mu.Unlock()
	t.cancel(cause)
}

// protected calls the handler and makes a panic an error. It does not return if the handler ends its goroutine.
func (w *work) protected(ctx context.Context, d *Delivery) (err error) {
	returned := false
	defer func() {
		if p := recover(); p == nil {
			if !returned {
				w.b.log.Error("a handler ended its goroutine", "queue", d.Queue, "tag", d.Tag)
			}
		} else {
			w.b.log.Error("a handler panicked", "queue", d.Queue, "tag", d.Tag, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	err = w.h(ctx, d)
	returned = true
	return err
}

// Codec turns values of T into bodies and back.
type Codec[T any] interface {
	// Encode returns the body for v, which the caller owns.
	Encode(v T) ([]byte, error)
	// Decode returns the value in body, which it does not keep.
	Decode(body []byte) (T, error)
}

// JSON is the Codec of encoding/json.
func JSON[T any]() Codec[T] { return jsonCodec[T]{} }

type jsonCodec[T any] struct{}

func (jsonCodec[T]) Encode(v T) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec[T]) Decode(body []byte) (T, error) {
	var v T
	err := json.Unmarshal(body, &v)
	return v, err
}

// Handle makes a Handler of a function that takes a T. A body that does not decode is rejected: it would fail
// each time.
func Handle[T any](codec Codec[T], h func(ctx context.Context, v T, d *Delivery) error) Handler {
	return func(ctx context.Context, d *Delivery) error {
		v, err := codec.Decode(d.Body)
		if err != nil {
			return Reject(fmt.Errorf("decode the body: %w", err))
		}
		return h(ctx, v, d)
	}
}
