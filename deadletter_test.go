package bourse

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: the history and cycle rules of SEMANTICS 10, and the pause of 11. Method: tables of histories
// in a short notation, a naive twin for bury, and round trips of the encoding.

// history reads "q/rejected*2 r/delivery_limit", newest first.
func history(text string) (all []Death) {
	for word := range strings.FieldsSeq(text) {
		d := Death{Count: 1}
		word, count, counted := strings.Cut(word, "*")
		if counted {
			fmt.Sscan(count, &d.Count)
		}
		d.Queue, d.Reason, _ = strings.Cut(word, "/")
		all = append(all, d)
	}
	return all
}

func historyText(all []Death) string {
	var words []string
	for _, d := range all {
		word := d.Queue + "/" + d.Reason
		if d.Count != 1 {
			word += fmt.Sprintf("*%d", d.Count)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func TestBuryTable(t *testing.T) {
	rows := []struct{ before, death, after string }{
		{"", "q/rejected", "q/rejected"},
		{"q/rejected", "r/rejected", "r/rejected q/rejected"},
		// The same queue and reason: counted, and in front.
		{"q/rejected", "q/rejected", "q/rejected*2"},
		{"r/delivery_limit q/rejected*3", "q/rejected", "q/rejected*4 r/delivery_limit"},
		{"q/delivery_limit q/rejected", "q/rejected", "q/rejected*2 q/delivery_limit"},
		// Another reason is another entry.
		{"q/rejected", "q/delivery_limit", "q/delivery_limit q/rejected"},
		{"q/rejected", "q/cycle", "q/cycle q/rejected"},
		{"a/rejected b/rejected c/rejected", "b/rejected", "b/rejected*2 a/rejected c/rejected"},
	}
	for _, row := range rows {
		before := history(row.before)
		after := bury(before, history(row.death)[0])
		require.Equal(t, row.after, historyText(after), "%q, then %q", row.before, row.death)
		require.Equal(t, row.before, historyText(before), "the history passed in has changed")
	}
}

// Time and address of the first death stay, time, failures and note of the latest are new.
func TestBuryKeepsTheFirst(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	first := Death{Queue: "q", Reason: ReasonRejected, Count: 1, First: at(1), Last: at(1), Exchange: "ex", RoutingKey: "k", Note: "one",
		Failures: 3}
	second := Death{Queue: "q", Reason: ReasonRejected, Count: 1, First: at(9), Last: at(9), Exchange: "dead", RoutingKey: "z", Note: "two",
		Failures: 1}
	require.Equal(t, []Death{{
		Queue: "q", Reason: ReasonRejected, Count: 2, First: at(1), Last: at(9), Exchange: "ex", RoutingKey: "k", Note: "two",
		Failures: 1,
	}}, bury([]Death{first}, second))
}

// A history is bounded; the very first death stays, wherever it stands.
func TestBuryIsBounded(t *testing.T) {
	var all []Death
	die := func(queue string, s int64) {
		all = bury(all, Death{Queue: queue, Reason: ReasonRejected, Count: 1, First: time.Unix(s, 0), Last: time.Unix(s, 0)})
	}
	for i := range int64(maxDeaths + 5) {
		die(fmt.Sprintf("q%d", i), i)
	}
	require.Len(t, all, maxDeaths)
	require.Equal(t, "q68", all[0].Queue)
	require.Equal(t, "q0", all[maxDeaths-1].Queue, "the very first")
	require.Equal(t, "q6", all[maxDeaths-2].Queue)
	// It dies once more there and then in other queues: the entry of the very first death moves
	// to the front and down again, and is not what is forgotten.
	die("q0", 100)
	require.Equal(t, "q0", all[0].Queue)
	require.Equal(t, 2, all[0].Count)
	for i := range int64(2 * maxDeaths) {
		die(fmt.Sprintf("r%d", i), 200+i)
		require.LessOrEqual(t, len(all), maxDeaths)
	}
	require.Contains(t, historyText(all), "q0/rejected*2")
	require.Equal(t, time.Unix(0, 0), all[maxDeaths-1].First)
}

// The twin keeps every single death and counts when asked.
func TestBuryModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all, every []Death
		for i := range rapid.IntRange(1, 40).Draw(t, "deaths") {
			at := time.Unix(int64(i), 0)
			d := Death{
				Queue: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "queue"), Count: 1, First: at, Last: at,
				Reason:   rapid.SampledFrom([]string{ReasonRejected, ReasonDeliveryLimit, ReasonCycle}).Draw(t, "reason"),
				Exchange: fmt.Sprint("e", i), RoutingKey: fmt.Sprint("k", i), Note: fmt.Sprint("n", i), Failures: i,
			}
			all, every = bury(all, d), append(every, d)
		}
		var want []Death
		for i := len(every) - 1; i >= 0; i-- {
			last, known := every[i], false
			for _, w := range want {
				known = known || w.Queue == last.Queue && w.Reason == last.Reason
			}
			if known {
				continue
			}
			entry := Death{Count: 0}
			for _, e := range every {
				if e.Queue == last.Queue && e.Reason == last.Reason {
					if entry.Count == 0 {
						entry = e
						entry.Count = 0
					}
					entry.Count++
				}
			}
			entry.Last, entry.Failures, entry.Note = last.Last, last.Failures, last.Note
			want = append(want, entry)
		}
		require.Equal(t, want, all)
	})
}

