package bourse

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: a schedule fires when its expression and its time zone say, over every change of the clocks, and catch-up chooses
// what it says among the missed. Method: years of real minutes, each of which is asked what the clock on the wall shows, and
// expressions that are matched field by field; the decisions in a table.

// civil is the minute that a clock on the wall shows, counted as if the wall were in UTC.
func civil(t time.Time) int64 {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC).Unix() / 60
}

// cronFields is an expression of five fields, each *, or a list of numbers and ranges, with a step: which values match.
type cronFields struct {
	match          [5][60]bool
	days, weekdays bool // the field is not *
	hourly         bool
}

func newCronFields(expression string) (f cronFields) {
	lowest, highest := []int{0, 0, 1, 1, 0}, []int{59, 23, 31, 12, 6}
	fields := strings.Fields(expression)
	for i, field := range fields {
		for part := range strings.SplitSeq(field, ",") {
			span, by, stepped := strings.Cut(part, "/")
			low, high, ranged := strings.Cut(span, "-")
			from, to, step := lowest[i], highest[i], 1
			if low != "*" {
				from, _ = strconv.Atoi(low)
				if !stepped {
					to = from
				}
			}
			if ranged {
				to, _ = strconv.Atoi(high)
			}
			if stepped {
				step, _ = strconv.Atoi(by)
			}
			for v := from; v <= to; v += step {
				f.match[i][v] = true
			}
		}
	}
	f.days, f.weekdays, f.hourly = fields[2] != "*", fields[4] != "*", fields[1] == "*"
	return f
}

func (f *cronFields) matches(minute int64) bool {
	if !f.match[0][minute%60] || !f.match[1][minute/60%24] {
		return false
	}
	t := time.Unix(minute*60, 0).UTC()
	day, weekday := f.match[2][t.Day()], f.match[4][t.Weekday()]
	days := day && weekday
	if f.days && f.weekdays { // both are given: either will do
		days = day || weekday
	}
	return days && f.match[3][t.Month()]
}

// expected are the ticks of an expression in real minutes from a time, by what the clock on the wall shows in each.
func expected(expression string, from instant, shows []int64) (all []instant) {
	f := newCronFields(expression)
	shown := shows[0] - 1
	for i, c := range shows {
		hit := false
		if f.hourly { // every hour that passes
			hit = f.matches(c)
		} else { // every time that is shown for the first time, or passed over
			for x := shown + 1; x <= c; x++ {
				hit = hit || f.matches(x)
			}
			shown = max(shown, c)
		}
		if hit {
			all = append(all, from+instant(i)*instant(time.Minute))
		}
	}
	return all
}

var zonesAndYears = []struct {
	zone string
	year int
	why  string
}{
	{"UTC", 2028, "a leap year"},
	{"America/New_York", 2030, "an hour at two"},
	{"Europe/Berlin", 2030, "an hour at two and at three"},
	{"Australia/Lord_Howe", 2030, "half an hour"},
	{"America/Sao_Paulo", 2018, "an hour at midnight"},
	{"Pacific/Apia", 2011, "a whole day is missing"},
	{"Asia/Kolkata", 2030, "half an hour off"},
	{"Africa/Casablanca", 2031, "four changes"},
}

