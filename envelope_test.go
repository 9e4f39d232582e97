package bourse

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: a message comes out of a command as it went in, and what a receiver does to it cannot reach
// anything else. Method: round trips of drawn messages through an enqueue and a move.

func drawMessage(t *rapid.T) Message {
	m := Message{
		ID: rapid.StringN(0, 40, 255).Draw(t, "id"), Exchange: rapid.StringN(0, 10, 255).Draw(t, "exchange"),
		RoutingKey: rapid.StringN(0, 30, 255).Draw(t, "key"), Priority: rapid.Uint8().Draw(t, "priority"),
		Body: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "body"),
	}
	if rapid.Bool().Draw(t, "with group") {
		m.GroupID = rapid.StringN(1, 20, MaxNameBytes).Draw(t, "group")
	}
	if rapid.Bool().Draw(t, "with timestamp") {
		m.Timestamp = time.Unix(0, rapid.Int64().Draw(t, "timestamp"))
	}
	if n := rapid.IntRange(0, 4).Draw(t, "headers"); n > 0 {
		m.Headers = map[string]any{}
		for range n {
			m.Headers[rapid.StringMatching(`[a-zé.-]{1,8}`).Draw(t, "name")] = rapid.OneOf(
				rapid.String().AsAny(), rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
			).Draw(t, "value")
		}
	}
	return m
}

func TestEnvelopeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, deaths := drawMessage(t), drawHistory(t)
		made := messageID{rapid.Uint64().Draw(t, "instance"), rapid.Uint64().Draw(t, "number")}
		var cmd []byte
		if rapid.Bool().Draw(t, "move") {
			cmd = appendMove(nil, 5, 3, 1<<40)
		} else {
			cmd = appendHeader(nil, cmdEnqueue, 5)
		}
		cmd = appendTargets(cmd, []queueID{1, 300, 7})
		cmd = appendMessage(cmd, &want, made, deaths)

		env, err := envelopeOf(cmd)
		require.NoError(t, err)
		var got Message
		require.NoError(t, env.message(cmd, &got))
		history, err := decodeDeaths(env.deaths)
		require.NoError(t, err)
		require.Equal(t, deaths, append([]Death{}, history...))

		if want.ID == "" {
			require.Len(t, got.ID, 2*madeIDBytes)
			require.Equal(t, got.ID, madeIDText(made))
			want.ID = got.ID
		}
		require.True(t, want.Timestamp.Equal(got.Timestamp))
		want.Timestamp, got.Timestamp = time.Time{}, time.Time{}
		require.Equal(t, string(want.Body), string(got.Body))
		require.Equal(t, len(got.Body), cap(got.Body), "a body can grow into what lies behind")
		want.Body, got.Body = nil, nil
		require.Equal(t, want, got)
	})
}

// madeIDText is the id as users see it: 16 bytes, little endian, in hexadecimal.
func madeIDText(id messageID) string {
	const digits = "0123456789abcdef"
	text := ""
	for _, b := range wire.AppendUint64(wire.AppendUint64(nil, id.instance), id.number) {
		text += string(digits[b>>4]) + string(digits[b&15])
	}
	return text
}

// What a receiver does to a body reaches neither the strings of the message nor its id, which lies behind the body.
func TestEnvelopeOwnership(t *testing.T) {
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, 1), []queueID{1})
	cmd = appendMessage(cmd, &Message{Exchange: "ex", RoutingKey: "key", Body: []byte("body")}, messageID{1, 2}, nil)
	room := append(make([]byte, 0, len(cmd)+messageRoom), cmd...)
	env, err := envelopeOf(room)
	require.NoError(t, err)
	var m Message
	require.NoError(t, env.message(room, &m))
	m.Body[0] = 'x'
	_ = append(m.Body[:0], "12345678"...)
	_ = append(m.Body, "12345678"...)
	require.Equal(t, madeIDText(messageID{1, 2})+" ex key", m.ID+" "+m.Exchange+" "+m.RoutingKey)
}

// A message needs no allocation but that of the command, if that has room for the id.
func TestEnvelopeAllocations(t *testing.T) {
	cmd := appendTargets(appendHeader(nil, cmdEnqueue, 1), []queueID{1})
	cmd = appendMessage(cmd, &Message{RoutingKey: "key", Body: make([]byte, 100)}, messageID{1, 2}, nil)
	cmd = append(make([]byte, 0, len(cmd)+messageRoom), cmd...)
	var out Message
	require.Equal(t, 0.0, testing.AllocsPerRun(100, func() {
		env, _ := envelopeOf(cmd)
		_ = env.message(cmd, &out)
	}))
}

func TestEnvelopeMalformed(t *testing.T) {
	good := appendTargets(appendHeader(nil, cmdEnqueue, 1), []queueID{1})
	at := len(good)
	good = appendMessage(good, &Message{ID: "id", Exchange: "ex", RoutingKey: "key", Headers: map[string]any{"a": true}}, messageID{}, nil)
	for n := range good {
		_, err := envelopeOf(good[:n])
		require.Error(t, err, "cut after %d bytes", n)
	}
	require.Less(t, good[at], byte(0x80), "flags of one byte")
	unknown := append(wire.AppendUvarint(append([]byte(nil), good[:at]...), uint64(good[at])|(flagsKnown+1)), good[at+1:]...)
	_, err := envelopeOf(unknown)
	require.ErrorIs(t, err, wire.ErrMalformed, "an unknown flag")
	for _, group := range []string{"", strings.Repeat("g", MaxNameBytes+1)} {
		bad := append(wire.AppendUvarint(append([]byte(nil), good[:at]...), flagGroup|flagGivenID), 0) // priority
		_, err = envelopeOf(append(wire.AppendString(bad, group), good[at+2:]...))
		require.ErrorIs(t, err, wire.ErrMalformed, "a group of %d bytes", len(group))
	}
	_, err = envelopeOf(appendTick(nil, 1))
	require.ErrorIs(t, err, wire.ErrMalformed, "a command without a message")
}
