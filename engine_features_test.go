package bourse_test

// Goal: the features of queues are what they were after a restart of the local engine, as after another leader in package replicate.
// Method: the same suite, enginetest.Features, with the broker closed and opened, or killed and recovered, in between.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/internal/enginetest"
	"github.com/boursemq/bourse/storage"
)

func TestLocalFeatures(t *testing.T) {
	for _, name := range []string{"closed", "killed"} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			fs := new(storage.MemFS)
			open := func() *bourse.Broker {
				b, err := bourse.NewBroker(ctx, bourse.Options{Engine: onFS(t, fs)})
				require.NoError(t, err)
				return b
			}
			bounded, cancel := context.WithTimeout(ctx, testTimeout)
			defer cancel()
			b := open()
			for _, f := range enginetest.Features() {
				for _, q := range f.Queues {
					require.NoError(t, b.Declare(ctx, q))
				}
				require.NoError(t, f.Fill(bounded, b), f.Name)
			}
			left := crashed(fs)
			require.NoError(t, b.Close())
			if name == "killed" {
				fs = left
			}
			b = open()
			defer func() { require.NoError(t, b.Close()) }()
			for _, f := range enginetest.Features() {
				require.NoError(t, f.Verify(bounded, b), f.Name)
			}
		})
	}
}