// The history includes the death that has just happened, newest first.
func TestCyclesTable(t *testing.T) {
	rows := []struct {
		history, target string
		cycle           bool
	}{
		{"", "q", false},
		// Into the queue it died in, at once.
		{"q/delivery_limit", "q", true},
		{"q/delivery_limit", "r", false},
		// Round over other queues.
		{"r/delivery_limit q/delivery_limit", "q", true},
		{"r/delivery_limit q/delivery_limit", "r", true},
		{"r/delivery_limit q/delivery_limit", "s", false},
		// A rejection in between breaks it, whether in the target or elsewhere.
		{"r/rejected q/delivery_limit", "q", false},
		{"s/delivery_limit r/rejected q/delivery_limit", "q", false},
		{"r/delivery_limit q/rejected", "q", false},
		{"q/rejected", "q", false},
		// One before it does not.
		{"r/delivery_limit q/delivery_limit s/rejected", "q", true},
		{"r/delivery_limit q/delivery_limit q/rejected", "q", true},
		// The last death from the target decides, not an older one.
		{"r/delivery_limit q/rejected q/delivery_limit", "q", false},
		// Parked and replayed.
		{"bourse.parked/delivery_limit q/cycle q/delivery_limit", "q", true},
	}
	for _, row := range rows {
		require.Equal(t, row.cycle, cycles(history(row.history), row.target), "%q to %q", row.history, row.target)
	}
}

func TestClipNote(t *testing.T) {
	require.Equal(t, "short", clipNote("short"))
	long := strings.Repeat("x", maxNoteBytes)
	require.Equal(t, long, clipNote(long))
	require.Equal(t, long, clipNote(long+"y"))
}

func drawHistory(t *rapid.T) []Death {
	text := rapid.StringN(0, 20, -1)
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Death {
		return Death{
			Queue: text.Draw(t, "queue"), Reason: text.Draw(t, "reason"), Count: rapid.IntRange(0, 1<<31-1).Draw(t, "count"),
			First: time.Unix(0, rapid.Int64().Draw(t, "first")), Last: time.Unix(0, rapid.Int64().Draw(t, "last")),
			Exchange: text.Draw(t, "exchange"), RoutingKey: text.Draw(t, "key"), Note: text.Draw(t, "note"),
			Failures: rapid.IntRange(0, 1<<31-1).Draw(t, "failures"),
		}
	}), 0, 5).Draw(t, "history")
}

func TestDeathsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawHistory(t)
		b := appendDeaths(nil, want)
		got, err := decodeDeaths(b)
		require.NoError(t, err)
		require.Equal(t, want, got)
		for _, bad := range [][]byte{b[:len(b)-1], append(b[:len(b):len(b)], 0)} {
			_, err := decodeDeaths(bad)
			if len(bad) > 0 {
				require.Error(t, err)
			}
		}
	})
	none, err := decodeDeaths(nil)
	require.NoError(t, err)
	require.Empty(t, none)
	other := appendDeaths(nil, history("q/rejected"))
	other[0]++
	_, err = decodeDeaths(other)
	require.Error(t, err, "of another version")
}
