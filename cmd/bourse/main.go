// Command bourse looks into the directory of a broker, and copies it. But for compact it changes nothing there.
//
//	bourse check DIR              reads every message, and says what is damaged
//	bourse stats DIR              what the queues hold
//	bourse dump [options] DIR     the messages, one line of JSON for each
//	bourse compact DIR            makes the directory about as small as what is in it
//	bourse backup DIR TO          writes what is in it to a file; if TO is a directory, to bourse-backup.tar there
//	bourse restore FROM DIR       makes DIR, which must be empty or not there, from that file
//
// It shows what a broker that opened the directory now would find: what was on loan is ready again, and what is due has
// happened. Compact is such a broker, so with it that has happened for good. The exit status is 0 if all is well, 1 if
// something is damaged, and 2 if it cannot be told: the directory is not a broker's, or a broker has it open, or the command is wrong.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/boursemq/bourse"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// Exit statuses.
const (
	well    = 0
	damaged = 1
	unknown = 2
)

const usage = `usage: bourse check DIR
       bourse stats DIR
       bourse dump [-queue NAME] [-state ready|delayed|unacked|dying] [-limit N] DIR
       bourse compact DIR
       bourse backup DIR TO
       bourse restore FROM DIR
`

func run(args []string, out, errs io.Writer) int {
	if len(args) == 0 {
		_, _ = io.WriteString(errs, usage)
		return unknown
	}
	if copying := copies[args[0]]; copying != nil {
		return copying(args[1:], errs)
	}
	command, ok := commands[args[0]]
	if !ok {
		_, _ = fmt.Fprintf(errs, "bourse: there is no command %q\n%s", args[0], usage)
		return unknown
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() { _, _ = io.WriteString(errs, usage) }
	if args[0] == "dump" {
		flags.StringVar(&o.queue, "queue", "", "only messages of this queue")
		flags.StringVar(&o.state, "state", "", "only messages in this state")
		flags.IntVar(&o.limit, "limit", 0, "at most so many of each queue; 0: all")
	}
	if flags.Parse(args[1:]) != nil {
		return unknown
	}
	if flags.NArg() != 1 {
		_, _ = fmt.Fprintf(errs, "bourse: %s: want one directory, got %d\n%s", args[0], flags.NArg(), usage)
		return unknown
	}
	status, err := command(context.Background(), flags.Arg(0), o, out)
	if err != nil {
		_, _ = fmt.Fprintf(errs, "bourse: %s: %v\n", args[0], err)
	}
	return status
}

type options struct {
	queue string
	state string
	limit int
}

// commands are those on one directory.
var commands = map[string]func(ctx context.Context, dir string, o options, out io.Writer) (int, error){
	"check": looking(check), "stats": looking(stats), "dump": looking(dump), "compact": compact,
}

// looking is a command that f does on a shadow of the directory.
func looking(f func(context.Context, *bourse.Broker, options, io.Writer) (int, error)) func(context.Context, string, options,
	io.Writer) (int, error) {
	return func(ctx context.Context, dir string, o options, out io.Writer) (int, error) {
		return look(ctx, dir, func(ctx context.Context, b *bourse.Broker) (int, error) { return f(ctx, b, o, out) })
	}
}

// look opens a shadow of the directory for f.
func look(ctx context.Context, dir string, f func(context.Context, *bourse.Broker) (int, error)) (int, error) {
	return open(ctx, dir, bourse.LocalOptions{ReadOnly: true}, f)
}

// open opens the directory, which must be there, for f. Without an error, status is what f says.
func open(ctx context.Context, dir string, as bourse.LocalOptions, f func(context.Context, *bourse.Broker) (int, error)) (
	status int, err error) {
	if _, err := os.Stat(filepath.Join(dir, "FORMAT")); err != nil {
		return unknown, fmt.Errorf("%s is not the directory of a broker: %w", dir, err)
	}
	engine, err := bourse.NewLocalEngine(dir, as)
	var b *bourse.Broker
	if err == nil {
		b, err = bourse.NewBroker(ctx, bourse.Options{Engine: engine})
	}
	if err != nil {
		status = unknown
		if errors.Is(err, bourse.ErrStorage) {
			status = damaged
		}
		return status, err
	}
	status, err = f(ctx, b)
	if closed := b.Close(); closed != nil && err == nil {
		return unknown, closed
	}
	return status, err
}

// check reads every message.
func check(ctx context.Context, b *bourse.Broker, _ options, out io.Writer) (int, error) {
	messages, bad, size := 0, 0, int64(0)
	queues := b.Stats().Queues
	for _, q := range queues {
		for m, err := range b.Browse(ctx, q.Name, bourse.BrowseOptions{}) {
			switch {
			case err == nil:
				messages++
				size += int64(len(m.Body))
			case m == nil:
				return unknown, err
			default:
				bad++
				if _, err := fmt.Fprintln(out, err); err != nil {
					return unknown, err
				}
			}
		}
	}
	_, err := fmt.Fprintf(out, "%d queues, %d messages with %d bytes of bodies, %d damaged\n", len(queues), messages, size, bad)
	if err != nil {
		return unknown, err
	}
	if bad > 0 {
		return damaged, nil
	}
	return well, nil
}

// stats prints a table of the queues.
func stats(_ context.Context, b *bourse.Broker, _ options, out io.Writer) (int, error) {
	all := b.Stats()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "queue\tready\tdelayed\tdying\tbytes\tenqueued\tacked\tdead\t") // Flush has the error
	for _, q := range all.Queues {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n",
			q.Name, q.Ready, q.Delayed, q.Dying, q.Bytes, q.Enqueued, q.Acked, q.Dead)
	}
	if err := w.Flush(); err != nil {
		return unknown, err
	}
	disk, memory := all.Storage, all.Memory
	_, err := fmt.Fprintf(out, "%d bytes on disk in %d files, %d bytes of memory for messages and ids\n",
		disk.Bytes, disk.Segments+disk.Spares, memory.Waiting+memory.IDs)
	if err != nil {
		return unknown, err
	}
	for _, s := range all.Schedules {
		if _, err := fmt.Fprintf(out, "schedule %s: next %v, fired %d, skipped %d\n", s.Name, s.Next, s.Fired, s.Skipped); err != nil {
			return unknown, err
		}
	}
	return well, nil
}

