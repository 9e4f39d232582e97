package bourse_test

// Goal: SEMANTICS 11, schedules: each time of a schedule brings one message, which names that time, whatever restarts and
// clocks do in between, and what was missed is treated as CatchUp says. Method: a clock moved by hand, through years where
// that is what it takes. Which times an expression means is the business of timetable_test.go.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// fires are the ids of all messages in queue, which is emptied.
func fires(t require.TestingT, b *bourse.Broker, queue string) (ids []string) {
	for {
		d, err := b.Get(ctx, queue)
		if err != nil {
			require.ErrorIs(t, err, bourse.ErrEmpty)
			return ids
		}
		name, at, _ := strings.Cut(d.ID, "@")
		fire, err := time.Parse(time.RFC3339Nano, at)
		require.NoError(t, err)
		require.True(t, fire.Equal(d.Timestamp), "%s is stamped %v", d.ID, d.Timestamp)
		require.NotEmpty(t, name)
		ids = append(ids, d.ID)
		require.NoError(t, d.Ack())
	}
}

// hours are the ids of the fires of "s" so many hours after 2030 began.
func hours(ns ...int) (ids []string) {
	for _, n := range ns {
		ids = append(ids, "s@"+time.Date(2030, 1, 1, n, 0, 0, 0, time.UTC).Format(time.RFC3339))
	}
	return ids
}

func schedule(t require.TestingT, b *bourse.Broker, name string) bourse.ScheduleStats {
	for _, s := range b.Stats().Schedules {
		if s.Name == name {
			return s
		}
	}
	require.Fail(t, "no such schedule", name)
	return bourse.ScheduleStats{}
}

// jump moves the clock at once, as a step of the computer's clock would, and lets what is due happen.
func (c *handClock) jump(t require.TestingT, b *bourse.Broker, d time.Duration) {
	barrier(t, b, c)
	c.mu.Lock()
	c.now = c.now.Add(d)
	now := c.now
	due := c.timers
	c.timers = nil
	for _, timer := range due {
		if timer.at.After(now) {
			c.timers = append(c.timers, timer)
		} else {
			c.fireLocked(timer)
		}
	}
	c.mu.Unlock()
	barrier(t, b, c)
}

func TestSemanticsScheduleFires(t *testing.T) {
	clock := newHandClock()
	s := bourse.Schedule{Name: "s", Cron: "0 * * * *", Message: bourse.Message{
		Exchange: "all", RoutingKey: "k", Priority: 3, TTL: time.Hour * 24, Headers: map[string]any{"a": "b"}, Body: []byte("body"),
	}}
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "one", Priorities: 5}, bourse.Queue{Name: "two"},
		bourse.Exchange{Name: "all", Kind: bourse.Fanout}, bourse.Binding{Exchange: "all", Queue: "one"},
		bourse.Binding{Exchange: "all", Queue: "two"}, s)
	start := clock.Now()
	barrier(t, b, clock)
	require.Equal(t, bourse.ScheduleStats{Name: "s", Next: time.Unix(0, start.Add(time.Hour).UnixNano())}, schedule(t, b, "s"))
	clock.advance(t, b, time.Hour-1)
	require.Zero(t, stats(t, b, "one").Ready)
	clock.advance(t, b, 1)
	d, err := b.Get(ctx, "one")
	require.NoError(t, err)
	require.True(t, d.Timestamp.Equal(start.Add(time.Hour)))
	require.Equal(t, []any{"s@2030-01-01T01:00:00Z", "all", "k", uint8(3), 24 * time.Hour, "b", "body"},
		[]any{d.ID, d.Exchange, d.RoutingKey, d.Priority, d.TTL, d.Headers["a"], string(d.Body)})
	require.NoError(t, d.Ack())
	require.Equal(t, hours(1), fires(t, b, "two"))
	clock.advance(t, b, 3*time.Hour)
	require.Equal(t, hours(2, 3, 4), fires(t, b, "one"))
	require.Equal(t, hours(2, 3, 4), fires(t, b, "two"))
	st := schedule(t, b, "s")
	require.True(t, st.Next.Equal(start.Add(5*time.Hour)) && st.Last.Equal(start.Add(4*time.Hour)), "%+v", st)
	require.EqualValues(t, 4, st.Fired)
	require.Zero(t, st.Skipped+st.Unroutable)

	// Redeclared: nothing changes. Deleted: nothing fires.
	require.NoError(t, b.Declare(ctx, s))
	require.NoError(t, b.Check(s))
	clock.advance(t, b, 30*time.Minute)
	require.NoError(t, b.Declare(ctx, s))
	require.Equal(t, st, schedule(t, b, "s"))
	require.NoError(t, b.Delete(ctx, bourse.Schedule{Name: "s"}, bourse.Schedule{Name: "never was"}))
	require.ErrorIs(t, b.Check(s), bourse.ErrNotFound)
	clock.advance(t, b, 24*time.Hour)
	require.Empty(t, fires(t, b, "one"))
	require.Empty(t, b.Stats().Schedules)
	require.Zero(t, clock.pending())
}

