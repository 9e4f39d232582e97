package bourse

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/google/btree"

	"github.com/boursemq/bourse/internal/wire"
)

// Limits of schedules.
const (
	MaxSchedules     = 1000     // of a broker; Options.MaxSchedules can lower it
	MaxScheduleName  = 200      // bytes: the ids of its messages are longer, and have their own limit
	MaxScheduleBody  = 64 << 10 // bytes of Schedule.Message.Body, which is kept in memory
	MaxCatchUp       = 1000     // missed fires that CatchUpAll brings
	MinEvery         = time.Second
	maxCronBytes     = 255
	maxTimeZoneBytes = 100
)

// Schedule publishes a message again and again, at the times of a cron expression or at a fixed rate. It is kept in the
// broker: it goes on after a restart, and with an engine on several nodes one of them fires. It starts when it is declared.
//
// A fire is one message. Its Message.ID is the schedule's name, "@" and the time of the fire, as nightly@2030-01-01T03:00:00Z,
// and its Timestamp is that time: the time that the schedule says, whenever it really happens. Where all queues that the
// message is routed to share one log, as all but transient ones do without an Engine, that the message is in its queues and that the
// fire is done is one entry of the log, so each fire happens once. Other queues get it at least once; a repetition has the
// same id. A fire that is routed to no queue, or to an exchange that does not exist, is counted in
// ScheduleStats.Unroutable. One that cannot be stored now, on a full disk say, is tried again until it can be; what became
// due meanwhile counts as missed.
type Schedule struct {
	Name string // at most MaxScheduleName bytes

	// Cron says when, in five fields: minute, hour, day of month, month, day of week; with a sixth in front for the second; or
	// as @hourly, @daily, @weekly, @monthly or @yearly. An hour field of * means every hour that passes, also where clocks are put
	// back. All other times come once: the first time if they occur twice in that night, and when the clocks are put
	// forward if they are skipped. Exactly one of Cron and Every is set.
	Cron string
	// Every is a fixed rate, MinEvery to MaxDelay, counted from the declaration.
	Every time.Duration
	// TimeZone is the time zone of Cron, by its IANA name. Default UTC.
	TimeZone string
	// CatchUp says what becomes of fires that were missed: no broker was open when they were due, or its clock jumped.
	CatchUp CatchUp
	// Message is what is published. Its ID, Timestamp, Delay, DeliverAt and Mandatory must not be set. Its exchange need not
	// exist yet.
	Message Message
}

func (Schedule) declaration() {}

// CatchUp says what becomes of missed fires of a Schedule.
type CatchUp uint8

const (
	// CatchUpSkip passes over fires that are late by more than a minute, and over all but the last if several are.
	CatchUpSkip CatchUp = iota
	// CatchUpOne makes up for the last of them, however late, and passes over the others.
	CatchUpOne
	// CatchUpAll makes up for each of them in order. Of more than MaxCatchUp it passes over the oldest.
	CatchUpAll
)

func (c CatchUp) String() string {
	switch c {
	case CatchUpSkip:
		return "skip"
	case CatchUpOne:
		return "one"
	case CatchUpAll:
		return "all"
	}
	return "catch-up " + strconv.Itoa(int(c))
}

// validateScheduleName checks the name of a schedule to declare or delete.
func validateScheduleName(s string) *InvalidError {
	if len(s) > MaxScheduleName {
		return invalid("Schedule.Name", "has %d bytes, the limit is %d", len(s), MaxScheduleName)
	}
	return validateOwnName("Schedule.Name", s)
}

// validate checks all that every replica must judge alike. What Cron and TimeZone mean depends on the program's parser and on the
// time zones that its system knows: Broker.Declare asks for that.
func (d Schedule) validate() *InvalidError {
	if err := validateScheduleName(d.Name); err != nil {
		return err
	}
	switch {
	case d.Cron == "" && d.Every == 0:
		return invalid("Schedule.Cron", "is empty, and Every is not set: one of them says when")
	case d.Cron != "" && d.Every != 0:
		return invalid("Schedule.Every", "is set together with Cron")
	case d.Every != 0 && (d.Every < MinEvery || d.Every > MaxDelay):
		return invalid("Schedule.Every", "is %v, want %v to %v", d.Every, MinEvery, time.Duration(MaxDelay))
	case len(d.Cron) > maxCronBytes:
		return invalid("Schedule.Cron", "has %d bytes, the limit is %d", len(d.Cron), maxCronBytes)
	case d.TimeZone != "" && d.Every != 0:
		return invalid("Schedule.TimeZone", "is set, but Every knows no time zone")
	case len(d.TimeZone) > maxTimeZoneBytes:
		return invalid("Schedule.TimeZone", "has %d bytes, the limit is %d", len(d.TimeZone), maxTimeZoneBytes)
	case d.CatchUp > CatchUpAll:
		return invalid("Schedule.CatchUp", "is %d, which is none", d.CatchUp)
	}
	if err := validateKey("Schedule.Cron", d.Cron); err != nil {
		return err
	}
	if err := validateKey("Schedule.TimeZone", d.TimeZone); err != nil {
		return err
	}
	return d.validateMessage()
}

