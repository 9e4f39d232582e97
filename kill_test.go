package bourse_test

// Goal: after kill -9 at any moment, also while a broker opens, every confirmed message that was not acked is there,
// exactly once in each of its queues, in order and with the right counters, and what AckSync has confirmed does
// not come back. Method: the test binary runs itself as a process that publishes and consumes
// (kill_child_test.go) and writes what it knows into a pipe; this process kills it, opens the broker, compares all
// that it holds with a model fed by the pipe, closes, and starts the next. -kills says how often.

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

var (
	kills    = flag.Int("kills", 10, "kills of TestKill")
	killSeed = flag.Int64("kill-seed", 0, "seed of TestKill; 0: from the clock")
)

// killKey is a message in a queue.
type killKey struct{ queue, name string }

// killSeen is what is known about it.
type killSeen struct {
	held                 bool // found there by the last check
	deliveries, failures int  // at the last delivery, or as the last check found
	base                 int  // deliveries as the last check found
	loans                int  // deliveries reported since the last check
	open                 bool // the last of them has no verdict
	ack, nack, reject    bool // such a verdict was about to be given, since the last check
	final                bool // AckSync said so, or a check found it gone
}

// killModel is what the parent knows.
type killModel struct {
	power     bool // disks lose what was not synced
	bulk      killBulk
	known     map[string]bool // names that are stored for certain
	seen      map[killKey]*killSeen
	temps     map[string]string // state of queues that come and go: "", declared, deleting, deleted
	confirmed int
	got       int
	acked     int
	dead      int
	found     int
	lost      int // loans that a kill has ended
}

func newKillModel() *killModel {
	return &killModel{known: map[string]bool{}, seen: map[killKey]*killSeen{}, temps: map[string]string{}}
}

func (m *killModel) at(queue, name string) *killSeen {
	k := killKey{queue, name}
	if m.seen[k] == nil {
		m.seen[k] = &killSeen{}
	}
	return m.seen[k]
}

// read takes one line of the child.
func (m *killModel) read(line string) error {
	var queue, name, v string
	var deliveries, failures int
	switch word := strings.Fields(line)[0]; word {
	case "opened":
	case "declared", "deleting", "deleted":
		if _, err := fmt.Sscanf(line, word+" %s", &queue); err != nil {
			return err
		}
		m.temps[queue] = word
	case "confirmed":
		if _, err := fmt.Sscanf(line, "confirmed %s", &name); err != nil {
			return err
		}
		m.known[name] = true
		m.confirmed++
	case "bulk":
		return m.bulk.read(line)
	case "got":
		if _, err := fmt.Sscanf(line, "got %s %s %d %d", &queue, &name, &deliveries, &failures); err != nil {
			return err
		}
		m.got++
		m.known[name] = true
		s := m.at(queue, name)
		switch {
		case s.final:
			return fmt.Errorf("%s of %s was acked and came again", name, queue)
		case s.open || s.ack || s.reject:
			return fmt.Errorf("%s of %s came while it was held, or settled: %+v", name, queue, *s)
		case deliveries != failures+1:
			return fmt.Errorf("%s of %s: %d deliveries after %d failures", name, queue, deliveries, failures)
		case deliveries != s.deliveries+1:
			return fmt.Errorf("%s of %s: %d deliveries after %d", name, queue, deliveries, s.deliveries)
		}
		s.deliveries, s.failures, s.open, s.nack = deliveries, failures, true, false
		s.loans++
	case "verdict":
		if _, err := fmt.Sscanf(line, "verdict %s %s %s", &queue, &name, &v); err != nil {
			return err
		}
		s := m.at(queue, name)
		s.open, s.ack, s.nack, s.reject = false, v == "a" || v == "s", v == "n", v == "r"
	case "acked":
		if _, err := fmt.Sscanf(line, "acked %s %s", &queue, &name); err != nil {
			return err
		}
		m.at(queue, name).final = true
		m.acked++
	default:
		return errors.New(line)
	}
	return nil
}

