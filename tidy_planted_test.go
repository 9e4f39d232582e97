package bourse_test

// Goal: each rule of tidy_test.go finds what it is for, and nothing else. Method: sources
// with one planted violation each, and ones that only look like it.

import (
	"path"
	"strings"
	"testing"
)

// planted is a small source, and a part of the one finding that the rule must make in it;
// clean if there is to be none. A source without a package clause gets one.
var planted = []struct{ rule, path, text, want string }{
	{"imports", "broker.go", `import "github.com/lni/dragonboat/v4"`, ". may not import github.com/lni/dragonboat/v4"},
	{"imports", "broker.go", `import "github.com/boursemq/bourse/replicate"`, ". may not import"},
	{"imports", "broker.go", `import "github.com/klauspost/compressor"`, ". may not import"},
	{"imports", "broker.go", `import "pgregory.net/rapid"`, ". may not import"},
	{"imports", "broker.go", `import "github.com/boursemq/bourse/internal/sim"`, "internal/sim is for tests only"},
	{"imports", "broker.go", `import . "strings"`, "dot import"},
	{"imports", "broker.go", `import "C"`, "cgo"},
	{"imports", "broker.go", `import ("github.com/klauspost/compress/s2"; "net/http"; "github.com/google/btree")`, clean},
	{"imports", "broker_test.go", `import ("pgregory.net/rapid"; "github.com/boursemq/bourse/internal/sim")`, clean},
	{"imports", "broker_test.go", `import "github.com/spf13/afero"`, ". may not import"},
	{"imports", "storage/wal.go", `import "github.com/boursemq/bourse"`, "storage may not import"},
	{"imports", "storage/wal.go", `import "github.com/google/btree"`, "storage may not import"},
	{"imports", "storage/wal.go", `import "github.com/boursemq/bourse/internal/wire"`, clean},
	{"imports", "storage/wal_test.go", `import "github.com/boursemq/bourse/storage"`, clean},
	{"imports", "internal/wire/wire.go", `import "github.com/boursemq/bourse/internal/invariant"`, "internal/wire may not import"},
	{"imports", "internal/enginetest/suite.go", `import "github.com/boursemq/bourse"`, clean},
	{"imports", "replicate/engine.go", `import ("github.com/lni/dragonboat/v4"; "github.com/boursemq/bourse")`, clean},
	{"imports", "replicate/engine.go", `import "github.com/boursemq/bourse/bench"`, "replicate may not import"},
	{"imports", "examples/hello/main.go", `import "github.com/boursemq/bourse"`, clean},
	{"imports", "examples/hello/main.go", `import "github.com/boursemq/bourse/storage"`, "examples may not import"},
	{"imports", "bench/peers/nats.go", `import "github.com/nats-io/nats.go"`, clean},
	{"imports", "cache/lru.go", ``, "folder cache is not in the layout"},
	{"imports", "storage/cache/lru.go", ``, "folder storage/cache is not in the layout"},

	{"pure files", "queue.go", `func f() { go f() }`, "go statement"},
	{"pure files", "queue.go", `var c chan int`, "channel"},
	{"pure files", "queue.go", `func f() { select {} }`, "select"},
	{"pure files", "queue.go", `func f(c C) { c <- 1 }`, "send"},
	{"pure files", "queue.go", `func f(c C) { <-c }`, "receive"},
	{"pure files", "queue.go", `import "sync"`, "imports sync"},
	{"pure files", "queue.go", `import "sync/atomic"`, "imports sync/atomic"},
	{"pure files", "queue.go", `import "math/rand/v2"`, "imports math/rand/v2"},
	{"pure files", "queue.go", `import "hash/maphash"`, "imports hash/maphash"},
	{"pure files", "queue.go", `import "log/slog"`, "imports log/slog"},
	{"pure files", "queue.go", `import "time"; var t = time.Now()`, "uses time.Now"},
	{"pure files", "queue.go", `import "time"; var t time.Time`, "uses time.Time"},
	{"pure files", "queue.go", `import clock "time"; var t = clock.Unix(0, 0)`, "uses time.Unix"},
	{"pure files", "headers.go", `import "time"; var t = time.Now()`, "uses time.Now"},
	{"pure files", "headers.go", `import "time"; var t time.Time = time.Unix(0, 1)`, clean},
	{"pure files", "queue.go", `import ("time"; "slices"; "github.com/google/btree"); const d time.Duration = 3 * time.Hour`, clean},
	{"pure files", "broker.go", `import "sync"; func f() { go f() }`, clean},
	{"pure files", "queue_test.go", `import "os"`, clean},

	{"map order", "queue.go", `func f(m map[int]int) { for range m {} }`, "range over a map"},
	{"map order", "queue.go", `type set map[int]bool; type q struct { s set }; func (q *q) f() { for range q.s {} }`, "range over a map"},
	{"map order", "queue.go", `func f[M ~map[K]V, K comparable, V any](m M) { for range m {} }`, "range over a map"},
	{"map order", "queue.go", `import "maps"; func f(m map[int]int) { for range maps.Keys(m) {} }`, "maps.Keys"},
	{"map order", "queue.go", `import "maps"; func f(m map[int]int) { maps.DeleteFunc(m, func(k, v int) bool { return k > 1 }) }`, "maps.DeleteFunc"},
	{"map order", "queue.go", `import ("maps"; "slices"); func f(m map[int]int) { for range slices.Sorted(maps.Keys(m)) {} }`, clean},
	{"map order", "queue.go", `import ("maps"; "slices"); func f(m map[int]int) { s := slices.Collect(maps.Keys(m)); slices.Sort(s) }`, clean},
	{"map order", "queue.go", `import ("maps"; "slices"); func f(s []int, m map[int]int) { s = slices.AppendSeq(s, maps.Keys(m)); slices.Sort(s) }`, clean},
	{"map order", "queue.go", `import ("maps"; "slices"); func f(r []int, m map[int]int) { s := slices.Collect(maps.Keys(m)); slices.Sort(r); _ = s }`, "maps.Keys"},
	{"map order", "queue.go", `import "maps"; func f(m map[int]int) { _ = maps.Clone(m); clear(m); delete(m, 1); _ = m[1] }`, clean},
	{"map order", "queue.go", `func f[S ~[]E, E any](s S) { for range s {}; for range 3 {}; for range "s" {}; for range [2]int{} {} }`, clean},
	{"map order", "broker.go", `func f(m map[int]int) { for range m {} }`, clean},

	{"clock", "worker.go", `import "time"; var t = time.Now()`, "time.Now outside clock.go"},
	{"clock", "storage/wal.go", `import "time"; var f = time.AfterFunc`, "time.AfterFunc outside clock.go"},
	{"clock", "storage/clock.go", `import "time"; var f = time.Sleep`, "time.Sleep outside clock.go"},
	{"clock", "internal/sim/sim.go", `import t "time"; var f = t.NewTicker`, "time.NewTicker outside clock.go"},
	{"clock", "worker.go", `import "time"; const d = time.Second; var at time.Time; var b = at.After(at)`, clean},
	{"clock", "clock.go", `import "time"; var t = time.Now()`, clean},
	{"clock", "internal/enginetest/call.go", `import "time"; var t = time.NewTimer`, clean},
	{"clock", "bench/run.go", `import "time"; var t = time.Now()`, clean},

	{"file calls", "broker.go", `import "os"; var f = os.Open`, "os.Open outside storage/fs*.go"},
	{"file calls", "storage/wal.go", `import "os"; var f = os.Rename`, "os.Rename outside storage/fs*.go"},
	{"file calls", "storage/wal.go", `import "syscall"; var f = syscall.Fsync`, "syscall.Fsync outside storage/fs*.go"},
	{"file calls", "storage/wal.go", `import "path/filepath"; var f = filepath.Glob`, "filepath.Glob outside"},
	{"file calls", "broker.go", `import "os/exec"`, "os/exec outside"},
	{"file calls", "storage/errors.go", `import ("os"; "syscall"); var _, _ = os.ErrNotExist, syscall.ENOSPC`, clean},
	{"file calls", "storage/fs_unix.go", `import ("os"; "syscall"); var _, _ = os.OpenFile, syscall.Flock`, clean},
	{"file calls", "broker_test.go", `import "os"; var f = os.ReadFile`, clean},

	{"randomness", "broker.go", `import "math/rand/v2"`, "math/rand/v2 outside"},
	{"randomness", "examples/hello/main.go", `import "math/rand"`, "math/rand outside"},
	{"randomness", "internal/sim/sim.go", `import "math/rand/v2"`, clean},
	{"randomness", "queue_test.go", `import "math/rand/v2"`, clean},

	{"no sleep in tests", "broker_test.go", `import "time"; var f = time.Sleep`, "time.Sleep in a test"},
	{"no sleep in tests", "internal/enginetest/call.go", `import "time"; var f = time.Sleep`, "time.Sleep in a test"},
	{"no sleep in tests", "broker_test.go", `import "time"; var d = time.Second`, clean},

	{"file length", "broker.go", strings.Repeat("\n", 800), "lines, at most 800"},
	{"file length", "broker.go", strings.Repeat("\n", 790), clean},
	{"file length", "DESIGN.md", strings.Repeat("\n", 2000), clean},

	{"line length", "broker.go", "// " + strings.Repeat("x", 138), "141 columns, at most 140"},
	{"line length", "broker.go", "\t\t// " + strings.Repeat("é", 129), clean},
	{"line length", "broker.go", "\t\t// " + strings.Repeat("é", 130), "141 columns"},
	{"line length", "README.md", strings.Repeat("x", 141), "141 columns"},
	{"line length", "README.md", "| " + strings.Repeat("x", 141) + " |", clean},
	{"line length", "queue_test.go", "var t = []string{\n{" + strings.Repeat("1", 141) + "},\n}", clean},

	{"package comment", "storage/wal.go", "package storage", "no file of package storage has a package comment"},
	{"package comment", "storage/wal.go", "// Package storage keeps logs.\npackage storage", clean},
	{"package comment", "storage/wal_test.go", "package storage_test", clean},

	{"doc comments", "broker.go", "func Open() {}", "func Open: doc comment is missing"},
	{"doc comments", "broker.go", "// opens a broker.\nfunc Open() {}", "does not start with the name"},
	{"doc comments", "broker.go", "// Opening is this.\nfunc Open() {}", "does not start with the name"},
	{"doc comments", "broker.go", "// Open opens\nfunc Open() {}", "is not a sentence"},
	{"doc comments", "broker.go", "func (b *Broker[T]) Close() {}", "method Close: doc comment is missing"},
	{"doc comments", "broker.go", "type Broker struct{}", "type Broker: doc comment is missing"},
	{"doc comments", "broker.go", "// Log is a log.\ntype Log interface{ Sync() }", "method Sync: doc comment is missing"},
	{"doc comments", "broker.go", "const MaxBytes = 1", "value MaxBytes: doc comment is missing"},
	{"doc comments", "broker.go", "var (\nErrA = 1\n)", "value ErrA: doc comment is missing"},
	{"doc comments", "storage/wal.go", "func Open() {}", "func Open: doc comment is missing"},
	{"doc comments", "broker.go", "// Open opens a\n// broker: see there.\nfunc Open() {}\n\nfunc (e *E) Error() string { return `` }", clean},
	{"doc comments", "broker.go", "// A Broker is one.\ntype Broker struct{ Name string }\n\nfunc (b *shard) Close() {}\n\nfunc open() {}", clean},
	{"doc comments", "broker.go", "// Limits.\nconst (\nMaxA = 1\nMaxB = 2\n)\n\nconst (\nA = 1 // one\n\n// B is two.\nB = 2\n)", clean},
	{"doc comments", "internal/wire/wire.go", "func Open() {}", clean},

	{"left-over markers", "broker.go", "// TODO: this", "TODO without the number of an issue"},
	{"left-over markers", "broker_test.go", "/* that\nFIXME */", "FIXME without the number of an issue"},
	{"left-over markers", "broker.go", "// TODO(#17): this\n\n// TODOS are methods\n\nvar s = `XXX`", clean},

	{"machine paths", "broker.go", `var dir = "/tmp/bourse"`, "path of one machine"},
	{"machine paths", "README.md", "Run it in /home/me/bourse.", "path of one machine"},
	{"machine paths", "broker.go", `// see https://example.org/work/17 and ./tmp/x`, clean},
	{"machine paths", "broker_test.go", `var dir = "/tmp/bourse"`, clean},

	{"package names", "storage/wal.go", "package util", "package name util says nothing"},
	{"package names", "internal/mock/wal_test.go", "package wal", "folder name mock says nothing"},
	{"package names", "internal/wire/wire.go", "package wire", clean},

	{"go.mod", "go.mod", "module " + modulePath + "\n\nrequire (\n\tgithub.com/lni/dragonboat/v4 v4.0.0 // indirect\n)", "dragonboat outside"},
	{"go.mod", "go.mod", "module " + modulePath + "\n\nrequire (\n\tgithub.com/spf13/afero v1.9.0\n)", "requires github.com/spf13/afero"},
	{"go.mod", "go.mod", "module " + modulePath + "\n\nrequire github.com/spf13/afero v1.9.0", "requires github.com/spf13/afero"},
	{"go.mod", "go.mod", "module github.com/other/bourse", "the module is not named"},
	{"go.mod", "bench/peers/go.mod", "module " + modulePath + "/bench/peers\n\nrequire github.com/lni/dragonboat/v4 v4.0.0", "dragonboat outside"},
	{"go.mod", "replicate/go.mod", "module " + modulePath + "/replicate\n\nrequire github.com/lni/dragonboat/v4 v4.0.0", clean},
	{"go.mod", "go.mod", "module " + modulePath + "\n\nrequire (\n\tgithub.com/google/btree v1.1.3\n\tgolang.org/x/sys v0.1.0 // indirect\n)", clean},
}