// A year of three schedules in a zone with summer time: each fires exactly at its times.
func TestSemanticsScheduleOverAYear(t *testing.T) {
	clock := newHandClock()
	zone, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	to := func(queue string) bourse.Message { return bourse.Message{RoutingKey: queue} }
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "night"}, bourse.Queue{Name: "week"}, bourse.Queue{Name: "rate"},
		bourse.Schedule{Name: "night", Cron: "30 2 * * *", TimeZone: "America/New_York", Message: to("night")},
		bourse.Schedule{Name: "week", Cron: "0 9 * * MON", TimeZone: "America/New_York", Message: to("week")},
		bourse.Schedule{Name: "rate", Every: 17 * time.Hour, Message: to("rate")})
	start := clock.Now()
	end := start.AddDate(1, 0, 0)
	clock.advance(t, b, end.Sub(start))

	var want []string
	for day := start; day.Before(end); day = day.AddDate(0, 0, 1) {
		at := time.Date(2030, 1, day.YearDay(), 2, 30, 0, 0, zone)
		switch day.Format("01-02") {
		case "03-10": // the clocks go from two to three
			at = time.Date(2030, 3, 10, 3, 0, 0, 0, zone)
		case "11-03": // half past one comes twice, half past two once
		}
		want = append(want, "night@"+at.UTC().Format(time.RFC3339))
	}
	require.Equal(t, want, fires(t, b, "night"))
	want = nil
	for day := time.Date(2030, 1, 7, 9, 0, 0, 0, zone); day.Before(end); day = day.AddDate(0, 0, 7) {
		want = append(want, "week@"+day.UTC().Format(time.RFC3339))
	}
	require.Equal(t, want, fires(t, b, "week"))
	want = nil
	for at := start.Add(17 * time.Hour); !at.After(end); at = at.Add(17 * time.Hour) {
		want = append(want, "rate@"+at.Format(time.RFC3339))
	}
	require.Equal(t, want, fires(t, b, "rate"))
	for _, s := range b.Stats().Schedules {
		require.Zero(t, s.Skipped+s.Unroutable, "%+v", s)
	}
}

// policies are what fires when five and a half hours pass without a broker, by the state of the schedule in hours.
var policies = []struct {
	policy  bourse.CatchUp
	late    time.Duration // after the fifth time that was missed
	want    []string
	skipped uint64
}{
	{bourse.CatchUpSkip, 30 * time.Minute, nil, 5},
	{bourse.CatchUpSkip, 30 * time.Second, hours(7), 4},
	{bourse.CatchUpSkip, 0, hours(7), 4},
	{bourse.CatchUpOne, 30 * time.Minute, hours(7), 4},
	{bourse.CatchUpAll, 30 * time.Minute, hours(3, 4, 5, 6, 7), 0},
	{bourse.CatchUpAll, 0, hours(3, 4, 5, 6, 7), 0},
}

