package replicate

import (
	"bytes"
	"strings"
	"testing"

	"github.com/boursemq/bourse/internal/enginetest"
)

// Goal: no bytes in place of a log entry or a snapshot bring more than the refusal that is meant for them. Method: fuzz targets over the
// decoders. An unknown log entry is a panic on purpose, with a text of its own: an old binary must stop before a newer log.

func FuzzBatch(f *testing.F) {
	f.Add(opening(3))
	b := &batch{payload: make([]byte, batchHeader)}
	b.take(nil, []byte("one"))
	b.take(nil, []byte("another"))
	b.seal(1, 2, 0)
	f.Add(b.payload)
	f.Fuzz(func(t *testing.T, payload []byte) {
		defer func() {
			if p := recover(); p != nil {
				if text, ok := p.(string); !ok || !strings.HasPrefix(text, "replicate: ") {
					panic(p)
				}
			}
		}()
		h := parseHeader(payload)
		total := 0
		for _, e := range commands(nil, payload, h, 5, 1) {
			total += len(e.Cmd)
		}
		if total > len(payload) {
			t.Fatalf("%d bytes of commands out of %d", total, len(payload))
		}
	})
}

func FuzzSnapshot(f *testing.F) {
	f.Add([]byte(snapshotMagic))
	f.Add(bytes.Repeat([]byte{0}, snapshotHeader))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, held, err := readSnapshot(bytes.NewReader(b), enginetest.NewMachine(), nil)
		if err == nil && len(held) > len(b) {
			t.Fatalf("%d commands out of %d bytes", len(held), len(b))
		}
	})
}
