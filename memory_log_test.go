package bourse

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: a memory log writes to no memory that somebody reads, and a Ref stands for one command for ever. Method: a reader that is
// stopped in the middle of a Read, while what it reads is freed and much else is written.

// keeper is a Machine that keeps each command with a message, and frees the one that it kept before.
type keeper struct {
	Machine
	last Ref
}

func (k *keeper) Apply(bodies Bodies, entries []Entry) {
	for i := range entries {
		bodies.Keep(entries[i].Ref, 1)
		if k.last != 0 {
			bodies.Free(k.last)
		}
		k.last = entries[i].Ref
	}
}

// rawProposal is a command as it is.
type rawProposal []byte

func (p rawProposal) AppendTo(dst []byte) []byte { return append(dst, p...) }
func (p rawProposal) Durable() bool              { return false }
func (p rawProposal) Done(Answer, error)         {}

func TestMemoryLogWaitsForReaders(t *testing.T) {
	k := new(keeper)
	l := newMemoryLog(k)
	cmd := func(b byte) rawProposal {
		return append(rawProposal{byte(cmdEnqueue)}, bytes.Repeat([]byte{b}, 1000)...)
	}
	require.NoError(t, l.Propose(cmd('a')))
	first := k.last
	l.readers.Add(1)
	found := l.find(first)
	require.Equal(t, []byte(cmd('a')), found)
	for range 500 {
		require.NoError(t, l.Propose(cmd('b')))
		require.NotEqual(t, first, k.last)
	}
	require.Equal(t, []byte(cmd('a')), found, "it was written to while it was read")
	require.NotEmpty(t, l.left)
	_, err := l.Read(first, 0, nil)
	require.ErrorIs(t, err, ErrStorage)
	l.readers.Add(-1)
	require.NoError(t, l.Propose(cmd('c')))
	require.Empty(t, l.left)
	got, err := l.Read(k.last, 0, nil)
	require.NoError(t, err)
	require.Equal(t, []byte(cmd('c')), got)
}