// check compares what a broker holds with the model, and makes it the model.
func (m *killModel) check(b *bourse.Broker) (wrong []string) {
	fail := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	queues := killQueues()
	for name, state := range m.temps {
		_, there := b.QueueStats(name)
		if state == "declared" && !there || state == "deleted" && there {
			fail("queue %s was %s, and there: %t", name, state, there)
		}
		if there {
			queues = append(queues, name)
		}
	}
	// A queue of whose declaration the child did not live to tell.
	for _, q := range b.Stats().Queues {
		if strings.HasPrefix(q.Name, "temp") && m.temps[q.Name] == "" {
			m.temps[q.Name] = "declared"
			queues = append(queues, q.Name)
		}
	}

	found := map[killKey]bourse.Held{}
	for _, queue := range queues {
		held, err := bourse.Browse(b, queue)
		if errors.Is(err, bourse.ErrNotFound) {
			continue // killed before it was first declared
		}
		if err != nil {
			fail("browse: %v", err)
			continue
		}
		m.order(queue, held, fail)
		for _, h := range held {
			key := killKey{queue, h.Message.ID}
			if _, twice := found[key]; twice {
				fail("%s is in %s twice", h.Message.ID, queue)
			}
			found[key] = h
			m.known[h.Message.ID] = true
			m.found++
			m.one(key, h, fail)
		}
	}
	for name := range m.known {
		k, err := parseKillName(name)
		if err != nil {
			fail("%v", err)
			continue
		}
		_, _, route := k.route()
		for _, queue := range route {
			m.present(killKey{queue, name}, found, fail)
		}
	}
	m.settle(found)
	m.confirmed += m.bulk.check(b, fail)
	return wrong
}

// order checks that messages lie in the order in which each publisher had them stored.
func (m *killModel) order(queue string, held []bourse.Held, fail func(string, ...any)) {
	if strings.HasPrefix(queue, "dead") {
		return // in the order of their deaths
	}
	held = slices.SortedFunc(slices.Values(held), func(a, b bourse.Held) int { return cmp.Compare(a.Seq, b.Seq) })
	last := map[int]killName{}
	for _, h := range held {
		k, err := parseKillName(h.Message.ID)
		if err != nil {
			continue
		}
		if l, ok := last[k.pub]; ok && (l.gen > k.gen || l.gen == k.gen && l.n >= k.n) {
			fail("%s: %s lies behind %s", queue, k, l)
		}
		last[k.pub] = k
	}
}

// one checks a message that was found.
func (m *killModel) one(key killKey, h bourse.Held, fail func(string, ...any)) {
	k, err := parseKillName(key.name)
	if err != nil {
		fail("%v", err)
		return
	}
	_, _, route := k.route()
	dead := key.queue == "dead1" || key.queue == "dead2"
	if !slices.Contains(route, key.queue) && !(dead && slices.Contains(route, "jobs")) {
		fail("%s is in %s, not of its route", key.name, key.queue)
	}
	if killDigest(h.Message.Body) != killDigest(k.body()) {
		fail("%s in %s has another body", key.name, key.queue)
	}
	s := m.at(key.queue, key.name)
	deliveries, failures := int(h.Deliveries), int(h.Failures)
	switch {
	case s.final:
		fail("%s in %s has come back", key.name, key.queue)
	case deliveries != failures:
		fail("%s in %s: %d deliveries, %d failures, and nobody has it", key.name, key.queue, deliveries, failures)
	case m.power && deliveries >= s.base && deliveries <= s.deliveries:
		// That it was delivered may be lost.
	case s.open && deliveries != s.deliveries:
		fail("%s in %s was on loan for the %d. time, and has %d deliveries", key.name, key.queue, s.deliveries, deliveries)
	case deliveries < s.deliveries || deliveries > s.deliveries+1:
		// One delivery may have been made of which the child did not live to tell.
		fail("%s in %s has %d deliveries, %d are known", key.name, key.queue, deliveries, s.deliveries)
	}
	if s.open {
		m.lost++
	}
	if key.queue == "cold" && deliveries > 0 {
		fail("%s in cold was delivered", key.name)
	}
	if dead {
		m.died(key.name, h, fail)
	}
}

