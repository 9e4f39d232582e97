package main

// Goal: the command shows what is in a directory, tells damage from what it cannot know, and writes nothing. Method: directories that a
// broker has left, whole, damaged, in use and of others; their bytes before and after.

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

var ctx = context.Background()

// filled is the directory of a broker that has been closed.
func filled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, b.Declare(ctx, bourse.Queue{Name: "jobs", Priorities: 3}, bourse.Queue{Name: "mail"},
		bourse.Schedule{Name: "nightly", Cron: "0 3 * * *", Message: bourse.Message{RoutingKey: "mail"}}))
	for _, m := range []bourse.Message{
		{RoutingKey: "jobs", ID: "first", Body: []byte("text"), Headers: map[string]any{"n": 1}, Priority: 2},
		{RoutingKey: "jobs", ID: "second", Body: []byte{0xff, 0xfe}},
		{RoutingKey: "jobs", ID: "third", Delay: time.Hour, GroupID: "g"},
		{RoutingKey: "mail", ID: "bad"},
	} {
		require.NoError(t, b.Publish(ctx, m))
	}
	d, err := b.Get(ctx, "mail")
	require.NoError(t, err)
	require.NoError(t, d.Reject("no"))
	for parked := 0; parked == 0; runtime.Gosched() {
		q, _ := b.QueueStats(bourse.ParkingQueue)
		parked = q.Ready
	}
	require.NoError(t, b.Close())
	return dir
}

func bourseOn(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(args, &o, &e)
	return status, o.String(), e.String()
}

func TestCheck(t *testing.T) {
	dir := filled(t)
	before := files(t, dir)
	status, out, errs := bourseOn("check", dir)
	require.Equal(t, well, status, errs)
	require.Equal(t, "3 queues, 4 messages with 6 bytes of bodies, 0 damaged\n", out)
	require.Equal(t, before, files(t, dir), "it only reads")
}

func TestStats(t *testing.T) {
	status, out, errs := bourseOn("stats", filled(t))
	require.Equal(t, well, status, errs)
	var rows [][]string
	for line := range strings.Lines(out) {
		rows = append(rows, strings.Fields(line))
	}
	require.Equal(t, []string{"queue", "ready", "delayed", "dying", "bytes", "enqueued", "acked", "dead"}, rows[0])
	require.Equal(t, []string{"jobs", "2", "1", "0"}, rows[2][:4], out)
	require.Contains(t, out, " bytes on disk in ")
	require.Contains(t, out, "schedule nightly: next ")
}

func TestDump(t *testing.T) {
	dir := filled(t)
	lines := func(args ...string) (all []message) {
		status, out, errs := bourseOn(append(append([]string{"dump"}, args...), dir)...)
		require.Equal(t, well, status, errs)
		for line := range strings.Lines(out) {
			var m message
			require.NoError(t, json.Unmarshal([]byte(line), &m))
			all = append(all, m)
		}
		return all
	}
	require.Len(t, lines(), 4)
	jobs := lines("-queue", "jobs")
	require.Len(t, jobs, 3)
	require.Equal(t, []any{"first", "text", 2, "ready", map[string]any{"n": 1.0}},
		[]any{jobs[0].ID, jobs[0].Body, jobs[0].Level, jobs[0].State, jobs[0].Headers})
	require.Equal(t, []byte{0xff, 0xfe}, jobs[1].Base64)
	require.Equal(t, []any{"third", "delayed", "g"}, []any{jobs[2].ID, jobs[2].State, jobs[2].GroupID})
	require.WithinDuration(t, time.Now().Add(time.Hour), jobs[2].ReadyAt, time.Hour)
	require.Len(t, lines("-state", "delayed"), 1)
	require.Len(t, lines("-queue", "jobs", "-limit", "1"), 1)
	dead := lines("-queue", bourse.ParkingQueue)
	require.Equal(t, []any{"bad", "rejected", "no"}, []any{dead[0].ID, dead[0].Deaths[0].Reason, dead[0].Deaths[0].Note})
}

// A byte that has changed in a body is found by name, and the rest is shown.
func TestDamage(t *testing.T) {
	dir := filled(t)
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	spoilt := false
	for _, name := range logs {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		if i := bytes.Index(b, []byte("text")); i >= 0 {
			b[i] ^= 1
			require.NoError(t, os.WriteFile(name, b, 0o600))
			spoilt = true
		}
	}
	require.True(t, spoilt)
	status, out, errs := bourseOn("check", dir)
	require.Equal(t, damaged, status)
	require.Contains(t, out+errs, ".log")
}

func TestUnknown(t *testing.T) {
	dir := filled(t)
	b, err := bourse.NewBroker(ctx, bourse.Options{Dir: dir})
	require.NoError(t, err)
	status, _, errs := bourseOn("check", dir)
	require.NoError(t, b.Close())
	require.Equal(t, unknown, status)
	require.Contains(t, errs, "in use")
	for _, args := range [][]string{
		{}, {"mend", dir}, {"check"}, {"check", dir, dir}, {"check", t.TempDir()}, {"check", filepath.Join(dir, "none")},
		{"dump", "-state", "gone", dir}, {"dump", "-queue", "none", dir}, {"dump", "-limit", "-1", dir}, {"stats", "-queue", "jobs", dir},
	} {
		status, _, errs := bourseOn(args...)
		require.Equal(t, unknown, status, args)
		require.NotEmpty(t, errs, args)
	}
}

// files is what is in a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		all[e.Name()] = string(b)
	}
	return all
}
