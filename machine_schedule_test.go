package bourse

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// Goal: schedules are part of the walks of TestMachineModel and of the scripts. Method: what the naive model, its walker and the
// scripts do for queues, for schedules.

// plainSchedule is a schedule, and what the outside was asked about it.
type plainSchedule struct {
	id         scheduleID
	def        Schedule // with defaults
	due, last  instant
	asked      bool
	fired      uint64
	skipped    uint64
	unroutable uint64
}

// fire carries out an answer. kept is how many queues took the message.
func (p *plainMachine) fire(c fire, ref Ref, size uint32, msg Message, targets []queueID, r *report) (code uint64, kept int) {
	for _, s := range p.schedules {
		if s.id != c.schedule || s.due != c.due || c.due > p.now || c.fire > p.now {
			continue
		}
		switch c.outcome {
		case outcomeHere:
			if p.refusing(nil, size, targets, r) {
				return answerFull, 0
			}
			if code, kept = p.bring(ref, size, msg, false, targets, r); code != answerOK {
				return code, kept
			}
			s.fired++
		case outcomeElsewhere:
			s.fired++
		case outcomeUnroutable:
			s.unroutable++
		}
		if c.outcome != outcomeNone {
			s.last = c.fire
		}
		s.skipped += c.skipped
		s.due, s.asked = c.next, false
		p.ask(r)
		return answerOK, kept
	}
	return answerStale, 0
}

// ask asks about every schedule that is due.
func (p *plainMachine) ask(r *report) {
	for _, s := range p.schedules {
		if !s.asked && s.due <= p.now {
			s.asked = true
			r.fires = append(r.fires, plainFire{s.id, s.due})
		}
	}
}

func (p *plainMachine) scheduleNamed(name string) *plainSchedule {
	for _, s := range p.schedules {
		if s.def.Name == name {
			return s
		}
	}
	return nil
}

func (p *plainMachine) declareSchedule(def Schedule, r *report) error {
	p.endUnused(r)
	if have := p.scheduleNamed(def.Name); have != nil {
		if !reflect.DeepEqual(have.def, def) {
			return ErrPrecondition
		}
		return nil
	}
	p.schedules = append(p.schedules, &plainSchedule{id: scheduleID(p.nextID), def: def, asked: true})
	r.fires = append(r.fires, plainFire{scheduleID(p.nextID), 0})
	p.nextID++
	r.topology = true
	return nil
}

func (p *plainMachine) deleteSchedule(name string, r *report) {
	p.endUnused(r)
	n := len(p.schedules)
	p.schedules = slices.DeleteFunc(p.schedules, func(s *plainSchedule) bool { return s.def.Name == name })
	r.topology = r.topology || len(p.schedules) < n
}

// schedule declares or deletes one of few schedules.
func (w *walker) schedule() {
	at := w.at()
	def := Schedule{Name: []string{"s0", "s1", "s2"}[w.rng.IntN(3)], Every: time.Duration(1+w.rng.IntN(2)) * time.Second}
	if w.one(3) {
		res := w.propose(at, appendRemove(nil, at, 0, 0, []Declaration{def}))
		w.p.deleteSchedule(def.Name, &w.want)
		w.agree(res.answer.Code, answerOK)
		return
	}
	res := w.propose(at, appendDeclare(nil, at, 0, topologyLimits{}, []Declaration{def}))
	w.refusal(res, w.p.declareSchedule(def, &w.want))
}