func TestSemanticsScheduleAfterADownTime(t *testing.T) {
	for _, row := range policies {
		t.Run(fmt.Sprint(row.policy, row.late), func(t *testing.T) {
			clock, dir := newHandClock(), t.TempDir()
			s := bourse.Schedule{Name: "s", Every: time.Hour, CatchUp: row.policy, Message: bourse.Message{RoutingKey: "q"}}
			b := open(t, bourse.Options{Clock: clock, Dir: dir}, bourse.Queue{Name: "q"}, s)
			clock.advance(t, b, 2*time.Hour+30*time.Minute)
			require.Equal(t, hours(1, 2), fires(t, b, "q"))
			require.NoError(t, b.Close())
			clock.step(clock.Now().Add(4*time.Hour + 30*time.Minute + row.late)) // nothing is set
			b = open(t, bourse.Options{Clock: clock, Dir: dir}, s)
			barrier(t, b, clock)
			require.Equal(t, row.want, fires(t, b, "q"))
			st := schedule(t, b, "s")
			require.Equal(t, []uint64{2 + uint64(len(row.want)), row.skipped}, []uint64{st.Fired, st.Skipped})
			clock.advance(t, b, 2*time.Hour-row.late)
			require.Equal(t, hours(8, 9), fires(t, b, "q"), "and on as before")
			require.NoError(t, b.Close())
		})
	}
}

// A clock that jumps ahead is a down time.
func TestSemanticsScheduleAfterAJump(t *testing.T) {
	for _, row := range policies {
		t.Run(fmt.Sprint(row.policy, row.late), func(t *testing.T) {
			clock := newHandClock()
			b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"}, bourse.Schedule{Name: "s", Cron: "@hourly",
				CatchUp: row.policy, Message: bourse.Message{RoutingKey: "q"}})
			clock.advance(t, b, 2*time.Hour+30*time.Minute)
			require.Equal(t, hours(1, 2), fires(t, b, "q"))
			clock.jump(t, b, 4*time.Hour+30*time.Minute+row.late)
			require.Equal(t, row.want, fires(t, b, "q"))
			require.Equal(t, row.skipped, schedule(t, b, "s").Skipped)
		})
	}
}

// A year is missed by a schedule that makes up for all: the latest thousand come, and the rest is counted as far as it is.
func TestSemanticsScheduleCatchesUpToALimit(t *testing.T) {
	clock, dir := newHandClock(), t.TempDir()
	s := bourse.Schedule{Name: "s", Cron: "0 * * * *", CatchUp: bourse.CatchUpAll, Message: bourse.Message{RoutingKey: "q"}}
	b := open(t, bourse.Options{Clock: clock, Dir: dir}, bourse.Queue{Name: "q"}, s)
	barrier(t, b, clock)
	require.NoError(t, b.Close())
	clock.step(clock.Now().Add(365 * 24 * time.Hour))
	b = open(t, bourse.Options{Clock: clock, Dir: dir}, s)
	barrier(t, b, clock)
	ids := fires(t, b, "q")
	require.Len(t, ids, bourse.MaxCatchUp)
	require.Equal(t, hours(365*24-999, 365*24), []string{ids[0], ids[999]})
	require.EqualValues(t, 365*24-1000, schedule(t, b, "s").Skipped)
}

// A clock that is set back fires nothing twice: over a restart, or under a broker.
func TestSemanticsScheduleSetBack(t *testing.T) {
	clock, dir := newHandClock(), t.TempDir()
	s := bourse.Schedule{Name: "s", Cron: "@hourly", CatchUp: bourse.CatchUpAll, Message: bourse.Message{RoutingKey: "q"}}
	b := open(t, bourse.Options{Clock: clock, Dir: dir}, bourse.Queue{Name: "q"}, s)
	clock.advance(t, b, 3*time.Hour)
	require.Equal(t, hours(1, 2, 3), fires(t, b, "q"))
	require.NoError(t, b.Close())
	clock.step(clock.Now().Add(-150 * time.Minute))
	b = open(t, bourse.Options{Clock: clock, Dir: dir}, s)
	clock.advance(t, b, 210*time.Minute-1)
	require.Empty(t, fires(t, b, "q"))
	clock.mu.Lock()
	clock.now = clock.now.Add(-time.Hour)
	clock.mu.Unlock()
	clock.advance(t, b, time.Hour)
	require.Empty(t, fires(t, b, "q"))
	clock.advance(t, b, 1)
	require.Equal(t, hours(4), fires(t, b, "q"))
}