func TestTimetableOverAYear(t *testing.T) {
	expressions := []string{
		"0 * * * *", "30 2 * * *", "15,45 1-3 * * *", "0 0 * * *", "*/20 */6 * * *", "59 23 31 12 *", "30 2 * 3,10,11 0", "5 1 29 2 *",
		"0 12 13 * 5", "10 * 25-31 * *", "0 0,1,2,3 * * *", "30 0 1-7 * *",
	}
	total := 0
	for _, c := range zonesAndYears {
		loc, err := time.LoadLocation(c.zone)
		require.NoError(t, err)
		from, to := time.Date(c.year, 1, 1, 0, 0, 0, 0, loc), time.Date(c.year+1, 1, 1, 0, 0, 0, 0, loc)
		var shows []int64
		for t := from; t.Before(to); t = t.Add(time.Minute) {
			shows = append(shows, civil(t))
		}
		for _, expression := range expressions {
			tt, bad := newTimetable(Schedule{Cron: expression, TimeZone: c.zone}, 0)
			require.Nil(t, bad)
			want := expected(expression, instant(from.UnixNano()), shows)
			at := instant(from.UnixNano()) - 1
			for i, tick := range want {
				require.Equal(t, time.Unix(0, int64(tick)).In(loc), time.Unix(0, int64(tt.after(at))).In(loc),
					"%s in %s (%s): tick %d after %v",
					expression, c.zone, c.why, i, time.Unix(0, int64(at)).In(loc))
				at = tick
			}
			require.GreaterOrEqual(t, tt.after(at), instant(to.UnixNano()))
			total += len(want)

			// From anywhere in between, and backwards.
			if len(want) == 0 {
				continue
			}
			rng := rand.New(rand.NewPCG(1, uint64(len(want))))
			for range 50 {
				i := rng.IntN(len(want))
				limit := want[i] + instant(rng.Int64N(int64(30*time.Minute)))
				last := i
				for last+1 < len(want) && want[last+1] <= limit {
					last++
				}
				require.Equal(t, want[last], tt.lastUntil(instant(from.UnixNano())-1, limit), "%s in %s", expression, c.zone)
				require.Equal(t, min(last, 99)+1, tt.count(want[max(last-99, 0)], limit, len(want)))
				if limit < want[last] && last > 0 {
					require.Equal(t, want[last], tt.after(limit))
				}
			}
		}
	}
	t.Logf("%d ticks", total)
}

