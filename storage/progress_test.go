package storage

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goal: who waits for a long replay sees how far it is, and a short one says nothing. Method: a log of known length is replayed with
// reports close together, and far apart.

// heard keeps what is logged at Info.
type heard struct{ all []slog.Record }

func (*heard) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelInfo }
func (h *heard) WithAttrs([]slog.Attr) slog.Handler             { return h }
func (h *heard) WithGroup(string) slog.Handler                  { return h }

func (h *heard) Handle(_ context.Context, r slog.Record) error {
	h.all = append(h.all, r)
	return nil
}

func TestReplayTellsProgress(t *testing.T) {
	defer func(usual int64) { progressBytes = usual }(progressBytes)
	fs, c := &MemFS{}, newCollector()
	l, _ := open(t, "d", Options{FS: fs, SegmentBytes: testSegment, Commit: c.commit})
	const records = 100
	for range records {
		require.NoError(t, l.Append(1, true, raw(make([]byte, 1000))))
	}
	c.wait(records)
	require.NoError(t, l.Close())
	for _, far := range []bool{false, true} {
		progressBytes = 5 * testSegment
		if far {
			progressBytes = 1 << 20
		}
		var h heard
		l, got := open(t, "d", Options{FS: fs, SegmentBytes: testSegment, Commit: c.commit, Logger: slog.New(&h)})
		require.Len(t, got, records)
		require.NoError(t, l.Close())
		if far {
			require.Empty(t, h.all)
			return
		}
		require.GreaterOrEqual(t, len(h.all), 4)
		last := map[string]int64{}
		for _, r := range h.all {
			now := map[string]int64{}
			r.Attrs(func(a slog.Attr) bool {
				switch a.Value.Kind() {
				case slog.KindInt64:
					now[a.Key] = a.Value.Int64()
				case slog.KindUint64:
					now[a.Key] = int64(a.Value.Uint64())
				}
				return true
			})
			require.GreaterOrEqual(t, now["bytes"], last["bytes"]+progressBytes)
			require.Greater(t, now["records"], last["records"])
			require.Greater(t, now["percent"], last["percent"])
			require.LessOrEqual(t, now["bytes"], now["of"])
			require.Equal(t, 100*now["bytes"]/now["of"], now["percent"])
			require.LessOrEqual(t, now["records"], int64(records))
			last = now
		}
		require.Greater(t, last["records"], int64(records/2))
	}
}
