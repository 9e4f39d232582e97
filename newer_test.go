package bourse_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
	"github.com/boursemq/bourse/storage"
)

// Goal: a directory with anything of a newer version in it is refused with a typed error, and not a byte of it changes. Method: a
// directory as the golden ones, in which one version after the other is made a higher one, with the checksum right.

// raw writes bytes as a checkpoint.
type raw []byte

func (b raw) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b)
	return int64(n), err
}

// rawPayload is a record.
type rawPayload []byte

func (p rawPayload) AppendTo(dst []byte) []byte { return append(dst, p...) }

func TestNewerVersionRefused(t *testing.T) {
	golden := t.TempDir()
	makeGolden(t, golden)
	one := func(dir, suffix string) string {
		names, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
		require.NoError(t, err)
		require.NotEmpty(t, names)
		return names[len(names)-1]
	}
	edit := func(name string, change func(b []byte) []byte) {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, change(b), 0o600))
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	// withLog opens the log below a broker.
	withLog := func(dir string, f func(l *storage.Log, checkpoint []byte)) {
		commit := func(_ []storage.Committed, err error) { require.NoError(t, err) }
		l, err := storage.Open(dir, storage.Options{SegmentBytes: 4 << 10, Commit: commit})
		require.NoError(t, err)
		r, found, err := l.Checkpoint()
		require.NoError(t, err)
		require.True(t, found)
		checkpoint, err := io.ReadAll(r)
		require.NoError(t, errors.Join(err, r.Close()))
		require.NoError(t, l.Replay(func([]storage.Committed) error { return nil }))
		f(l, checkpoint)
		require.NoError(t, l.Close())
	}
	rewrite := func(dir string, change func(b []byte)) {
		withLog(dir, func(l *storage.Log, checkpoint []byte) {
			mark := l.Mark()
			change(checkpoint)
			require.NoError(t, l.WriteCheckpoint(mark, raw(checkpoint)))
		})
	}
	for _, c := range []struct {
		place string
		newer func(dir string)
		want  error // or damage
	}{
		{"the format", func(dir string) {
			edit(filepath.Join(dir, "FORMAT"), func([]byte) []byte { return []byte("bourse log, format 2\n") })
		}, bourse.ErrForeignDir},
		{"a segment", func(dir string) {
			edit(one(dir, ".log"), func(b []byte) []byte {
				copy(b, "bourseg1")
				binary.LittleEndian.PutUint32(b[8:], 2)
				binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], table))
				return b
			})
		}, bourse.ErrForeignDir},
		{"the header of the checkpoint", func(dir string) {
			edit(one(dir, ".ckpt"), func(b []byte) []byte {
				binary.LittleEndian.PutUint32(b[8:], 2)
				end := 36 + 4*binary.LittleEndian.Uint32(b[12:])
				binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], table))
				return b
			})
		}, nil},
		{"the checkpoint", func(dir string) { rewrite(dir, func(b []byte) { b[0] = 2 }) }, bourse.ErrForeignDir},
		{"a snapshot", func(dir string) {
			rewrite(dir, func(b []byte) {
				require.Equal(t, []byte{1, 1, 1}, b[:3], "one shard, number 1")
				_, n := binary.Uvarint(b[3:]) // the length of the first piece of its snapshot
				b[3+n]++
			})
		}, bourse.ErrForeignDir},
		{"a command", func(dir string) {
			withLog(dir, func(l *storage.Log, _ []byte) {
				require.NoError(t, l.Append(1, true, rawPayload{200, 0, 0, 0, 0, 0, 0, 0, 0}))
			})
		}, bourse.ErrForeignDir},
	} {
		t.Run(c.place, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(golden, "closed"))))
			c.newer(dir)
			before := filesOf(t, dir)
			for range 2 {
				_, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
				if c.want != nil {
					require.ErrorIs(t, err, c.want)
					require.NotErrorIs(t, err, bourse.ErrStorage)
				} else {
					var damage *storage.CorruptError
					require.ErrorAs(t, err, &damage)
					require.Contains(t, damage.Found, "version 2")
				}
				require.Equal(t, before, filesOf(t, dir), "the directory was changed")
			}
		})
	}
}

// filesOf is the content of dir.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "LOCK") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		all[f.Name()] = string(b)
	}
	return all
}