func (d Schedule) validateMessage() *InvalidError {
	m := &d.Message
	switch {
	case m.ID != "":
		return invalid("Schedule.Message.ID", "is %q: each fire has an id of its own", m.ID)
	case !m.Timestamp.IsZero():
		return invalid("Schedule.Message.Timestamp", "is set: it is the time of the fire")
	case m.Delay != 0:
		return invalid("Schedule.Message.Delay", "is set: the schedule says when")
	case !m.DeliverAt.IsZero():
		return invalid("Schedule.Message.DeliverAt", "is set: the schedule says when")
	case m.Mandatory:
		return invalid("Schedule.Message.Mandatory", "is set, but nobody is there to get the error: see ScheduleStats.Unroutable")
	case m.Transient:
		return invalid("Schedule.Message.Transient", "is set, but a fire is made in the log")
	case len(m.Body) > MaxScheduleBody:
		return invalid("Schedule.Message.Body", "has %d bytes, the limit is %d", len(m.Body), MaxScheduleBody)
	case m.TTL < NoWait || m.TTL > MaxDelay:
		return invalid("Schedule.Message.TTL", "is %v, want 0 to %v, or NoWait", m.TTL, time.Duration(MaxDelay))
	}
	if err := validateKey("Schedule.Message.Exchange", m.Exchange); err != nil {
		return err
	}
	if err := validateKey("Schedule.Message.RoutingKey", m.RoutingKey); err != nil {
		return err
	}
	if err := validateKey("Schedule.Message.GroupID", m.GroupID); err != nil {
		return err
	}
	if len(m.Headers) > 0 {
		return validateHeaderSet("Schedule.Message.Headers", m.Headers, false)
	}
	return nil
}

func (d Schedule) withDefaults() Schedule {
	if d.TimeZone == "" && d.Cron != "" {
		d.TimeZone = "UTC"
	}
	return d
}

// compare is Exchange.compare for schedules; both have their defaults applied.
func (d Schedule) compare(have Schedule) error {
	var f fieldDiffs
	f.add("Cron", strconv.Quote(have.Cron), strconv.Quote(d.Cron))
	f.add("Every", have.Every.String(), d.Every.String())
	f.add("TimeZone", strconv.Quote(have.TimeZone), strconv.Quote(d.TimeZone))
	f.add("CatchUp", have.CatchUp.String(), d.CatchUp.String())
	h, m := &have.Message, &d.Message
	f.add("Message.Exchange", strconv.Quote(h.Exchange), strconv.Quote(m.Exchange))
	f.add("Message.RoutingKey", strconv.Quote(h.RoutingKey), strconv.Quote(m.RoutingKey))
	f.add("Message.Priority", strconv.Itoa(int(h.Priority)), strconv.Itoa(int(m.Priority)))
	f.add("Message.GroupID", strconv.Quote(h.GroupID), strconv.Quote(m.GroupID))
	f.add("Message.TTL", h.TTL.String(), m.TTL.String())
	if a, b := appendHeaders(nil, h.Headers), appendHeaders(nil, m.Headers); !bytes.Equal(a, b) {
		f.add("Message.Headers", fmt.Sprintf("%x", a), fmt.Sprintf("%x", b))
	}
	if !bytes.Equal(h.Body, m.Body) {
		f.add("Message.Body", fmt.Sprintf("%.100q", h.Body), fmt.Sprintf("%.100q", m.Body))
	}
	if len(f) == 0 && !bytes.Equal(d.appendTo(nil), have.appendTo(nil)) {
		f.add("Message", "another", "this") // in a field that has no line here
	}
	return f.precondition(fmt.Sprintf("schedule %q", d.Name))
}

