package bourse

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// timetable says when a schedule fires: after is the whole of it. It is used by who proposes a fire, never by the machine.
type timetable struct {
	every  time.Duration // 0: by spec
	anchor instant       // the ticks of every are counted from here

	spec   *cron.SpecSchedule
	loc    *time.Location
	hourly bool // the hour field is *: every hour that passes
}

// cronParser reads five fields, six with seconds, and the names of usual times.
var cronParser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// everyHour is the bit that the parser sets in a field of *.
const everyHour = 1 << 63

// newTimetable makes the timetable of d, which was declared at since. It fails if the expression does not parse, or if this
// system does not know the time zone.
func newTimetable(d Schedule, since instant) (timetable, *InvalidError) {
	if d.Every != 0 {
		return timetable{every: d.Every, anchor: since}, nil
	}
	spec, err := parseCron(d.Cron)
	if err != nil {
		return timetable{}, invalid("Schedule.Cron", "%q: %v", d.Cron, err)
	}
	zone := d.withDefaults().TimeZone
	loc, err := time.LoadLocation(zone)
	if err == nil && zone == "Local" {
		err = errors.New("it means another zone on another computer")
	}
	if err != nil {
		return timetable{}, invalid("Schedule.TimeZone", "%q: %v", zone, err)
	}
	return timetable{spec: spec, loc: loc, hourly: spec.Hour&everyHour != 0}, nil
}

func parseCron(text string) (*cron.SpecSchedule, error) {
	switch {
	case strings.Contains(text, "="): // the parser knows a TZ= in front
		return nil, errors.New("the time zone belongs into TimeZone")
	case strings.HasPrefix(text, "@every"):
		return nil, errors.New("a fixed rate belongs into Every")
	}
	parsed, err := cronParser.Parse(text)
	if err != nil {
		return nil, err
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, errors.New("is no expression of times")
	}
	return spec, nil
}

// after is the first tick after t, or never.
//
// A time zone is a row of spans with one offset from UTC each, and in a span the wall clock is a plain calendar: so the
// parser's arithmetic, which is made for that, sees one span at a time. An hourly schedule fires at every match in every span. Another
// one fires once for each time on the wall: a match that the span before has shown already is left out, and one that no
// span shows, since the clocks were put forward over it, comes when they are.
func (tt *timetable) after(t instant) instant {
	if tt.every != 0 {
		n := int64(0)
		if t >= tt.anchor {
			n = int64(t-tt.anchor) / int64(tt.every)
		}
		next := tt.anchor + instant(n+1)*instant(tt.every)
		if next < t {
			return never
		}
		return next
	}
	span := tt.spanAt(t)
	for {
		wall := tt.spec.Next(time.Unix(0, int64(t)).UTC().Add(span.offset))
		if wall.IsZero() || wall.Year() > 2261 {
			return never
		}
		at := instant(wall.Add(-span.offset).UnixNano())
		if span.end != 0 && at >= span.end {
			next := tt.spanAt(span.end)
			skipped := instant(wall.Add(-next.offset).UnixNano()) < span.end
			if skipped && !tt.hourly {
				return span.end
			}
			t, span = span.end-1, next
			continue
		}
		if shown := span.start != 0 && at+instant(span.offset) < span.start+instant(span.before); shown && !tt.hourly {
			t = at
			continue
		}
		return at
	}
}

// span is a time in which a zone has one offset.
type span struct {
	start, end instant       // 0: none
	offset     time.Duration // of the wall clock from UTC
	before     time.Duration // offset of the span before
}

func (tt *timetable) spanAt(t instant) span {
	at := time.Unix(0, int64(t)).In(tt.loc)
	s := span{offset: offsetOf(at)}
	start, end := at.ZoneBounds()
	if !end.IsZero() && !end.After(at) {
		// Beyond the table of a zone, package time has a year end after 365 days. So the last day of a leap year
		// is behind the end that it is given; it is a span of its own.
		end = time.Date(at.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if !start.IsZero() && start.Year() > 1678 {
		s.start, s.before = instant(start.UnixNano()), offsetOf(start.Add(-1))
	}
	if !end.IsZero() && end.Year() < 2262 {
		s.end = instant(end.UnixNano())
	}
	return s
}

func offsetOf(t time.Time) time.Duration {
	_, seconds := t.Zone()
	return time.Duration(seconds) * time.Second
}

// lastUntil is the last tick that is not after limit; low is before it.
func (tt *timetable) lastUntil(low, limit instant) instant {
	for high := limit; low+1 < high; { // after(low) <= limit < after(high)
		middle := low + (high-low)/2
		if tt.after(middle) <= limit {
			low = middle
		} else {
			high = middle
		}
	}
	return tt.after(low)
}

// count is the number of ticks from the tick first up to limit, at most most.
func (tt *timetable) count(first, limit instant, most int) int {
	if tt.every != 0 {
		return int(min(int64(limit-first)/int64(tt.every)+1, int64(most)))
	}
	n := 0
	for t := first; t <= limit && n < most; t = tt.after(t) {
		n++
	}
	return n
}

// missedAfter is how late a fire may be that CatchUpSkip does not pass over.
const missedAfter = time.Minute

// maxCounted bounds what is counted of a gap.
const maxCounted = 10_000

// decide says what a schedule does now that a.due has come, or, if that is not known yet, when it begins.
func decide(a *appointment, tt *timetable, now instant) fire {
	c := fire{schedule: a.id, due: a.due}
	if a.due == 0 {
		c.next = tt.after(a.since)
		return c
	}
	happen := func(tick instant) fire {
		c.outcome, c.fire, c.next = outcomeHere, tick, tt.after(tick)
		return c
	}
	last := a.due
	if tt.after(a.due) <= now {
		last = tt.lastUntil(a.due, now)
	}
	if a.CatchUp == CatchUpAll {
		if n := tt.count(a.due, now, MaxCatchUp+1); n > MaxCatchUp {
			c.next = last
			for range MaxCatchUp - 1 {
				c.next = tt.lastUntil(a.due, c.next-1)
			}
			c.skipped = uint64(tt.count(a.due, c.next-1, maxCounted))
			return c
		}
		return happen(a.due)
	}
	if last > a.due {
		c.skipped = uint64(tt.count(a.due, last-1, maxCounted))
	}
	if a.CatchUp == CatchUpSkip && time.Duration(now-last) > missedAfter {
		c.skipped++
		c.next = tt.after(last)
		return c
	}
	return happen(last)
}

// fireID is the id of the message of a fire.
func fireID(name string, at instant) string {
	return fmt.Sprintf("%s@%s", name, time.Unix(0, int64(at)).UTC().Format(time.RFC3339Nano))
}