// A crash at any time fires nothing twice and forgets nothing.
func TestSemanticsScheduleOverCrashes(t *testing.T) {
	clock, fs := newHandClock(), newHeldFS()
	s := bourse.Schedule{Name: "s", Every: time.Hour, CatchUp: bourse.CatchUpAll, Message: bourse.Message{RoutingKey: "q"}}
	b, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock, Engine: onFS(t, fs)})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"}, s))
	var want []int
	for i := range 20 {
		clock.advance(t, b, time.Hour)
		want = append(want, i+1)
		next, err := bourse.NewBroker(ctx, bourse.Options{Clock: clock, Engine: onFS(t, crashed(fs.MemFS))})
		require.NoError(t, err)
		barrier(t, next, clock)
		require.Equal(t, hours(want...), fires(t, next, "q"))
		require.NoError(t, next.Close())
	}
	require.NoError(t, b.Close())
}

// Fires that lead nowhere are counted, and the schedule goes on.
func TestSemanticsScheduleUnroutable(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "q"},
		bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{Exchange: "later", RoutingKey: "k"}})
	clock.advance(t, b, time.Hour)
	require.NoError(t, b.Declare(ctx, bourse.Exchange{Name: "later"}))
	clock.advance(t, b, time.Hour)
	st := schedule(t, b, "s")
	require.Equal(t, []uint64{0, 2}, []uint64{st.Fired, st.Unroutable})
	require.NoError(t, b.Declare(ctx, bourse.Binding{Exchange: "later", Queue: "q", Key: "k"}))
	clock.advance(t, b, time.Hour)
	require.Equal(t, hours(3), fires(t, b, "q"))
	require.NoError(t, b.Delete(ctx, bourse.Queue{Name: "q"}))
	clock.advance(t, b, time.Hour)
	st = schedule(t, b, "s")
	require.Equal(t, []uint64{1, 3}, []uint64{st.Fired, st.Unroutable})
	require.Zero(t, b.Stats().Unroutable, "which is of publishes")
}

// Where each queue has a log of its own, a fire reaches all of them, under the one id.
func TestSemanticsScheduleOverShards(t *testing.T) {
	clock := newHandClock()
	local, err := bourse.NewLocalEngine("", bourse.LocalOptions{})
	require.NoError(t, err)
	b := open(t, bourse.Options{Clock: clock, Engine: bourse.PerQueue(local)}, bourse.Queue{Name: "one"}, bourse.Queue{Name: "two"},
		bourse.Exchange{Name: "all", Kind: bourse.Fanout}, bourse.Binding{Exchange: "all", Queue: "one"},
		bourse.Binding{Exchange: "all", Queue: "two"},
		bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{Exchange: "all"}},
		bourse.Schedule{Name: "none", Every: time.Hour, Message: bourse.Message{RoutingKey: "none"}})
	clock.advance(t, b, 3*time.Hour)
	require.Equal(t, hours(1, 2, 3), fires(t, b, "one"))
	require.Equal(t, hours(1, 2, 3), fires(t, b, "two"))
	require.EqualValues(t, 3, schedule(t, b, "s").Fired)
	require.EqualValues(t, 3, schedule(t, b, "none").Unroutable)
}

