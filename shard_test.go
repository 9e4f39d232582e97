package bourse

// Goal: a shard serves consumers when, and only when, it leads and its session is open. Method: a log whose proposals the
// test answers, in the order that does most harm.

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// askedLog hands its proposals to the test.
type askedLog struct {
	Log
	asked chan Proposal
}

func (l askedLog) Propose(p Proposal) error {
	p.AppendTo(nil)
	l.asked <- p
	return nil
}

func newTestShard() *shard {
	b := &Broker{clock: newSystemClock(), log: slog.New(slog.DiscardHandler), lostLog: ErrNotLeader}
	b.placement = newPlacement(b, OneShard)
	return b.placement.first
}

// 1. It leads, and loses and wins the lead again. 2. The second session is open. 3. The goroutine that hears that the first
// was not comes late: it does not close the second.
func TestSessionRefusedLate(t *testing.T) {
	s, log := newTestShard(), askedLog{asked: make(chan Proposal)}
	s.opened(log)
	s.Lead(true)
	first := <-log.asked
	s.Lead(false)
	s.Lead(true)
	second := <-log.asked
	second.Done(Answer{Code: answerNumber + 1}, nil)
	require.NoError(t, s.serves(context.Background()))
	first.Done(Answer{}, ErrNotLeader)
	s.starts.Wait()
	require.NoError(t, s.serves(context.Background()))
}

// The lead, and commands, may come before the log is known.
func TestLeadBeforeOpened(t *testing.T) {
	s, log := newTestShard(), askedLog{asked: make(chan Proposal)}
	s.Lead(true)
	s.mu.Lock()
	s.run(nil, []effect{{kind: effectWake, at: 1}})
	set := s.stopWake != nil
	s.mu.Unlock()
	require.False(t, set, "a tick without a log")
	s.opened(log)
	(<-log.asked).Done(Answer{Code: answerNumber + 1}, nil)
	require.NoError(t, s.serves(context.Background()))
	s.starts.Wait()
}
