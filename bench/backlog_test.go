package bench

import (
	"strings"
	"testing"
	"time"
)

// Goal: a round with a deep queue does what its figures say. Method: after it, each message of the floor was stored and acked once,
// and nothing waits in the broker; a second round finds the place of the first.
func TestBacklog(t *testing.T) {
	b := openForTest(t, Config{Messages: floorMessages, Duration: 20 * time.Millisecond})
	var all Backlogs
	for range 2 {
		d, err := b.Backlog(floorMessages)
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string]int{
			"filled, floor": d.Fill.Floor.Messages, "drained, floor": d.Drain.Floor.Messages,
			"filled": d.Fill.Broker.Messages, "drained": d.Drain.Broker.Messages,
		} {
			if got != floorMessages {
				t.Errorf("%s: %d messages, want %d", name, got, floorMessages)
			}
		}
		published, acked := make(map[uint64]int), make(map[uint64]int)
		readFloor(t, b, published, acked)
		if len(published) != floorMessages || len(acked) != floorMessages {
			t.Errorf("the floor stored %d messages and acked %d, want %d", len(published), len(acked), floorMessages)
		}
		for seq, n := range acked {
			if n != 1 || published[seq] != 1 {
				t.Fatalf("message %d was stored %d times and acked %d times", seq, published[seq], n)
			}
		}
		if s, _ := b.broker.QueueStats(wideName(0)); s.Ready+s.Unacked != 0 {
			t.Errorf("%d messages are left", s.Ready+s.Unacked)
		}
		all = append(all, d)
	}
	var out strings.Builder
	all.Write(&out)
	if rows := strings.Count(out.String(), "\n"); rows != 2+len(backlogRows) {
		t.Errorf("a table of %d lines:\n%s", rows, &out)
	}
	slow := Round{Floor: Sample{Messages: 1000, Elapsed: time.Second}, Broker: Sample{Messages: 100, Elapsed: time.Second}}
	good := Round{Floor: slow.Floor, Broker: slow.Floor}
	for i, d := range []Backlog{{good, good, good}, {slow, good, good}, {good, slow, good}, {good, good, slow}} {
		if err := (Backlogs{d}).Check(); (err == nil) != (i == 0) {
			t.Errorf("case %d: %v", i, err)
		}
	}
}
