package bourse_test

// Goal: the simulator finds the mistakes that it is there for. Method: each entry of the table is one mistake of its kind, as a
// change to one place of the source. The package is built with that change (go test -overlay; no file here is touched), and
// TestSim must fail in it within plantedSeeds. A place that does not exist any more is an error: the mistake must follow the code.

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

var simPlanted = flag.Bool("sim.planted", false, "build with each planted mistake, and have TestSim find it")

// plantedSeeds is within how many runs of 500 commands each mistake must be found; plantedFirst is the first of them.
const plantedSeeds, plantedFirst = 200, 1

// mistakes are the planted ones: what in file is replaced by what.
var mistakes = []struct{ name, file, right, wrong string }{
	{"a message that failed is lost", "queue.go", "\tif pause <= 0 {\n\t\tq.insertReady(e)\n\t\treturn", "\tif pause <= 0 {\n\t\treturn"},
	{"a message that failed comes back at the lowest level", "queue.go", "\tif pause <= 0 {\n\t\tq.insertReady(e)", "\tif pause <= 0 {\n\t\te.level = 0\n\t\tq.insertReady(e)"},
	{"a returned message goes behind all others", "priority.go", "ok && (next == nil || first.seq < next.seq) {", "ok && (next == nil || first.seq > next.seq) {"},
	{"the lowest level goes first", "priority.go", "return w*64 + bits.Len64(r.occupied[w]) - 1", "return w*64 + bits.TrailingZeros64(r.occupied[w])"},
	{"a failure counts twice", "queue.go", "\te.failures++\n\tq.count.Failed++\n\tif limit", "\te.failures += 2\n\tq.count.Failed++\n\tif limit"},
	{"the retry limit is one too low", "queue.go", "e.failures > uint32(limit)", "e.failures >= uint32(limit)"},
	{"a cancelled consumer counts as a failure", "queue.go", "\t\tif failed {\n", "\t\tif failed || !failed {\n"},
	{"a lost consumer does not count", "queue.go", "\t\tif failed {\n", "\t\tif failed && !failed {\n"},
	{"each delivery is the first", "queue.go", "\te.deliveries++\n", "\te.deliveries = 1\n"},
	{"prefetch is one too many", "ledger.go", "\troom := c.outstanding < c.prefetch &&", "\troom := c.outstanding <= c.prefetch &&"},
	{"the busiest consumer is served", "ledger.go", "return a.outstanding < b.outstanding", "return a.outstanding > b.outstanding"},
	{"a consumer that settles gets nothing more", "queue.go", "\te := q.ledger.end(s)\n\tq.roster.fix(holder)\n\tswitch", "\te := q.ledger.end(s)\n\t_ = holder\n\tswitch"},
	{"a tag is used again", "ledger.go", "\tc.lastTag++\n", "\tc.lastTag = uint64(c.outstanding) + 1\n"},
	{"another's tag can be acked", "ledger.go", "ln.holder == nil || ln.holder.id != id || ln.tag != tag", "ln.holder == nil || ln.tag != tag"},
	{"an ack up to a tag takes one more", "queue.go", "q.ledger.slots[c.oldest].tag <= tag {", "q.ledger.slots[c.oldest].tag <= tag+1 {"},
	{"a deadline passes late", "queue.go", "q.ledger.slots[s].deadline > q.now {", "q.ledger.slots[s].deadline >= q.now {"},
	{"a deadline passes early", "queue.go", "q.ledger.slots[s].deadline > q.now {", "q.ledger.slots[s].deadline > q.now+1e9 {"},
	{"an extension does nothing", "queue.go", "q.ledger.extend(s, q.now+instant(by))", "_ = by"},
	{"a delay ends early", "queue.go", "\t\tif d.at > q.now {\n", "\t\tif d.at > q.now+1e9 {\n"},
	{"a TTL passes late", "expiry.go", "if !ok || next.at > q.now {", "if !ok || next.at >= q.now {"},
	{"a returned message does not expire", "expiry.go", "if at := q.expiry(e); at != 0 {", "if at := q.expiry(e); at != 0 && e.deliveries == 0 {"},
	{"what must not wait waits", "expiry.go", "\tfor _, x := range q.lapsing {\n", "\tfor _, x := range q.lapsing[:0] {\n"},
	{"a timer is not moved forward", "machine.go", "if due == 0 || q.timer != 0 && q.timer <= due {", "if due == 0 || q.timer != 0 {"},
	{"a clock goes back", "machine.go", "m.now = max(m.now, instant(r.Uint64()))", "m.now = instant(r.Uint64())"},
	{"a dead message is not ordered to be moved", "queue.go", "\tq.dyingBytes += int64(e.size)\n\treturn append(out, q.forwardEffect(d))", "\tq.dyingBytes += int64(e.size)\n\treturn out"},
	{"a dead message is moved twice", "machine.go", "\tif res.kept > 0 {\n\t\t_, out = source.moved(seq, out)", "\tif res.kept > 1 {\n\t\t_, out = source.moved(seq, out)"},
	{"a move forgets its queue that is gone", "machine.go", "\tif res.kept > 0 {\n\t\t_, out = source.moved(seq, out)", "\t{\n\t\t_, out = source.moved(seq, out)"},
	{"a circle of the dead is not seen", "deadletter.go", "\t\tif h.Queue == target {\n", "\t\tif h.Queue == target+target {\n"},
	{"a moved message keeps its TTL", "mover.go", "death.TTL, p.message.TTL = p.message.TTL, 0", "death.TTL = p.message.TTL"},
	{"a new leader orders no moves", "queue.go", "\tif q.dying != nil {\n\t\tq.dying.Ascend(func(d dying) bool {\n\t\t\tout", "\tif q.dying != nil && q.dying.Len() < 0 {\n\t\tq.dying.Ascend(func(d dying) bool {\n\t\t\tout"},
	{"a body is freed while its message is dead", "queue.go", "\tq.dyingBytes += int64(e.size)\n\treturn append(out, q.forwardEffect(d))", "\tq.dyingBytes += int64(e.size)\n\treturn append(out, q.forwardEffect(d), effect{kind: effectFree, ref: e.ref})"},
	{"purged bodies are kept", "queue.go", "\t\tq.delayedBytes -= int64(d.size)\n\t\tout = q.gone(d.entry, out)", "\t\tq.delayedBytes -= int64(d.size)\n\t\tq.gone(d.entry, nil)"},
	{"a purge takes what is on loan", "queue.go", "\tn := uint64(0)\n\tfor q.ready.n > 0 {", "\tn := uint64(0)\n\tfor q.ledger.n > 0 {\n\t\tout = q.gone(q.ledger.end(q.ledger.oldest), out)\n\t\tn++\n\t}\n\tfor q.ready.n > 0 {"},
	{"a message for several queues is in the first", "machine.go", "\t\tres.kept += kept\n\t\tout = m.touch(q, out)\n", "\t\tres.kept += kept\n\t\tout = m.touch(q, out)\n\t\tbreak\n"},
	{"a session does not end for its last consumer", "machine.go", "\t\tfor len(q.roster.all) > 0 {\n", "\t\tfor len(q.roster.all) > 1 {\n"},
	{"a consumer of an old session attaches", "machine.go", "case c.consumer.session() != m.session:", "case c.consumer.session() > m.session:"},
	{"only ready messages keep a queue from being deleted", "machine.go", "only&onlyEmpty != 0 && q.size() > 0", "only&onlyEmpty != 0 && q.ready.n > 0"},
	{"consumers are not told of a deleted queue", "queue.go", "\t\tout = append(out, effect{kind: effectGone, queue: q.def.id, consumer: c.id})\n", ""},
	{"a consumer is not told of a cancelled message", "amend.go", "\tout = append(out, effect{kind: effectWithdraw, queue: q.def.id, consumer: holder.id, tag: ln.tag})\n", ""},
	{"an edit replaces what was not read", "amend.go", "\tcase c.ref != e.ref:\n", "\tcase c.ref > e.ref:\n"},
	{"an edited body is kept", "amend.go", "\tout = append(out, effect{kind: effectFree, ref: e.ref})\n", ""},
	{"a replayed message is in both queues", "amend.go", "\treturn res, q.replayed(e, out)", "\tq.putBack(p, e)\n\treturn res, out"},
	{"an id is remembered for too long", "dedup.go", "\t\tid.until = q.now + instant(q.def.Dedup.Window)\n", "\t\tid.until = q.now + 2*instant(q.def.Dedup.Window)\n"},
	{"a duplicate is taken", "dedup.go", "\tq.count.Duplicates++\n", "\tq.count.Duplicates++\n\tif a.priority == 0 {\n\t\treturn false, 0, out\n\t}\n"},
	{"a snapshot forgets ids", "dedup.go", "\t\tx.add(id, limit)\n\t\tlast = id\n", "\t\tlast = id\n"},
	{"a snapshot omits failures", "snapshot.go", "dst = wire.AppendUvarint(dst, uint64(e.failures))", "dst = wire.AppendUvarint(dst, 0)"},
	{"a snapshot forgets a counter", "snapshot.go", "&c.Released, &c.TimedOut, ", "&c.Released, "},
	{"a snapshot ends delays", "snapshot.go", "d := delayed{at: instant(r.Varint()), entry: take()}", "d := delayed{at: instant(r.Varint() &^ (1<<62 - 1)), entry: take()}"},
	{"a snapshot ends deadlines", "snapshot.go", "tag: tag, deadline: deadline, extended: extended}", "tag: tag, deadline: deadline + 1, extended: extended}"},
	{"a snapshot forgets who was served last", "snapshot.go", "c.pull, c.lastTag, c.turn = r.Bool(), r.Uvarint(), r.Uvarint()", "c.pull, c.lastTag, c.turn = r.Bool(), r.Uvarint(), r.Uvarint()&0"},
	{"each command activates a consumer", "activation.go", "\tif !q.def.SingleActiveConsumer || q.activations.active != nil {\n", "\tif !q.def.SingleActiveConsumer {\n"},
	{"one who stands by is served", "ledger.go", "c.outstanding < c.prefetch && !c.standby\n", "c.outstanding < c.prefetch\n"},
	{"the last to come is active next", "activation.go", "c.priority > best.priority) {", "c.priority >= best.priority) {"},
	{"a consumer is active only after the dispatch", "machine.go", "q.dispatch(q.elect(q.expire(out)))", "q.elect(q.dispatch(q.expire(out)))"},
	{"a missed deadline ends the activity", "queue.go", "\t\tq.count.TimedOut++\n", "\t\tq.count.TimedOut++\n\t\tholder.standby = q.def.SingleActiveConsumer\n\t\tq.roster.fix(holder)\n"},
	{"epochs begin anew with each declaration", "activation.go", "return uint64(q.def.id)<<32 | uint64(q.activations.count)", "return uint64(q.activations.count)"},
	{"a snapshot takes epochs back", "activation.go", "\ta.count = decodeUint32(r)\n", "\ta.count = min(decodeUint32(r), 2)\n"},
	{"jitter is drawn, not computed", "retry.go", "\treturn mix64(mix64(mix64(uint64(id))^seq) ^ uint64(failures))\n}", "\tscattered++\n\treturn mix64(mix64(mix64(uint64(id))^seq) ^ uint64(failures) ^ scattered)\n}\n\nvar scattered uint64"},
	{"the order comes out of a map", "machine.go", "\tfor _, q := range m.order {\n\t\tq.now = m.now\n\t\tm.weighLater(q)\n", "\tfor _, q := range m.queues {\n\t\tq.now = m.now\n\t\tm.weighLater(q)\n"},
}