// Transient queues get their copy too, alone or beside others.
func TestSemanticsScheduleToTransientQueues(t *testing.T) {
	clock := newHandClock()
	b := open(t, bourse.Options{Clock: clock}, bourse.Queue{Name: "kept"}, bourse.Queue{Name: "memory", Transient: true},
		bourse.Exchange{Name: "all", Kind: bourse.Fanout}, bourse.Binding{Exchange: "all", Queue: "kept"},
		bourse.Binding{Exchange: "all", Queue: "memory"},
		bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{Exchange: "all"}},
		bourse.Schedule{Name: "r", Every: time.Hour, Message: bourse.Message{RoutingKey: "memory"}})
	clock.advance(t, b, 2*time.Hour)
	require.Equal(t, hours(1, 2), fires(t, b, "kept"))
	require.Len(t, fires(t, b, "memory"), 4)
	for _, s := range b.Stats().Schedules {
		require.EqualValues(t, 2, s.Fired)
	}
}

// A fire that finds no room is late, not lost.
func TestSemanticsScheduleOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, err := bourse.NewLocalEngine("", bourse.LocalOptions{})
		require.NoError(t, err)
		e := &crammedEngine{Engine: local}
		b, err := bourse.NewBroker(ctx, bourse.Options{Engine: e})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"},
			bourse.Schedule{Name: "s", Every: time.Minute, Message: bourse.Message{RoutingKey: "q"}}))
		start := time.Now()
		<-time.After(90 * time.Second)
		require.Len(t, fires(t, b, "q"), 1)
		e.full.Store(true)
		<-time.After(40 * time.Second)
		e.full.Store(false)
		<-time.After(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"s@" + start.Add(2*time.Minute).UTC().Format(time.RFC3339)}, fires(t, b, "q"))
		st := schedule(t, b, "s")
		require.Equal(t, []uint64{2, 0}, []uint64{st.Fired, st.Skipped})
		require.NoError(t, b.Close())
	})
}

// A queue without room makes a fire late, and the other queues still get it once: those that share its log with it, the
// transient ones before.
func TestSemanticsScheduleToAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		ds := []bourse.Declaration{
			bourse.Exchange{Name: "all", Kind: bourse.Fanout}, bourse.Queue{Name: "kept"}, bourse.Queue{Name: "memory", Transient: true},
			bourse.Queue{Name: "full", MaxMessages: 1}, bourse.Queue{Name: "full memory", MaxMessages: 1, Transient: true},
			bourse.Schedule{Name: "s", Every: time.Minute, CatchUp: bourse.CatchUpAll, Message: bourse.Message{Exchange: "all"}},
		}
		queues := []string{"kept", "memory", "full", "full memory"}
		for _, q := range queues {
			ds = append(ds, bourse.Binding{Exchange: "all", Queue: q})
		}
		require.NoError(t, b.Declare(ctx, ds...))
		minute := func(n int) string {
			return "s@" + time.Date(2000, 1, 1, 0, n, 0, 0, time.UTC).Format(time.RFC3339)
		}
		<-time.After(3*time.Minute + 10*time.Second)
		synctest.Wait()
		got := map[string][]string{}
		for n := range 3 {
			for _, q := range []string{"full", "full memory"} { // one after the other gets room
				got[q] = append(got[q], fires(t, b, q)...)
				<-time.After(5 * time.Second)
				synctest.Wait()
			}
			require.EqualValues(t, min(n+2, 3), schedule(t, b, "s").Fired)
		}
		for _, q := range queues {
			all := append(got[q], fires(t, b, q)...)
			require.Equal(t, []string{minute(1), minute(2), minute(3)}, all, q)
		}
		require.NoError(t, b.Close())
	})
}

// With the system's clock a schedule fires at its times and asks for nothing in between.
func TestSemanticsScheduleBySystemClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := bourse.NewBroker(ctx, bourse.Options{})
		require.NoError(t, err)
		require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "q"},
			bourse.Schedule{Name: "s", Cron: "*/10 * * * * *", Message: bourse.Message{RoutingKey: "q"}}))
		stop, end := context.WithCancel(ctx)
		var got []string
		require.NoError(t, b.Work(stop, "q", func(_ context.Context, d *bourse.Delivery) error {
			if !time.Now().Equal(d.Timestamp) {
				return errors.New("not at its time")
			}
			if got = append(got, d.ID); len(got) == 5 {
				end()
			}
			return nil
		}, bourse.WorkOptions{}))
		require.Equal(t, "s@2000-01-01T00:00:50Z", got[4])
		records := b.Stats().Storage.Records
		<-time.After(100 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 20, b.Stats().Storage.Records-records, "a tick and a fire each")
		require.NoError(t, b.Close())
	})
}

