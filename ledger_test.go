package bourse

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Goal: the ledger knows who has which message since when, and the roster who is to be served. Method:
// twins, a slice of loans and a scan over consumers, in lock-step under random operations, with the invariants
// checked after each.

type plainLedgerLoan struct {
	e        entry
	c        *consumer
	tag      uint64
	deadline instant
	slot     slotID
}

func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := newLedger(), roster{}
		var loans []plainLedgerLoan
		seq, now := uint64(0), instant(0)
		attached := consumerID(0)
		pick := func(t *rapid.T) int {
			if len(loans) == 0 {
				t.Skip("no loan")
			}
			return rapid.IntRange(0, len(loans)-1).Draw(t, "loan")
		}
		t.Repeat(map[string]func(*rapid.T){
			"attach": func(t *rapid.T) {
				if attached++; len(r.all) < 4 {
					r.attach(&consumer{id: attached, prefetch: 1})
				}
			},
			"grant": func(t *rapid.T) {
				if len(r.all) == 0 {
					t.Skip("no consumer")
				}
				c := r.all[rapid.IntRange(0, len(r.all)-1).Draw(t, "consumer")]
				seq++
				now += instant(rapid.IntRange(0, 2).Draw(t, "later"))
				e := entry{seq: seq, size: uint32(seq), deliveries: 1}
				deadline := now + instant(rapid.SampledFrom([]int{10, 10, 10, 3}).Draw(t, "deadline"))
				tag := c.lastTag + 1
				s := l.grant(e, c, deadline)
				r.fix(c)
				for _, o := range loans {
					require.NotEqual(t, o.slot, s, "the slot is in use")
				}
				loans = append(loans, plainLedgerLoan{e, c, tag, deadline, s})
			},
			"end": func(t *rapid.T) {
				i := pick(t)
				require.Equal(t, loans[i].e, l.end(loans[i].slot))
				r.fix(loans[i].c)
				require.Equal(t, noSlot, l.find(loans[i].c.id, loans[i].tag, loans[i].slot))
				loans = slices.Delete(loans, i, i+1)
			},
			"extend": func(t *rapid.T) {
				i := pick(t)
				loans[i].deadline = now + instant(rapid.IntRange(0, 30).Draw(t, "by"))
				l.extend(loans[i].slot, loans[i].deadline)
			},
			"detach": func(t *rapid.T) {
				if len(r.all) == 0 {
					t.Skip("no consumer")
				}
				c := r.all[rapid.IntRange(0, len(r.all)-1).Draw(t, "consumer")]
				last := uint64(0)
				for c.oldest != noSlot {
					tag := l.slots[c.oldest].tag
					require.Greater(t, tag, last, "a consumer's loans are in the order of their tags")
					last = tag
					l.end(c.oldest)
				}
				r.detach(c)
				loans = slices.DeleteFunc(loans, func(o plainLedgerLoan) bool { return o.c == c })
			},
			"": func(t *rapid.T) {
				l.check(&r, func(entry, bool) {})
				r.check()
				require.Equal(t, len(loans), l.n)
				due, bytes := instant(0), int64(0)
				held := map[*consumer]int32{}
				for i, o := range loans {
					if i == 0 || o.deadline < due {
						due = o.deadline
					}
					bytes += int64(o.e.size)
					held[o.c]++
					require.Equal(t, o.slot, l.find(o.c.id, o.tag, o.slot))
					require.Equal(t, noSlot, l.find(o.c.id, o.tag+1, o.slot))
					require.Equal(t, noSlot, l.find(o.c.id+100, o.tag, o.slot))
				}
				require.Equal(t, bytes, l.bytes)
				for _, c := range r.all {
					require.Equal(t, held[c], c.outstanding)
				}
				if next := l.nextDeadline(); len(loans) == 0 {
					require.Equal(t, noSlot, next)
				} else {
					require.Equal(t, due, l.slots[next].deadline)
				}
			},
		})
	})
}

// No slot is found outside the table.
func TestLedgerFindBeyondTheTable(t *testing.T) {
	l, c := newLedger(), &consumer{id: 1, oldest: noSlot, newest: noSlot}
	require.Equal(t, noSlot, l.find(1, 1, 0))
	s := l.grant(entry{seq: 1}, c, 5)
	require.Equal(t, s, l.find(1, 1, s))
	require.Equal(t, noSlot, l.find(1, 1, -1))
	require.Equal(t, noSlot, l.find(1, 1, s+1))
	require.Equal(t, noSlot, l.find(1, 1, 1<<31-1))
}

// The next consumer is the one that a scan over all finds.
func TestRosterModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := roster{}
		next := consumerID(0)
		pick := func(t *rapid.T) *consumer {
			if len(r.all) == 0 {
				t.Skip("nobody is here")
			}
			return r.all[rapid.IntRange(0, len(r.all)-1).Draw(t, "consumer")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"attach": func(t *rapid.T) {
				next++
				r.attach(&consumer{
					id: next, prefetch: int32(rapid.IntRange(0, 4).Draw(t, "prefetch")),
					priority: int32(rapid.IntRange(-1, 1).Draw(t, "priority")),
				})
			},
			"detach": func(t *rapid.T) {
				c := pick(t)
				r.detach(c)
				require.Nil(t, r.find(c.id))
			},
			"prefetch": func(t *rapid.T) {
				c := pick(t)
				c.prefetch = int32(rapid.IntRange(0, 4).Draw(t, "prefetch"))
				r.fix(c)
			},
			"serve": func(t *rapid.T) {
				if c := r.next(); c != nil {
					r.turn++
					c.turn = r.turn
					c.outstanding++
					r.fix(c)
				}
			},
			"settle": func(t *rapid.T) {
				if c := pick(t); c.outstanding > 0 {
					c.outstanding--
					r.fix(c)
				}
			},
			"": func(t *rapid.T) {
				r.check()
				var want *consumer
				for _, c := range r.all {
					require.Same(t, c, r.find(c.id))
					switch {
					case c.outstanding >= c.prefetch:
					case want == nil || c.priority > want.priority:
						want = c
					case c.priority < want.priority:
					case c.outstanding < want.outstanding:
						want = c
					case c.outstanding == want.outstanding && c.turn < want.turn:
						want = c
					}
				}
				require.Same(t, want, r.next())
			},
		})
	})
}