func TestTimetableSpelling(t *testing.T) {
	start := instant(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	for _, row := range []struct {
		cron string
		want time.Duration // from start to the first tick
	}{
		{"@hourly", time.Hour}, {"@daily", 24 * time.Hour}, {"@midnight", 24 * time.Hour}, {"@weekly", 5 * 24 * time.Hour},
		{"@monthly", 31 * 24 * time.Hour}, {"@yearly", 365 * 24 * time.Hour}, {"@annually", 365 * 24 * time.Hour},
		{"* * * * *", time.Minute}, {"*/10 * * * * *", 10 * time.Second}, {"30 5 * * * *", 5*time.Minute + 30*time.Second},
		{"0 9 * * MON", 6*24*time.Hour + 9*time.Hour}, {"0 0 1 feb *", 31 * 24 * time.Hour}, {"0 0 29 2 *", (365*2 + 31 + 28) * 24 * time.Hour},
	} {
		tt, bad := newTimetable(Schedule{Cron: row.cron}, 0)
		require.Nil(t, bad, row.cron)
		require.Equal(t, row.want, time.Duration(tt.after(start)-start), row.cron)
	}
	for _, row := range []struct{ cron, zone, field string }{
		{"", "", "Schedule.Cron"}, {"* * * *", "", "Schedule.Cron"}, {"* * * * * * *", "", "Schedule.Cron"}, {"60 * * * *", "", "Schedule.Cron"},
		{"* 24 * * *", "", "Schedule.Cron"}, {"a * * * *", "", "Schedule.Cron"}, {"*/0 * * * *", "", "Schedule.Cron"},
		{"5-1 * * * *", "", "Schedule.Cron"}, {"@never", "", "Schedule.Cron"}, {"@every 1h", "", "Schedule.Cron"}, {"@", "", "Schedule.Cron"},
		{"TZ=UTC * * * * *", "", "Schedule.Cron"}, {"CRON_TZ=UTC * * * * *", "", "Schedule.Cron"}, {"TZ=", "", "Schedule.Cron"},
		{"* * * * *", "Mars/Phobos", "Schedule.TimeZone"}, {"* * * * *", "Local", "Schedule.TimeZone"},
		{"* * * * *", "../UTC", "Schedule.TimeZone"}, {"* * * * *", "EST5EDT4", "Schedule.TimeZone"},
	} {
		_, bad := newTimetable(Schedule{Cron: row.cron, TimeZone: row.zone}, 0)
		require.NotNil(t, bad, "%q in %q", row.cron, row.zone)
		require.Equal(t, row.field, bad.Field)
	}
	tt, bad := newTimetable(Schedule{Cron: "0 0 30 2 *"}, 0)
	require.Nil(t, bad)
	require.Equal(t, never, tt.after(start))
	require.Equal(t, never, tt.after(instant(time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())))
}

func TestTimetableFixedRate(t *testing.T) {
	const anchor = instant(1_900_000_000_123_456_789)
	tt, bad := newTimetable(Schedule{Every: 90 * time.Minute}, anchor)
	require.Nil(t, bad)
	const rate = instant(90 * time.Minute)
	for _, row := range []struct{ at, want instant }{
		{anchor - 5*rate, anchor + rate}, {anchor - 1, anchor + rate}, {anchor, anchor + rate}, {anchor + rate - 1, anchor + rate},
		{anchor + rate, anchor + 2*rate}, {anchor + 100*rate + 1, anchor + 101*rate}, {never - 1, never},
	} {
		require.Equal(t, row.want, tt.after(row.at), "at %d", row.at-anchor)
	}
	require.Equal(t, anchor+7*rate, tt.lastUntil(anchor+rate, anchor+8*rate-1))
	require.Equal(t, 7, tt.count(anchor+rate, anchor+8*rate-1, 100))
	require.Equal(t, 3, tt.count(anchor+rate, anchor+8*rate-1, 3))
}

func TestDecide(t *testing.T) {
	const hour, minute = instant(time.Hour), instant(time.Minute)
	const day0 = instant(1_893_456_000_000_000_000) // 2030, midnight
	for _, form := range []Schedule{{Name: "s", Every: time.Hour}, {Name: "s", Cron: "0 * * * *"}} {
		tt, bad := newTimetable(form, day0)
		require.Nil(t, bad)
		for _, row := range []struct {
			policy   CatchUp
			due, now instant // the first in hours, the second from midnight
			want     fire    // fire and next in hours
		}{
			// Nothing was missed.
			{CatchUpSkip, 1, hour, fire{outcome: outcomeHere, fire: 1, next: 2}},
			{CatchUpOne, 1, hour, fire{outcome: outcomeHere, fire: 1, next: 2}},
			{CatchUpAll, 1, hour, fire{outcome: outcomeHere, fire: 1, next: 2}},
			// A little late.
			{CatchUpSkip, 1, hour + minute, fire{outcome: outcomeHere, fire: 1, next: 2}},
			{CatchUpSkip, 1, hour + minute + 1, fire{next: 2, skipped: 1}},
			{CatchUpOne, 1, 2*hour - 1, fire{outcome: outcomeHere, fire: 1, next: 2}},
			{CatchUpAll, 1, 2*hour - 1, fire{outcome: outcomeHere, fire: 1, next: 2}},
			// Several are due.
			{CatchUpSkip, 1, 5*hour + 30*minute, fire{next: 6, skipped: 5}},
			{CatchUpSkip, 1, 5 * hour, fire{outcome: outcomeHere, fire: 5, next: 6, skipped: 4}},
			{CatchUpSkip, 1, 5*hour + minute, fire{outcome: outcomeHere, fire: 5, next: 6, skipped: 4}},
			{CatchUpOne, 1, 6*hour - 1, fire{outcome: outcomeHere, fire: 5, next: 6, skipped: 4}},
			{CatchUpOne, 1, 2 * hour, fire{outcome: outcomeHere, fire: 2, next: 3, skipped: 1}},
			{CatchUpAll, 1, 5*hour + 30*minute, fire{outcome: outcomeHere, fire: 1, next: 2}},
			{CatchUpAll, 4, 5*hour + 30*minute, fire{outcome: outcomeHere, fire: 4, next: 5}},
			// More than can be made up for, or be counted.
			{CatchUpAll, 1, 1001*hour - 1, fire{outcome: outcomeHere, fire: 1, next: 2}},
			{CatchUpAll, 1, 1001 * hour, fire{next: 2, skipped: 1}},
			{CatchUpAll, 7, 5000*hour + 1, fire{next: 4001, skipped: 3994}},
			{CatchUpOne, 1, 20_001*hour - 1, fire{outcome: outcomeHere, fire: 20_000, next: 20_001, skipped: 10_000}},
			{CatchUpSkip, 1, 10_002*hour - 1, fire{next: 10_002, skipped: 10_001}},
		} {
			a := &appointment{scheduleDef: &scheduleDef{9, form}, since: day0, due: day0 + row.due*hour, asked: true}
			a.CatchUp = row.policy
			want := row.want
			want.schedule, want.due, want.next = 9, a.due, day0+row.want.next*hour
			if want.fire != 0 {
				want.fire = day0 + row.want.fire*hour
			}
			require.Equal(t, want, decide(a, &tt, day0+row.now), "%v: due %v, now %v", row.policy, row.due, time.Duration(row.now))
		}
		first := decide(&appointment{scheduleDef: &scheduleDef{9, form}, since: day0 + hour/2, asked: true}, &tt, day0+90*hour)
		require.Equal(t, outcomeNone, first.outcome, "the first time is found, whatever the time is by now")
		require.LessOrEqual(t, first.next, day0+hour+hour/2)
	}
}

func TestFireID(t *testing.T) {
	at := time.Date(2030, 3, 1, 3, 0, 0, 0, time.UTC)
	require.Equal(t, "nightly@2030-03-01T03:00:00Z", fireID("nightly", instant(at.UnixNano())))
	require.Equal(t, "r@2030-03-01T03:00:00.000000001Z", fireID("r", instant(at.UnixNano()+1)))
	longest := fireID(strings.Repeat("n", MaxScheduleName), instant(time.Date(2261, 12, 31, 23, 59, 59, 999_999_999, time.UTC).UnixNano()))
	require.Nil(t, validateName("Message.ID", longest), fmt.Sprint(len(longest)))
}

// The spans of a zone follow one another without a gap, also beyond the years that its table lists and over the last
// day of a leap year.
func TestSpansFollowOneAnother(t *testing.T) {
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Tehran", "UTC"}
	for _, zone := range zones {
		tt, bad := newTimetable(Schedule{Cron: "0 0 31 3 *", TimeZone: zone}, 0)
		require.Nil(t, bad)
		at := instant(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
		s := tt.spanAt(at)
		for n := 0; s.end != 0; n++ {
			require.Less(t, n, 2000, "%s has no end", zone)
			require.Greater(t, s.end, at, "%s: %v", zone, time.Unix(0, int64(at)).UTC())
			require.Equal(t, s.offset, tt.spanAt(s.end-1).offset, zone)
			at, s = s.end, tt.spanAt(s.end)
		}
		fires := 0
		for at = 1_893_456_000_000_000_000; at != never; fires++ {
			at = tt.after(at)
		}
		require.Equal(t, 2261-2030+1+1, fires, "%s: one a year, and never", zone)
	}
}

// No text makes the parser panic or hang.
func FuzzCron(f *testing.F) {
	for _, s := range []string{
		"* * * * *", "TZ=", "@every 1s", "*/5 1-3,5 ? JAN-MAR/2 SUN", "CRON_TZ=x", "@daily", "0 0 31 2 *", "0 0 31 3 *",
	} {
		f.Add(s, "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, text, zone string) {
		tt, bad := newTimetable(Schedule{Cron: text, TimeZone: zone}, 0)
		if bad != nil {
			return
		}
		at := instant(1_893_456_000_000_000_000)
		for range 20 {
			next := tt.after(at)
			require.Greater(t, next, at)
			at = next
			if next == never {
				break
			}
		}
	})
}