func (d Schedule) appendTo(dst []byte) []byte {
	dst = wire.AppendString(dst, d.Name)
	dst = wire.AppendString(dst, d.Cron)
	dst = wire.AppendVarint(dst, int64(d.Every))
	dst = wire.AppendString(dst, d.TimeZone)
	dst = append(dst, byte(d.CatchUp))
	return wire.AppendBytes(dst, appendMessage(nil, &d.Message, messageID{}, nil))
}

func decodeSchedule(r *wire.Reader) Schedule {
	d := Schedule{
		Name: r.String(), Cron: r.String(), Every: time.Duration(r.Varint()), TimeZone: r.String(), CatchUp: CatchUp(r.Byte()),
	}
	b := bytes.Clone(r.Bytes()) // it will be kept
	if r.Err() != nil {
		return d
	}
	mr := wire.NewReader(b)
	env := decodeEnvelope(&mr)
	if mr.Done() != nil || env.flags&(flagGivenID|flagDeaths) != 0 || !bytes.Equal(env.id, make([]byte, madeIDBytes)) {
		r.Fail()
		return d
	}
	if env.message(b, &d.Message) != nil {
		r.Fail()
	}
	d.Message.ID = ""
	if !bytes.Equal(b, appendMessage(nil, &d.Message, messageID{}, nil)) {
		r.Fail() // not in the one form
	}
	if len(d.Message.Body) == 0 {
		d.Message.Body = nil
	}
	return d
}

// scheduleID is one incarnation of a schedule, from the same numbers as queueID.
type scheduleID uint64

// scheduleDef is a schedule as it was declared, with its defaults applied.
type scheduleDef struct {
	id scheduleID
	Schedule
}

func (e *editor) addSchedule(d Schedule) error {
	if have, ok := e.schedule(d.Name); ok {
		return d.compare(have.Schedule)
	}
	if e.scheduleNames.Len() >= e.limits.schedules {
		return fmt.Errorf("schedule %q: the limit is %d schedules: %w", d.Name, e.limits.schedules, ErrTooMany)
	}
	t := e.write()
	s := &scheduleDef{scheduleID(t.nextID), d}
	t.nextID++
	e.writeSchedules().ReplaceOrInsert(named[*scheduleDef]{d.Name, s})
	return nil
}

func (e *editor) removeSchedule(name string) {
	if _, ok := e.schedule(name); ok {
		e.writeSchedules().Delete(named[*scheduleDef]{name: name})
	}
}

// writeSchedules is the tree to change. It is copied only then, so that equal trees mean that no schedule has changed.
func (e *editor) writeSchedules() *btree.BTreeG[named[*scheduleDef]] {
	t := e.write()
	if !e.ownSchedules {
		t.scheduleNames, e.ownSchedules = t.scheduleNames.Clone(), true
	}
	return t.scheduleNames
}

// schedule returns the schedule of that name.
func (t *topology) schedule(name string) (scheduleDef, bool) {
	s, ok := t.scheduleNames.Get(named[*scheduleDef]{name: name})
	if !ok {
		return scheduleDef{}, false
	}
	return *s.value, true
}

// schedules yields all schedules in the order of their names.
func (t *topology) schedules(yield func(*scheduleDef) bool) {
	t.scheduleNames.Ascend(func(s named[*scheduleDef]) bool { return yield(s.value) })
}

func (t *topology) appendSchedules(dst []byte) []byte {
	dst = wire.AppendUvarint(dst, uint64(t.scheduleNames.Len()))
	t.schedules(func(s *scheduleDef) bool {
		dst = s.appendTo(wire.AppendUvarint(dst, uint64(s.id)))
		return true
	})
	return dst
}

// decodeSchedules reads what appendSchedules wrote, strictly as decodeTopology does.
func (e *editor) decodeSchedules(r *wire.Reader) error {
	last := ""
	taken := map[scheduleID]bool{}
	for range r.Count(8) {
		s := &scheduleDef{id: scheduleID(r.Uvarint()), Schedule: decodeSchedule(r)}
		if r.Err() != nil || s.Name <= last || s.id == 0 || queueID(s.id) >= e.nextID || taken[s.id] {
			return wire.ErrMalformed
		}
		if s.validate() != nil || s.compare(s.Schedule.withDefaults()) != nil || e.scheduleNames.Len() >= MaxSchedules {
			return wire.ErrMalformed
		}
		if _, queue := e.queueByID(queueID(s.id)); queue {
			return wire.ErrMalformed
		}
		last, taken[s.id] = s.Name, true
		e.writeSchedules().ReplaceOrInsert(named[*scheduleDef]{s.Name, s})
	}
	return r.Err()
}