// fire answers what was asked, or something like it.
func (w *walker) fire() {
	c := fire{schedule: scheduleID(w.rng.IntN(20)), due: w.clock}
	if len(w.p.schedules) > 0 {
		s := w.p.schedules[w.rng.IntN(len(w.p.schedules))]
		c.schedule, c.due = s.id, s.due
	}
	at, msg := w.at(), w.message()
	if w.one(10) {
		c.due += instant(time.Second)
	}
	base := c.due
	if base == 0 {
		base = at
	} else if !w.one(4) {
		c.outcome = outcome(w.rng.IntN(4))
	}
	c.next = base + instant(1+w.rng.IntN(3))*instant(500*time.Millisecond)
	if c.outcome != outcomeNone {
		c.fire = c.due + instant(w.rng.IntN(int(c.next-c.due)))*instant(w.rng.IntN(2))
	}
	if w.one(5) {
		c.skipped = uint64(w.rng.IntN(5))
	}
	cmd := c.appendTo(nil, at)
	var targets []queueID
	var size uint32
	if c.outcome == outcomeHere {
		targets = w.targets()
		cmd, size = w.append(appendTargets(cmd, targets), msg, nil)
	}
	res := w.propose(at, cmd)
	code, kept := w.p.fire(c, w.ref, size, msg, targets, &w.want)
	w.same("kept", res.kept, kept)
	if code == answerOK {
		w.count.fires++
	}
	w.agree(res.answer.Code, code)
}

// schedules compares the agenda with the model's.
func (w *walker) schedules() {
	w.t.Helper()
	w.same("schedules", len(w.m.agenda.all), len(w.p.schedules))
	for i, a := range w.m.agenda.all {
		got := plainSchedule{a.id, a.Schedule, a.due, a.last, a.asked, a.fired, a.skipped, a.unroutable}
		if !reflect.DeepEqual(got, *w.p.schedules[i]) {
			w.t.Fatalf("schedule %+v, want %+v", got, *w.p.schedules[i])
		}
	}
}

// schedule is the present schedule of that name, or the number after an @: s@2 is the schedule with id 2.
func (s *script) schedule(name string) scheduleID {
	if _, id, ok := strings.Cut(name, "@"); ok {
		return scheduleID(s.atoi(id))
	}
	def, ok := s.m.topology.schedule(name)
	require.True(s.t, ok, "no schedule %q", name)
	return def.id
}

func (s *script) scheduleName(id scheduleID) string {
	if a := s.m.agenda.find(id); a != nil {
		return a.Name
	}
	return fmt.Sprintf("@%d", id)
}

// timeOf is when, with words for what is no time.
func (s *script) timeOf(at instant) string {
	switch at {
	case 0:
		return "none"
	case never:
		return "never"
	}
	return s.when(at)
}

// fire carries out the command of that name.
func (s *script) fire(a *scriptArgs) {
	at := func(name string, otherwise instant) instant {
		if v, ok := a.value[name]; ok && v == "never" {
			return never
		} else if ok {
			return s.start + instant(s.duration(v))
		}
		return otherwise
	}
	c := fire{schedule: s.schedule(a.word(1)), skipped: uint64(a.number("skipped", 0))}
	if present := s.m.agenda.find(c.schedule); present != nil {
		c.due = present.due
	}
	c.due = at("due", c.due)
	c.next = at("next", 0)
	switch {
	case a.has("elsewhere"):
		c.outcome = outcomeElsewhere
	case a.has("unroutable"):
		c.outcome = outcomeUnroutable
	case len(a.words) > 2:
		c.outcome = outcomeHere
	}
	if c.outcome != outcomeNone {
		c.fire = at("at", c.due)
	}
	if cmd := c.appendTo(nil, s.now); c.outcome == outcomeHere {
		a.words = a.words[1:] // what message reads stands where an enqueue has it
		s.message(a, appendTargets(cmd, s.queues(a.word(2))), len(s.queues(a.word(2))))
	} else {
		s.apply(cmd)
	}
}

func (s *script) showSchedule(id scheduleID) {
	a := s.m.agenda.find(id)
	s.say("%s: next %s, asked %v, last %s, fired %d, skipped %d, unroutable %d",
		a.Name, s.timeOf(a.due), a.asked, s.timeOf(a.last), a.fired, a.skipped, a.unroutable)
}
