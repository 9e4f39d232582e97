package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/boursemq/bourse"
)

// job is the body of a message in the queue jobs.
type job struct {
	Path string `json:"path"` // below the folder, with slashes
}

// bookmark says how far a folder has been turned into jobs. Its newest copy is always in the queue
// bookmark: the next one is published before the last one is acked, and of two the further counts.
//
// A bookmark comes after the jobs it speaks of. 1. a chunk of jobs is confirmed, 2. kill, 3. the
// next run finds the bookmark before that chunk and publishes it again. So at most one chunk a kill is queued
// twice; results are told apart by their path, and a file that is done is not parsed again.
type bookmark struct {
	Folder   string `json:"folder"`
	Urgent   string `json:"urgent"`
	After    string `json:"after"`  // jobs are queued up to this path, in the order of strings
	Queued   int    `json:"queued"` // so many
	Complete bool   `json:"complete"`
}

// plan is the bookmark at hand.
type plan struct {
	b       *bourse.Broker
	opts    options
	mark    bookmark
	at      *bourse.Delivery // the message that holds mark; nil before the first
	resumed bool
}

// openPlan finds the bookmark of an unfinished run, or starts one.
func openPlan(ctx context.Context, b *bourse.Broker, opts options) (*plan, error) {
	p := &plan{b: b, opts: opts}
	for {
		d, err := b.Get(ctx, "bookmark")
		if errors.Is(err, bourse.ErrEmpty) {
			break
		}
		if err != nil {
			return nil, err
		}
		mark, err := bourse.JSON[bookmark]().Decode(d.Body)
		if err != nil {
			return nil, err
		}
		older := d
		if p.at == nil || mark.Queued >= p.mark.Queued {
			older, p.at, p.mark = p.at, d, mark
		}
		if older != nil {
			if err := older.Ack(); err != nil {
				return nil, err
			}
		}
	}
	if p.at != nil {
		p.resumed = true
		if opts.folder != "" && opts.folder != p.mark.Folder || opts.urgent != "" && opts.urgent != p.mark.Urgent {
			return nil, fmt.Errorf("%s holds an unfinished run over %s with -urgent %q: finish it, or use another -dir",
				opts.dir, p.mark.Folder, p.mark.Urgent)
		}
		return p, nil
	}
	p.mark = bookmark{Folder: opts.folder, Urgent: opts.urgent}
	if p.mark.Folder == "" {
		folder, err := standardLibrary()
		if err != nil {
			return nil, fmt.Errorf("no FOLDER, and no source of the standard library: %w", err)
		}
		p.mark.Folder = folder
	}
	return p, p.move(ctx)
}

// standardLibrary is the folder with the source of the Go standard library.
func standardLibrary() (string, error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(filepath.Join(strings.TrimSpace(string(root)), "src"))
}

// move makes mark durable and lets go of the bookmark before it.
func (p *plan) move(ctx context.Context) error {
	body, err := json.Marshal(p.mark)
	if err != nil {
		return err
	}
	if err := p.b.Publish(ctx, bourse.Message{RoutingKey: "bookmark", Body: body}); err != nil {
		return err
	}
	if p.at != nil {
		if err := p.at.Ack(); err != nil {
			return err
		}
	}
	p.at, err = p.b.Get(ctx, "bookmark")
	return err
}

// enqueue publishes the jobs that are not queued yet.
func (p *plan) enqueue(ctx context.Context, out io.Writer) error {
	if p.mark.Complete {
		return nil
	}
	files, err := goFiles(p.mark.Folder)
	if err != nil {
		return err
	}
	from, _ := slices.BinarySearch(files, p.mark.After+"\x00") // the first path behind After
	if p.mark.After == "" {
		from = 0
	}
	before := p.mark.Queued
	for chunk := range slices.Chunk(files[from:], p.opts.chunk) {
		messages := make([]bourse.Message, 0, len(chunk))
		for _, file := range chunk {
			m, err := p.message(file)
			if err != nil {
				return err
			}
			messages = append(messages, m)
		}
		if err := p.b.PublishBatch(ctx, messages); err != nil {
			return err
		}
		if n := p.opts.killQueued; n > 0 && p.mark.Queued-before+len(chunk) >= n {
			killMyself() // at the worst moment: the jobs are there, the bookmark is not
		}
		p.mark.After, p.mark.Queued = chunk[len(chunk)-1], p.mark.Queued+len(chunk)
		if err := p.move(ctx); err != nil {
			return err
		}
	}
	p.mark.Complete = true
	fmt.Fprintf(out, "queued   %s jobs, %s in all\n", number(p.mark.Queued-before), number(p.mark.Queued))
	return p.move(ctx)
}

func (p *plan) message(file string) (bourse.Message, error) {
	body, err := json.Marshal(job{file})
	m := bourse.Message{RoutingKey: "jobs", ID: file, Body: body}
	if len(file) > bourse.MaxNameBytes || !utf8.ValidString(file) || strings.ContainsFunc(file, unicode.IsControl) {
		sum := sha256.Sum256([]byte(file)) // an odd name does for a file, but not for a message
		m.ID = hex.EncodeToString(sum[:])
	}
	if isUrgent(p.mark.Urgent, file) {
		m.Priority = 1
	}
	return m, err
}

// isUrgent reports whether a path, or the name at its end, matches the pattern.
func isUrgent(pattern, file string) bool {
	whole, _ := path.Match(pattern, file) // the pattern was checked with the command line
	name, _ := path.Match(pattern, path.Base(file))
	return whole || name
}

// goFiles returns the paths of all Go files below folder, those of testdata included, sorted.
func goFiles(folder string) ([]string, error) {
	var files []string
	err := fs.WalkDir(os.DirFS(folder), ".", func(file string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && strings.HasSuffix(file, ".go") {
			files = append(files, file)
		}
		return err
	})
	slices.Sort(files)
	return files, err
}