// died checks the history of a dead message against what is known of its life.
func (m *killModel) died(name string, h bourse.Held, fail func(string, ...any)) {
	if len(h.Deaths) != 1 || h.Deaths[0].Queue != "jobs" || h.Deaths[0].Count != 1 {
		fail("%s has the history %+v", name, h.Deaths)
		return
	}
	s := m.at("jobs", name)
	if s.final {
		return // an earlier check has seen it
	}
	switch d := h.Deaths[0]; {
	case d.Reason == bourse.ReasonRejected && d.Note != "no "+name,
		d.Reason == bourse.ReasonRejected && !s.reject,
		d.Reason == bourse.ReasonDeliveryLimit && s.deliveries < killRetries,
		d.Reason != bourse.ReasonRejected && d.Reason != bourse.ReasonDeliveryLimit:
		fail("%s died of %s (%s), known: %+v", name, d.Reason, d.Note, *s)
	}
}

// gone reports whether a message need not be in a queue.
func (m *killModel) gone(key killKey) bool {
	s := m.seen[key]
	return s != nil && (s.final || s.ack)
}

// present checks that a message is in a queue of its route, or was acked, or is dead.
func (m *killModel) present(key killKey, found map[killKey]bourse.Held, fail func(string, ...any)) {
	if state := m.temps[key.queue]; strings.HasPrefix(key.queue, "temp") && (state == "deleting" || state == "deleted") {
		return
	}
	dead := killKey{"dead1", key.name}
	twin := killKey{"dead2", key.name}
	_, here := found[key]
	_, one := found[dead]
	_, two := found[twin]
	atOne, atTwo := one || m.seen[dead] != nil, two || m.seen[twin] != nil
	switch {
	case here && key.queue == "jobs" && (one || two):
		fail("%s is in %s, and dead as well", key.name, key.queue)
	case here, m.gone(key):
	case key.queue != "jobs" || !atOne && !atTwo:
		fail("%s is lost from %s: %+v", key.name, key.queue, m.seen[key])
	case !one && !m.gone(dead):
		fail("%s is dead, and not in dead1", key.name)
	case !two && !m.gone(twin):
		fail("%s is dead, and not in dead2", key.name)
	}
}

// settle makes what was found the model: what is not there is gone for good.
func (m *killModel) settle(found map[killKey]bourse.Held) {
	for key, s := range m.seen {
		h, here := found[key]
		if !here && !s.final {
			if key.queue == "dead1" || key.queue == "jobs" && m.seen[killKey{"dead1", key.name}] != nil {
				m.dead++
			}
			s.final = true
		}
		*s = killSeen{held: here, final: s.final, deliveries: int(h.Deliveries), base: int(h.Deliveries), failures: int(h.Failures)}
	}
	// A message that is in no queue any more needs no looking after; it stays final.
	kept := map[string]bool{}
	for key := range found {
		kept[key.name] = true
	}
	m.known = kept
}

// killRun is a series of kills of one directory.
type killRun struct {
	t      *testing.T
	dir    string
	rng    *rand.Rand
	model  *killModel
	early  int // kills before the broker was open
	lines  int
	replay string

	mode    string        // of the process
	longest time.Duration // from opened to the end
	cut     func()        // the power, as soon as the process is killed; nil: it is a mere kill
}

// once starts a process, kills it, and takes in what it wrote.
func (r *killRun) once(gen int) {
	t := r.t
	r.model.bulk = killBulk{gen: gen, confirmed: map[int]int{}}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%s|%d", killEnv, r.mode, r.dir, gen))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := make(chan struct{}) // closed when both are done
	kill := func() {
		defer close(ended)
		_ = cmd.Process.Kill()
		if r.cut != nil {
			r.cut()
		}
	}
	early := r.rng.Intn(3) == 0
	if early {
		defer time.AfterFunc(time.Duration(r.rng.Intn(25_000))*time.Microsecond, kill).Stop()
	}
	opened := false
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break // a line without an end was cut off by the kill
		}
		require.NoError(t, err)
		line, ours := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "@ ")
		if !ours {
			fmt.Println(line) // a panic of the child, or the like
			continue
		}
		if line == "opened" {
			opened = true
			if !early {
				defer time.AfterFunc(time.Duration(r.rng.Int63n(int64(r.longest))), kill).Stop()
			}
		}
		r.lines++
		require.NoError(t, r.model.read(line), r.replay)
	}
	_ = cmd.Wait() // it was killed
	require.Equal(t, -1, cmd.ProcessState.ExitCode(), "the process ended by itself; %s", r.replay)
	<-ended
	if !opened {
		r.early++
	}
}