// message is a line of dump. A body that is not text is in Base64.
type message struct {
	Queue      string         `json:"queue"`
	Seq        uint64         `json:"seq"`
	State      string         `json:"state"`
	ID         string         `json:"id,omitempty"`
	Exchange   string         `json:"exchange,omitempty"`
	RoutingKey string         `json:"routing_key,omitempty"`
	Level      int            `json:"level"`
	GroupID    string         `json:"group_id,omitempty"`
	EnqueuedAt time.Time      `json:"enqueued_at"`
	ReadyAt    time.Time      `json:"ready_at,omitzero"`
	ExpiresAt  time.Time      `json:"expires_at,omitzero"`
	Deliveries int            `json:"deliveries"`
	Failures   int            `json:"failures"`
	Reason     string         `json:"reason,omitempty"`
	Note       string         `json:"note,omitempty"`
	Headers    map[string]any `json:"headers,omitempty"`
	Deaths     []bourse.Death `json:"deaths,omitempty"`
	Body       string         `json:"body,omitempty"`
	Base64     []byte         `json:"body_base64,omitempty"`
	Error      string         `json:"error,omitempty"`
}

func lineOf(m *bourse.Browsed, err error) message {
	line := message{
		Queue: m.Queue, Seq: m.Seq, State: m.State.String(), ID: m.ID, Exchange: m.Exchange, RoutingKey: m.RoutingKey, Level: m.Level,
		GroupID: m.GroupID, EnqueuedAt: m.EnqueuedAt, ReadyAt: m.ReadyAt, ExpiresAt: m.ExpiresAt, Deliveries: m.Deliveries,
		Failures: m.Failures, Reason: m.Reason, Note: m.Note, Headers: m.Headers, Deaths: m.Deaths,
	}
	switch {
	case err != nil:
		line.Error = err.Error()
	case utf8.Valid(m.Body):
		line.Body = string(m.Body)
	default:
		line.Base64 = m.Body
	}
	return line
}

var states = map[string]bourse.State{
	"ready": bourse.StateReady, "delayed": bourse.StateDelayed, "unacked": bourse.StateUnacked, "dying": bourse.StateDying,
}

// dump prints messages as lines of JSON.
func dump(ctx context.Context, b *bourse.Broker, o options, out io.Writer) (int, error) {
	browse := bourse.BrowseOptions{Limit: o.limit}
	if o.state != "" {
		state, ok := states[o.state]
		if !ok {
			return unknown, fmt.Errorf("-state is %q, want ready, delayed, unacked or dying", o.state)
		}
		browse.States = []bourse.State{state}
	}
	names := []string{o.queue}
	if o.queue == "" {
		names = nil
		for _, q := range b.Stats().Queues {
			names = append(names, q.Name)
		}
	}
	status, encoder := well, json.NewEncoder(out)
	for _, name := range names {
		for m, err := range b.Browse(ctx, name, browse) {
			if m == nil {
				return unknown, err
			}
			if err != nil {
				status = damaged
			}
			if err := encoder.Encode(lineOf(m, err)); err != nil {
				return unknown, err
			}
		}
	}
	return status, nil
}
