package bourse_test

// Goal: schedules among all other calls of TestModelAPI, over restarts with time in between. Method: the reference asks of each second
// whether it is one. What fires goes to a queue where nothing else arrives at such instants, see sequence.schedule.

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse"
)

type refSchedule struct {
	bourse.Schedule
	since, due, last           time.Time
	fired, skipped, unroutable uint64
}

// modelCrons are expressions with what they say of a time without seconds.
var modelCrons = map[string]func(t time.Time) bool{
	"*/20 * * * *": func(t time.Time) bool { return t.Minute()%20 == 0 },
	"30 */2 * * *": func(t time.Time) bool { return t.Minute() == 30 && t.Hour()%2 == 0 },
	"0 4 * * 2":    func(t time.Time) bool { return t.Minute() == 0 && t.Hour() == 4 && t.Weekday() == time.Tuesday },
	"@daily":       func(t time.Time) bool { return t.Minute() == 0 && t.Hour() == 0 },
}

// next is the first tick after t.
func (s *refSchedule) next(t time.Time) time.Time {
	if s.Every > 0 {
		return s.since.Add((t.Sub(s.since)/s.Every + 1) * s.Every)
	}
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil {
		panic(err)
	}
	at := t.Truncate(time.Minute).Add(time.Minute)
	for !modelCrons[s.Cron](at.In(zone)) {
		at = at.Add(time.Minute)
	}
	return at
}

func (r *reference) declareSchedule(d bourse.Schedule) error {
	if d.Cron != "" && d.TimeZone == "" {
		d.TimeZone = "UTC"
	}
	for _, s := range r.schedules {
		if s.Name == d.Name {
			if !reflect.DeepEqual(s.Schedule, d) {
				return bourse.ErrPrecondition
			}
			return nil
		}
	}
	s := &refSchedule{Schedule: d, since: r.clock.Now()}
	s.due = s.next(s.since)
	r.schedules = append(r.schedules, s)
	return nil
}

// fire does what is due, in the order in which the schedules were declared.
func (r *reference) fire(now time.Time) {
	for again := true; again; {
		again = false
		for _, s := range r.schedules {
			if !s.due.After(now) {
				r.fireOne(s, now)
				again = true
			}
		}
	}
}

func (r *reference) fireOne(s *refSchedule, now time.Time) {
	ticks := []time.Time{s.due}
	for t := s.next(s.due); !t.After(now); t = s.next(t) {
		ticks = append(ticks, t)
	}
	if s.CatchUp == bourse.CatchUpAll {
		ticks = ticks[:1]
	}
	tick := ticks[len(ticks)-1]
	s.due = s.next(tick)
	s.skipped += uint64(len(ticks) - 1)
	if s.CatchUp == bourse.CatchUpSkip && now.Sub(tick) > time.Minute {
		s.skipped++
		return
	}
	s.last = tick
	m := &refMessage{Message: s.Message}
	m.ID, m.Timestamp = fmt.Sprintf("%s@%s", s.Name, tick.Format(time.RFC3339Nano)), tick
	routed, err := r.route(m.Exchange, m.RoutingKey, m.Headers)
	if err != nil || len(routed) == 0 {
		s.unroutable++
		return
	}
	s.fired++
	r.enqueue(m, routed)
}

// schedule draws one. Its messages go to the queue "plan", at their instants the only ones.
func (s *sequence) schedule() bourse.Schedule {
	x := bourse.Schedule{Name: one(s.t, "schedule", []string{"x", "y"}), CatchUp: one(s.t, "catch up", []bourse.CatchUp{
		bourse.CatchUpSkip, bourse.CatchUpOne, bourse.CatchUpAll,
	})}
	if rapid.Bool().Draw(s.t, "every") {
		x.Every = one(s.t, "rate", []time.Duration{90 * time.Second, 20 * time.Minute, 5 * time.Hour})
	} else {
		x.Cron = one(s.t, "cron", []string{"*/20 * * * *", "30 */2 * * *", "0 4 * * 2", "@daily"})
		x.TimeZone = one(s.t, "zone", []string{"", "Europe/Berlin", "America/New_York"})
	}
	x.Message = bourse.Message{
		Exchange: one(s.t, "exchange", []string{"", "plan"}), RoutingKey: "plan", Body: []byte("tick"),
		Priority: one(s.t, "priority", []uint8{0, 2}), GroupID: one(s.t, "group", []string{"", "g"}),
		TTL:     one(s.t, "ttl", []time.Duration{0, bourse.NoWait, time.Minute}),
		Headers: one(s.t, "headers", []map[string]any{nil, {"h": 1}}),
	}
	return x
}

// plan declares or deletes a schedule, or what is between it and its queue.
func (s *sequence) plan() {
	ds := []bourse.Declaration{
		bourse.Exchange{Name: "plan", Kind: bourse.Fanout}, bourse.Binding{Exchange: "plan", Queue: "plan"}, s.schedule(), s.schedule(),
	}
	d := one(s.t, "plan", ds)
	if rapid.IntRange(0, 3).Draw(s.t, "delete") > 0 {
		s.declare(d)
	} else {
		s.same(s.b.Delete(ctx, d), s.ref.remove(bourse.DeleteOnly{}, d), "delete %+v", d)
	}
}

// compareSchedules compares all that Stats shows of them.
func (s *sequence) compareSchedules() {
	want := []string{}
	for _, x := range s.ref.schedules {
		want = append(want, fmt.Sprint(x.Name, x.due.UnixNano(), x.last.UnixNano(), x.fired, x.skipped, x.unroutable))
	}
	slices.SortFunc(want, strings.Compare)
	have := []string{}
	for _, x := range s.b.Stats().Schedules {
		have = append(have, fmt.Sprint(x.Name, x.Next.UnixNano(), x.Last.UnixNano(), x.Fired, x.Skipped, x.Unroutable))
	}
	require.Equal(s.t, want, have)
}