func TestSemanticsScheduleRefused(t *testing.T) {
	b := open(t, bourse.Options{MaxSchedules: 2, MaxBodyBytes: 100}, bourse.Schedule{Name: "s", Every: time.Hour},
		bourse.Schedule{Name: "c", Cron: "@daily"})
	for _, row := range []struct {
		s    bourse.Schedule
		is   error
		says string
	}{
		{bourse.Schedule{Name: "n", Cron: "61 * * * *"}, bourse.ErrInvalid, "Schedule.Cron"},
		{bourse.Schedule{Name: "n", Cron: "0 0 30 2 *"}, bourse.ErrInvalid, "no such time"},
		{bourse.Schedule{Name: "n", Cron: "@every 1h"}, bourse.ErrInvalid, "belongs into Every"},
		{bourse.Schedule{Name: "n", Cron: "TZ=UTC * * * * *"}, bourse.ErrInvalid, "belongs into TimeZone"},
		{bourse.Schedule{Name: "n", Cron: "@daily", TimeZone: "Mars/Phobos"}, bourse.ErrInvalid, "Schedule.TimeZone"},
		{bourse.Schedule{Name: "n", Every: time.Hour, Message: bourse.Message{Body: make([]byte, 101)}}, bourse.ErrInvalid, "Schedule.Message.Body: 101 bytes, limit 100"},
		{bourse.Schedule{Name: "n", Every: time.Hour}, bourse.ErrTooMany, `schedule "n": the limit is 2 schedules`},
		{bourse.Schedule{Name: "s", Every: time.Minute}, bourse.ErrPrecondition, `schedule "s" exists with other settings: Every is 1h0m0s`},
		{bourse.Schedule{Name: "s", Cron: "@hourly"}, bourse.ErrPrecondition, `Cron is "", declared "@hourly"`},
		{bourse.Schedule{Name: "c", Cron: "@daily", TimeZone: "Asia/Tokyo"}, bourse.ErrPrecondition, `TimeZone is "UTC", declared "Asia/Tokyo"`},
		{bourse.Schedule{Name: "s", Every: time.Hour, CatchUp: bourse.CatchUpAll}, bourse.ErrPrecondition, "CatchUp is skip, declared all"},
		{bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{Exchange: "x"}}, bourse.ErrPrecondition, "Message.Exchange"},
		{bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{RoutingKey: "x"}}, bourse.ErrPrecondition, "Message.RoutingKey"},
		{bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{Priority: 1}}, bourse.ErrPrecondition, "Message.Priority"},
		{bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{TTL: 1}}, bourse.ErrPrecondition, "Message.TTL"},
		{bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{GroupID: "g"}}, bourse.ErrPrecondition, "Message.GroupID"},
		{bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{Headers: map[string]any{"a": 1}}}, bourse.ErrPrecondition,
			"Message.Headers"},
		{bourse.Schedule{Name: "s", Every: time.Hour, Message: bourse.Message{Body: []byte("x")}}, bourse.ErrPrecondition, "Message.Body"},
	} {
		before := b.EncodedTopology()
		err := b.Declare(ctx, bourse.Queue{Name: "all or none"}, row.s)
		require.ErrorIs(t, err, row.is, row.says)
		require.ErrorContains(t, err, row.says)
		require.Equal(t, before, b.EncodedTopology())
	}
	require.ErrorIs(t, b.Delete(ctx, bourse.Schedule{}), bourse.ErrInvalid)
	require.NoError(t, b.Delete(ctx, bourse.Schedule{Name: "c"}))
	require.NoError(t, b.Declare(ctx, bourse.Schedule{Name: "n", Every: time.Hour}), "there is room again")
}