// check opens what the process left.
func (r *killRun) check(gen int) {
	t := r.t
	b, err := killOpen(r.mode, r.dir, gen+1)
	require.NoError(t, err, r.replay)
	require.Eventually(t, func() bool { // the dead are on the move
		q, _ := b.QueueStats("jobs")
		return q.Dying == 0
	}, 20*time.Second, time.Millisecond, r.replay)
	require.Empty(t, r.model.check(b), r.replay)
	require.NoError(t, bourse.References(b), r.replay)
	if _, err := b.Purge(t.Context(), bulkQueue); err != nil {
		require.ErrorIs(t, err, bourse.ErrNotFound, r.replay) // killed before it was first declared
	}
	if q, _ := b.QueueStats("cold"); q.Ready > 2000 {
		n, err := b.Purge(t.Context(), "cold")
		require.NoError(t, err)
		require.Equal(t, q.Ready, n)
		for key, s := range r.model.seen {
			if key.queue == "cold" {
				s.final = true
			}
		}
	}
	require.NoError(t, b.Close())
}

func TestKill(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	dir := filepath.Join(t.TempDir(), "data")
	r := &killRun{
		t: t, dir: dir, rng: rand.New(rand.NewSource(seed)),
		model: newKillModel(), mode: "run", longest: 150 * time.Millisecond,
		replay: fmt.Sprintf("the same delays: go test -run '^TestKill$' -kills %d -kill-seed %d", *kills, seed),
	}
	for gen := range *kills {
		r.once(gen)
		r.check(gen)
	}
	m := r.model
	fmt.Printf("kill: %d kills, %d of them while opening, %d confirmed, %d delivered, %d acked for certain, %d dead, "+
		"%d loans cut off, %d found, 0 lost; seed %d\n",
		*kills, r.early, m.confirmed, m.got, m.acked, m.dead, m.lost, m.found, seed)
	if *kills < 100 {
		return // on a busy machine a few kills may all come early; the suite makes 1,000
	}
	require.Greater(t, m.confirmed, 1000**kills, "too few messages to mean anything")
	require.Greater(t, m.acked, *kills)
	require.Greater(t, m.lost, *kills)
	require.GreaterOrEqual(t, r.early, *kills/40, "kills while opening")
}

// TestKillPoison: a job that kills its process is dead after MaxRetries+1 deliveries, and takes no other with it.
func TestKillPoison(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "data")
	b, err := killOpen("run", dir, 0)
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, killTopology...))
	for _, id := range []string{"poison", "healthy"} {
		require.NoError(t, b.Publish(ctx, bourse.Message{RoutingKey: "jobs", ID: id}))
	}
	require.NoError(t, b.Close())

	var lines []string
	for run := 1; ; run++ {
		require.LessOrEqual(t, run, killRetries+2)
		cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$", "-test.timeout=30s")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=poison|%s|%d", killEnv, dir, run))
		out, _ := cmd.Output()
		for line := range strings.Lines(string(out)) {
			if line, ours := strings.CutPrefix(strings.TrimSpace(line), "@ "); ours && line != "opened" {
				lines = append(lines, line)
			}
		}
		if slices.Contains(lines, "done") {
			break
		}
	}
	require.Equal(t, []string{
		"got jobs poison 1 0", "got jobs poison 2 1", "got jobs poison 3 2", "got jobs poison 4 3",
		"got jobs healthy 1 0", "done",
	}, lines)

	b, err = killOpen("run", dir, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		q, _ := b.QueueStats("jobs")
		return q.Dying == 0
	}, 20*time.Second, time.Millisecond)
	for _, queue := range []string{"dead1", "dead2"} {
		held, err := bourse.Browse(b, queue)
		require.NoError(t, err)
		require.Len(t, held, 1)
		require.Equal(t, "poison", held[0].Message.ID)
		require.Equal(t, bourse.ReasonDeliveryLimit, held[0].Deaths[0].Reason)
		require.Zero(t, held[0].Failures)
	}
	require.NoError(t, b.Close())
}
