package bourse

import "time"

// Clock tells the time and wakes at a time. Everything in a broker that waits for time waits
// on its clock: delays, deadlines, back-off, grace.
type Clock interface {
	// Now is the time. It should not go back; where it does, the broker's time stands still
	// until it has caught up.
	Now() time.Time
	// AfterFunc calls f once on a goroutine of its own, no earlier than d from now. stop
	// prevents the call and reports whether it did.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// systemClock follows the computer's clock as it was when the broker was opened, and from
// then on the monotonic clock: a step of the wall clock moves no deadline.
type systemClock struct{ start time.Time }

func newSystemClock() Clock { return systemClock{start: time.Now()} }

func (c systemClock) Now() time.Time { return c.start.Add(time.Since(c.start)) }

// instantOf is a clock's time as an instant. Every command asks for it, so the system's clock has a way without a
// time.Time in between.
func instantOf(c Clock) instant {
	if s, ok := c.(systemClock); ok {
		return instant(s.start.UnixNano()) + instant(time.Since(s.start))
	}
	return instant(c.Now().UnixNano())
}

func (c systemClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}
