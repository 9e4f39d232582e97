//go:build !invariants && !race

package bourse

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: compression takes no memory for each message. Method: means over many. Under the race detector pools lose what they are given.

// TestCompressDoesNotAllocate: neither on the way in nor on the way out.
func TestCompressDoesNotAllocate(t *testing.T) {
	body, noise := testText(64<<10), testNoise(64<<10)
	require.Less(t, testing.AllocsPerRun(500, func() {
		compress(body).release()
		compress(noise).release()
	}), 0.2)
	z := compress(body)
	cmd := compressedCommand(z.block, z.saved)
	memory := make([]byte, len(cmd), len(body)+200)
	require.Less(t, testing.AllocsPerRun(500, func() {
		copy(memory, cmd)
		env, err := envelopeOf(memory)
		if err == nil {
			_, err = env.expand(memory)
		}
		if err != nil || len(env.body) != len(body) {
			t.Error(len(env.body), cmp.Or(err, errCompressed))
		}
	}), 0.2)
}
