//go:build !invariants && !race

package bench

// Goal: no change adds an allocation to the path of a message unnoticed. Method: each style runs over many messages
// on a warm broker, and what the whole process allocated meanwhile is divided by their number. Nothing is timed, so the test
// holds on any machine; what batches allocate for themselves is less than the margin of one tenth. The race detector makes pools forget.

import "testing"

const (
	allocMessages = 20_000
	allocMargin   = 0.1
)

func TestAllocations(t *testing.T) {
	b, err := Open(Config{Dir: t.TempDir(), Messages: allocMessages})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	most := map[string]float64{
		"W1/PublishAsync": 2, // the Confirm, and the channel of a Wait that had to wait
		"W1/PublishBatch": 1,
		"W1/Publish":      2,
		"W2/Next":         3, // the cycle: Confirm, Delivery, body; and the channel
		"W2/NextBatch":    3,
		"W4":              2,
		"W6/Batch":        1.2, // the Delivery; slabs, and what a batch allocates for itself
	}
	for _, s := range Scenarios() {
		bound, ok := most[s.Name]
		if !ok {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			sample, err := b.Run(s, Broker)
			if err == nil {
				err = b.Reset()
			}
			if err != nil {
				t.Fatal(err)
			}
			got := sample.AllocsPerMessage()
			t.Logf("%.2f allocations, %.0f bytes per message", got, sample.BytesPerMessage())
			if got > bound+allocMargin {
				t.Errorf("%.2f allocations per message, bound %.1f", got, bound)
			}
		})
	}
}