const clean = ""

func TestTidyCatches(t *testing.T) {
	lookup, _ := exportData(t, "maps", "slices")
	violations := map[string]int{}
	for _, p := range planted {
		text := p.text
		if path.Ext(p.path) == ".go" && !strings.Contains(text, "package ") {
			text = "package bourse\n\n" + text + "\n"
		}
		s, err := newSource(p.path, text)
		if err != nil {
			t.Errorf("%s: %v", p.text, err)
			continue
		}
		if p.rule == "map order" {
			if err := typeCheck([]*source{s}, lookup); err != nil {
				t.Errorf("%s: %v", p.text, err)
				continue
			}
		}
		known := false
		for _, r := range rules {
			if r.name != p.rule {
				continue
			}
			known = true
			found := r.check([]*source{s})
			if p.want == clean && len(found) != 0 {
				t.Errorf("%s: %s: %s\nfound %q in a clean source", p.rule, p.path, p.text, found)
			}
			if p.want != clean && (len(found) != 1 || !strings.Contains(found[0], p.want)) {
				t.Errorf("%s: %s: %s\nfound %q, want %q", p.rule, p.path, p.text, found, p.want)
			}
		}
		if !known {
			t.Errorf("no rule is named %q", p.rule)
		}
		if p.want != clean {
			violations[p.rule]++
		}
	}
	for _, r := range rules {
		if violations[r.name] == 0 {
			t.Errorf("no violation of rule %q is planted", r.name)
		}
	}
}

// An untyped pure file must not pass for one without a range over a map.
func TestTidyNeedsTypes(t *testing.T) {
	s, err := newSource("queue.go", "package bourse")
	if err != nil {
		t.Fatal(err)
	}
	if len(checkMapOrder(s)) != 1 {
		t.Error("a pure file without types passed")
	}
}
