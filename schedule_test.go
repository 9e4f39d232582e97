package bourse

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: schedules in topologies and snapshots come back as they were, and what nobody can have written is refused. Method: a
// machine with schedules in every state, spoilt one thing at a time. Random states are the business of TestMachineModel.

func everySchedule(t testing.TB) *single {
	s := newSingle(t, Queue{})
	s.apply(appendDeclare(nil, s.now, 0, topologyLimits{}, []Declaration{
		Schedule{Name: "c", Cron: "@daily", TimeZone: "Europe/Paris", CatchUp: CatchUpOne,
			Message: Message{RoutingKey: "q", Body: []byte("b")}},
		Schedule{Name: "a", Every: time.Hour},
		Schedule{Name: "b", Every: time.Hour, Message: Message{Headers: map[string]any{"n": int64(1)}}},
	}))
	require.Len(t, s.effects(effectFire), 3)
	all := s.m.agenda.all
	s.apply(fire{schedule: all[1].id, next: s.now + 10}.appendTo(nil, s.now))
	s.apply(fire{schedule: all[2].id, next: s.now + 10}.appendTo(nil, s.now))
	s.now += 10
	s.apply(appendTick(nil, s.now))
	require.Len(t, s.effects(effectFire), 2)
	s.apply(fire{all[2].id, s.now, outcomeUnroutable, s.now + 0, s.now + 20, 7}.appendTo(nil, s.now))
	s.m.check()
	return s
}

func TestScheduleSnapshot(t *testing.T) {
	s := everySchedule(t)
	b := s.m.appendTo(nil)
	m, err := decodeMachine(b, func(Ref) {})
	require.NoError(t, err)
	m.check()
	require.Equal(t, b, m.appendTo(nil))
	require.Equal(t, s.m.agenda, m.agenda)
	for name, spoil := range map[string]func(all []*appointment){
		"forgotten":                  func(all []*appointment) { all[0].asked = false },
		"fired before it is known":   func(all []*appointment) { all[0].last = 1 },
		"fired after it is due":      func(all []*appointment) { all[2].last = all[2].due },
		"without a name":             func(all []*appointment) { all[0].Name = "" },
		"out of order":               func(all []*appointment) { all[0].Name = "a0" },
		"without its defaults":       func(all []*appointment) { all[0].TimeZone = "" },
		"invalid":                    func(all []*appointment) { all[0].CatchUp = 9 },
		"with an id twice":           func(all []*appointment) { all[0].id = all[1].id },
		"with an id of a queue":      func(all []*appointment) { all[0].id = scheduleID(parkingID) },
		"with an id not yet given":   func(all []*appointment) { all[0].id = 99 },
		"with an id of none":         func(all []*appointment) { all[0].id = 0 },
		"with a message with an id":  func(all []*appointment) { all[0].Message.ID = "x" },
		"with a message for a while": func(all []*appointment) { all[0].Message.DeliverAt = time.Unix(9, 0) },
	} {
		s := everySchedule(t)
		spoil(s.m.agenda.all)
		_, err := decodeMachine(s.m.appendTo(nil), func(Ref) {})
		require.Error(t, err, name)
	}
}

// What a schedule keeps of a command is its own: the log uses the memory again.
func TestScheduleKeepsNoCommand(t *testing.T) {
	m := newMachine(roleAll, newTopology(topologyLimits{}))
	d := Schedule{Name: "s", Every: time.Hour, Message: Message{Exchange: "e", RoutingKey: "k", Body: []byte("body"),
		Headers: map[string]any{"h": "v", "b": []byte("bytes")}}}
	cmd := appendDeclare(nil, 1, 0, topologyLimits{}, []Declaration{d})
	m.apply(1, cmd, nil)
	clear(cmd)
	got, ok := m.topology.schedule("s")
	require.True(t, ok)
	require.Equal(t, d, got.Schedule)
}

func TestScheduleMessageInOneForm(t *testing.T) {
	good := Schedule{Name: "s", Every: time.Hour}
	b := good.appendTo(nil)
	r := wire.NewReader(b)
	require.Equal(t, good, decodeSchedule(&r))
	require.NoError(t, r.Done())
	message := appendMessage(nil, &Message{}, messageID{}, nil)
	head := b[:len(b)-len(message)-1]
	for name, bad := range map[string][]byte{
		"an id that a broker made": appendMessage(nil, &Message{}, messageID{1, 2}, nil),
		"a history":                appendMessage(nil, &Message{}, messageID{}, []Death{{Queue: "q"}}),
		"headers of none": append([]byte{byte(flagHeaders), 0},
			append(make([]byte, madeIDBytes+2), appendHeaders([]byte{2}, nil)...)...),
		"nothing": {},
		"half":    message[:5],
	} {
		r := wire.NewReader(wire.AppendBytes(head[:len(head):len(head)], bad))
		decodeSchedule(&r)
		require.ErrorIs(t, r.Err(), wire.ErrMalformed, name)
	}
	require.Equal(t, []string{"skip", "one", "all", "catch-up 3"},
		[]string{CatchUpSkip.String(), CatchUpOne.String(), CatchUpAll.String(), CatchUp(3).String()})
}

// A clock that is set back between the decision and the command does not make the fire come before its time.
func TestFiringOutlivesAClock(t *testing.T) {
	v := &scheduler{b: &Broker{clock: stoppedClock(time.Hour)}}
	for _, c := range []fire{
		{schedule: 3, due: instant(2 * time.Hour), outcome: outcomeUnroutable, fire: instant(3 * time.Hour), next: instant(4 * time.Hour)},
		{schedule: 3, due: instant(3 * time.Hour), next: instant(4 * time.Hour)},
	} {
		r := header(t, (&firing{v: v, command: c}).AppendTo(nil), cmdFire, instant(3*time.Hour))
		require.Equal(t, c, decodeFire(&r))
	}
	c := fire{schedule: 3, due: 1, next: 2}
	header(t, (&firing{v: v, command: c}).AppendTo(nil), cmdFire, instant(time.Hour))
}

type stoppedClock time.Duration

func (c stoppedClock) Now() time.Time { return time.Unix(0, int64(c)) }
func (stoppedClock) AfterFunc(time.Duration, func()) (stop func() bool) {
	return func() bool { return true }
}
