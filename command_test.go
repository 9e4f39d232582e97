package bourse

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/boursemq/bourse/internal/wire"
)

// Goal: commands, loans in answers and refusals mean the same after they went through a log. Method: round trips
// of drawn values; tables for what has few values.

// header reads the front of a command.
func header(t require.TestingT, cmd []byte, kind commandKind, at instant) wire.Reader {
	r := wire.NewReader(cmd)
	require.Equal(t, byte(kind), r.Byte())
	require.Equal(t, uint64(at), r.Uint64())
	return r
}

func TestCommandRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := instant(rapid.Int64().Draw(t, "at"))
		queue := queueID(rapid.Uint64().Draw(t, "queue"))
		who := consumerID(rapid.Uint64().Draw(t, "consumer"))
		tag, flag := rapid.Uint64().Draw(t, "tag"), rapid.Bool().Draw(t, "flag")

		a := attach{
			queue, who, int32(rapid.IntRange(0, MaxPrefetch).Draw(t, "prefetch")),
			int32(rapid.IntRange(-MaxConsumerPriority, MaxConsumerPriority).Draw(t, "priority")),
		}
		r := header(t, a.appendTo(nil, at), cmdAttach, at)
		require.Equal(t, a, decodeAttach(&r))
		require.NoError(t, r.Done())

		d := detach{queue, who, flag}
		r = header(t, d.appendTo(nil, at), cmdDetach, at)
		require.Equal(t, d, decodeDetach(&r))
		require.NoError(t, r.Done())

		s := settle{
			queue: queue, consumer: who, tag: tag, slot: slotID(rapid.Int32Range(0, math.MaxInt32).Draw(t, "slot")),
			verdict: verdict(rapid.IntRange(0, int(verdictDone)).Draw(t, "verdict")),
		}
		switch s.verdict {
		case verdictAck:
		case verdictDone:
			s.key = idKey{rapid.Uint64().Draw(t, "high"), rapid.Uint64().Draw(t, "low")}
		default:
			s.pause = time.Duration(rapid.Int64Range(math.MinInt64, int64(MaxDelay)).Draw(t, "pause"))
			s.note = rapid.String().Draw(t, "note")
		}
		r = header(t, s.appendTo(nil, at), cmdSettle, at)
		require.Equal(t, s, decodeSettle(&r))
		require.NoError(t, r.Done())

		u := ackUpTo{queue, who, tag}
		r = header(t, u.appendTo(nil, at), cmdAckUpTo, at)
		require.Equal(t, u, decodeAckUpTo(&r))
		require.NoError(t, r.Done())

		var list []byte
		var acked []lent
		before := uint64(0)
		for range rapid.IntRange(0, 50).Draw(t, "acks") {
			l := lent{tag: rapid.Uint64().Draw(t, "acked"), slot: slotID(rapid.Int32Range(0, math.MaxInt32).Draw(t, "slot"))}
			list, acked, before = appendAck(list, l.tag, before, l.slot), append(acked, l), l.tag
		}
		cmd := appendAcks(nil, at, queue, who, list, len(list)+rapid.IntRange(0, 30).Draw(t, "room"))
		r = header(t, cmd, cmdAcks, at)
		l := decodeAcks(&r)
		require.NoError(t, r.Done())
		require.Equal(t, []any{queue, who}, []any{l.queue, l.consumer})
		for tag, slot := range l.all {
			require.Equal(t, acked[0], lent{tag: tag, slot: slot})
			acked = acked[1:]
		}
		require.Empty(t, acked)
		r = header(t, append(cmd, 1), cmdAcks, at) // what is not filled is zero
		decodeAcks(&r)
		require.ErrorIs(t, r.Done(), wire.ErrMalformed)

		k := take{queue, who}
		r = header(t, k.appendTo(nil, at), cmdTake, at)
		require.Equal(t, k, decodeTake(&r))
		require.NoError(t, r.Done())

		n := amend{
			queue: queue, what: amendment(rapid.IntRange(1, int(amendReplay)).Draw(t, "what")),
			priority: rapid.Byte().Draw(t, "priority"), ref: Ref(rapid.Uint64().Draw(t, "ref")),
			place: place{
				seq: rapid.Uint64().Draw(t, "seq"), at: instant(rapid.Int64().Draw(t, "until")), slot: s.slot,
				state: State(rapid.IntRange(0, int(StateDying)).Draw(t, "state")), level: rapid.Byte().Draw(t, "level"),
			},
		}
		r = header(t, n.appendTo(nil, at), cmdAmend, at)
		require.Equal(t, n, decodeAmend(&r))
		require.NoError(t, r.Done())

		limits := topologyLimits{
			queues: rapid.IntRange(0, MaxQueues).Draw(t, "queues"), exchanges: rapid.IntRange(0, MaxExchanges).Draw(t, "exchanges"),
			bindings: rapid.IntRange(0, MaxBindings).Draw(t, "bindings"), schedules: rapid.IntRange(0, MaxSchedules).Draw(t, "schedules"),
		}
		r = header(t, appendDeclare(nil, at, 77, limits, nil), cmdDeclare, at)
		require.Equal(t, limits.withDefaults(), decodeLimits(&r))
		require.EqualValues(t, 77, r.Uint64())
		require.Empty(t, decodeDeclarations(&r))
		require.NoError(t, r.Done())

		r = header(t, appendForwarded(nil, at, queue, tag), cmdForwarded, at)
		require.Equal(t, []uint64{uint64(queue), tag}, []uint64{r.Uvarint(), r.Uvarint()})
		require.NoError(t, r.Done())

		r = header(t, appendPurge(nil, at, queue), cmdPurge, at)
		require.Equal(t, uint64(queue), r.Uvarint())
		require.NoError(t, r.Done())

		r = header(t, appendOpen(nil, at, flag), cmdOpen, at)
		require.Equal(t, flag, r.Bool())
		require.NoError(t, r.Done())

		due := instant(rapid.Int64Range(1, math.MaxInt64-10).Draw(t, "due"))
		f := fire{scheduleID(queue), due, outcomeHere, due + 3, due + 4, tag}
		if flag {
			f.outcome, f.fire = outcomeNone, 0
		}
		r = header(t, f.appendTo(nil, at), cmdFire, at)
		require.Equal(t, f, decodeFire(&r))
		require.NoError(t, r.Done())

		r = header(t, appendEnter(nil, at, tag, flag), cmdEnter, at)
		require.Equal(t, tag, r.Uvarint())
		require.Equal(t, flag, r.Bool())
		require.NoError(t, r.Done())

		refused := []refusal{{queue, refusedReasonOf(flag), uint32(tag), tag}, {queue + 1, refusedFull, 0, 0}}
		answer := refusedAnswer(3, refused)
		require.Equal(t, answerFull, answer.Code)
		kept, got, err := decodeRefused(answer.Data)
		require.NoError(t, err)
		require.Equal(t, 3, kept)
		require.Equal(t, refused, got)
		cut, more := answer.Data[:len(answer.Data)-1], append(answer.Data, 0)
		for _, bad := range [][]byte{nil, {0}, {0, 1, 1, 0, 0, 0}, {0, 1, 1, 4, 0, 0}, cut, more} {
			_, _, err := decodeRefused(bad)
			require.ErrorIs(t, err, wire.ErrMalformed)
		}

		r = header(t, appendTick(nil, at), cmdTick, at)
		require.NoError(t, r.Done())
	})
}