// mistaken is the text of file with the mistake in it.
func mistaken(t *testing.T, file, right, wrong string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), right); n != 1 {
		t.Fatalf("%s holds this %d times, and not once:\n%s", file, n, right)
	}
	return strings.Replace(string(text), right, wrong, 1)
}

// Each mistake has its place in the code as it is now, or the suite that plants them, which takes minutes, would not run when it is asked.
func TestMistakesCanBePlanted(t *testing.T) {
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) { mistaken(t, m.file, m.right, m.wrong) })
	}
}

// plant writes the changed file into a folder of its own and returns the overlay for it. Of the tests only TestSim is left.
func plant(t *testing.T, file, right, wrong string) string {
	t.Helper()
	text := mistaken(t, file, right, wrong)
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace := map[string]string{filepath.Join(root, file): filepath.Join(dir, file)}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tests, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tests {
		if name != "sim_test.go" {
			replace[filepath.Join(root, name)] = ""
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

var simFound = regexp.MustCompile(`seed (\d+): (\w+): (.*)`)

func TestSimPlanted(t *testing.T) {
	if !*simPlanted {
		t.Skip("a build for each mistake takes minutes: make planted")
	}
	var caught atomic.Int32
	t.Cleanup(func() { // runs when all are through
		t.Logf("%d mistakes planted, %d found", len(mistakes), caught.Load())
	})
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			overlay := plant(t, m.file, m.right, m.wrong)
			out, err := exec.Command("go", "test", "-vet=off", "-count=1", "-overlay", overlay, "-run", "^TestSim$",
				"-sim.seeds", strconv.Itoa(plantedSeeds), "-seed", strconv.Itoa(plantedFirst), ".").CombinedOutput()
			found := simFound.FindSubmatch(out)
			switch {
			case err == nil:
				t.Errorf("not found in %d runs", plantedSeeds)
			case found == nil:
				t.Errorf("it does not run:\n%s", out)
			default:
				caught.Add(1)
				seed, _ := strconv.Atoi(string(found[1]))
				t.Logf("found in run %d by %s: %s", seed-plantedFirst+1, found[2], found[3])
			}
		})
	}
}