func refusedReasonOf(flag bool) refusalReason {
	if flag {
		return refusedWaits
	}
	return refusedLarge
}

// The numbers of kinds and answers are part of the format.
func TestCommandNumbers(t *testing.T) {
	require.Equal(t, []commandKind{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}, []commandKind{
		cmdEnqueue, cmdAttach, cmdDetach, cmdSettle, cmdAckUpTo, cmdTake, cmdTick, cmdOpen, cmdDeclare, cmdRemove, cmdMove,
		cmdForwarded, cmdPurge, cmdAmend, cmdUpdate, cmdRedefine, cmdBundle, cmdFire, cmdPause, cmdEnter, cmdRetire,
		cmdAcks,
	})
	require.Equal(t, []verdict{0, 1, 2, 3, 4, 5}, []verdict{
		verdictAck, verdictNack, verdictReject, verdictRelease, verdictExtend, verdictDone,
	})
	require.Equal(t, []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1 << 32}, []uint64{
		answerOK, answerGone, answerStale, answerEmpty, answerError, answerTooMany, answerAbsent, answerNotWaiting, answerTargetGone,
		answerHeld, answerFull, answerNumber,
	})
	require.Equal(t, []deathReason{1, 2, 3, 4}, []deathReason{deadRejected, deadLimit, deadExpired, deadLength})
	require.Equal(t, []amendment{1, 2, 3, 4, 5, 6}, []amendment{
		amendCancel, amendPromote, amendPriority, amendReplayed, amendEdit, amendReplay,
	})
	require.Equal(t, []State{1, 2, 3, 4}, []State{StateReady, StateDelayed, StateUnacked, StateDying})
	// One command whose bytes are known: a change here is a change of the format.
	require.Equal(t,
		[]byte{4, 8, 7, 6, 5, 4, 3, 2, 1, 2, 0x81, 0x80, 0x80, 0x80, 0x10, 3, 5, 1, 1, 2, 'n', 'o'},
		settle{2, 1<<32 | 1, 3, 5, verdictNack, -1, "no", idKey{}}.appendTo(nil, 0x0102030405060708))
}

func TestTakenLoanRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u64 := rapid.Uint64()
		want := effect{
			kind: effectDeliver, queue: queueID(u64.Draw(t, "queue")), consumer: consumerID(u64.Draw(t, "consumer")),
			tag: u64.Draw(t, "tag"), slot: slotID(rapid.Int32().Draw(t, "slot")), seq: u64.Draw(t, "seq"), ref: Ref(u64.Draw(t, "ref")),
			size: rapid.Uint32().Draw(t, "size"), deliveries: rapid.Uint32().Draw(t, "deliveries"),
			failures: rapid.Uint32().Draw(t, "failures"), at: instant(rapid.Int64().Draw(t, "at")),
			arrived: instant(rapid.Int64().Draw(t, "arrived")),
		}
		b := want.appendTo(nil)
		got, err := decodeLoanEffect(b)
		require.NoError(t, err)
		require.Equal(t, want, got)
		_, err = decodeLoanEffect(b[:len(b)-1])
		require.Error(t, err)
		_, err = decodeLoanEffect(append(b, 0))
		require.Error(t, err)
	})
}

// A refusal says and matches the same on both sides of a log.
func TestAnswerErrorRoundTrip(t *testing.T) {
	invalidErr := &InvalidError{Field: "Queue.Name", Reason: "is empty"}
	pre := &PreconditionError{Object: `queue "q"`, Fields: []FieldDiff{{"Priorities", "1", "4"}, {"Retry.Min", "0s", "1s"}}}
	all := []error{invalidErr, pre, &PreconditionError{Object: "nothing"}, errors.New("of no kind")}
	for _, s := range wireSentinels {
		all = append(all, s, fmt.Errorf("queue %q: %w", "q", s))
	}
	for _, want := range all {
		got := decodeError(appendError(nil, want))
		require.Equal(t, want.Error(), got.Error())
		require.Equal(t, sentinelsOf(want), sentinelsOf(got), "%v", want)
	}
	require.Equal(t, invalidErr, decodeError(appendError(nil, invalidErr)))
	require.Equal(t, pre, decodeError(appendError(nil, pre)))
	// A sentinel of a newer version keeps its text.
	got := decodeError([]byte{errorText, 200, 2, 'o', 'h'})
	require.Equal(t, "oh", got.Error())
	require.Empty(t, sentinelsOf(got))
	for _, bad := range [][]byte{nil, {9}, {errorInvalid, 3, 'x'}, {errorPrecondition, 0, 200}, append(appendError(nil, pre), 0)} {
		require.ErrorIs(t, decodeError(bad), wire.ErrMalformed)
	}
}

func TestEffectNames(t *testing.T) {
	require.Equal(t, "deliver withdraw gone forward free wake topology fire active retire unknown",
		fmt.Sprintf("%v %v %v %v %v %v %v %v %v %v %v", effectDeliver, effectWithdraw, effectGone, effectForward, effectFree,
			effectWake, effectTopology, effectFire, effectActive, effectRetire, effectRetire+1))
	require.Equal(t, "rejected delivery_limit unknown", fmt.Sprintf("%v %v %v", deadRejected, deadLimit, deathReason(0)))
}
