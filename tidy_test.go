package bourse_test

// Goal: the rules of the house that a compiler does not know hold for every file, so
// that a reviewer need not look for them. Method: every file of the repository is read
// (and parsed, if it is Go) once, and each rule (tidy_rules_test.go) is a function from
// files to findings. TestTidy runs the rules over the repository; TestTidyCatches
// (tidy_planted_test.go) runs each over sources with a planted violation, and over ones
// that only look like it.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/boursemq/bourse"

// pureFiles are the files of the root package without I/O, clock, goroutine or randomness:
// what they compute must be equal on every replica and after every restart. Those that do
// not exist yet are passed over. (.ci/run reads this list too, for their test coverage.)
var pureFiles = []string{
	"exchange.go",
	"topic.go",
	"headers.go",
	"hash.go",
	"topology.go",
	"declare.go",
	"redefine.go",
	"bundle.go",
	"queue.go",
	"fairness.go",
	"valve.go",
	"activation.go",
	"rate.go",
	"retry.go",
	"tail.go",
	"dedup.go",
	"group.go",
	"schedule.go",
	"agenda.go",
	"priority.go",
	"cold.go",
	"deadletter.go",
	"ledger.go",
	"command.go",
	"machine.go",
	"place.go",
	"amend.go",
	"snapshot.go",
	"check.go",
	"limit.go",
	"lease.go",
	"exclusive.go",
}

// pureImports is all that pure files may import. The list is closed because a ban would
// have to know every package with a clock, a lock or a random seed (hash/maphash has one).
var pureImports = []string{
	"bytes", "cmp", "crypto/sha256", "encoding/binary", "errors", "fmt", "hash/crc32", "hash/fnv", "io", "iter", "maps", "math",
	"math/bits",
	"slices", "sort", "strconv", "strings", "time", "unicode", "unicode/utf8",
	"github.com/google/btree", modulePath + "/internal/wire", modulePath + "/internal/invariant",
}

// pureTime is what pure files may use of package time: a length of time, never a point in it.
var pureTime = []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

// calendarFiles may hold a time.Time, and make one from the numbers in a command: it is a
// value type of headers, a field of declarations and a part of the history of the dead. None
// of them asks what time it is: time.Now is as closed to them as to the others.
var calendarFiles = []string{"headers.go", "declare.go", "deadletter.go"}

// Modules by who may use them. linkedModules is all that a program with a broker links.
var (
	linkedModules = []string{"github.com/google/btree", "github.com/klauspost/compress", "github.com/robfig/cron/v3"}
	testModules   = []string{"github.com/stretchr/testify", "pgregory.net/rapid", "github.com/anishathalye/porcupine", "go.uber.org/goleak"}
)

// layout says who may import what beyond the standard library, by the longest matching
// folder. Packages of this module are written without its path; "." is the root package,
// and "*" any other module. A folder that is not here may hold no Go file.
var layout = map[string]struct {
	below   bool     // the entry holds for the folders below too
	imports []string // allowed in all files
	tests   []string // allowed in test files too
}{
	".": {imports: append([]string{"storage", "internal/wire", "internal/invariant"}, linkedModules...),
		tests: testModules},
	"storage": {imports: []string{"internal/wire", "internal/invariant", "github.com/klauspost/compress"},
		tests: testModules},
	"internal/wire":       {tests: testModules},
	"internal/invariant":  {tests: testModules},
	"internal/sim":        {tests: testModules},
	"internal/enginetest": {imports: append([]string{".", "storage", "internal/wire", "internal/invariant"}, testModules...)},
	"examples":            {below: true, imports: []string{".", "replicate"}},
	"cmd":                 {below: true, imports: []string{".", "replicate"}, tests: testModules},
	"bench":               {below: true, imports: []string{".", "storage", "replicate", "bench"}},
	"bench/peers":         {below: true, imports: []string{"*"}}, // a module of its own: the peers we compare with
	"replicate":           {below: true, imports: []string{".", "storage", "internal/wire", "internal/invariant", "replicate", "*"}},
}

// testOnly are packages that nothing but a test may import: no user is to link them. One that
// imports the root package is imported there by an external test (package bourse_test).
var testOnly = []string{"internal/sim", "internal/enginetest"}

// Calls that have one home each, so that tests can put a clock and a disk of
// their own in their place.
var (
	clockCalls = []string{"Now", "Sleep", "After", "NewTimer", "AfterFunc", "Tick", "NewTicker", "Since", "Until"}
	fileCalls  = []string{
		"Chdir", "Chmod", "Chown", "Chtimes", "CopyFS", "Create", "CreateTemp", "DirFS", "Lchown", "Link", "Lstat", "Mkdir", "MkdirAll",
		"MkdirTemp", "NewFile", "Open", "OpenFile", "OpenInRoot", "OpenRoot", "Pipe", "ReadDir", "ReadFile", "Readlink", "Remove",
		"RemoveAll", "Rename", "Stat", "Symlink", "Truncate", "WriteFile",
	}
)

const (
	maxFileLines   = 800
	maxLineColumns = 140 // a tab counts 4
)

// longFiles are the exceptions from maxFileLines. It is empty, and should stay so.
var longFiles = []string{}

var bannedNames = []string{
	"util", "utils", "common", "types", "interfaces", "mock", "mocks", "manager", "helper", "helpers", "misc",
}

// source is one file of the repository.
type source struct {
	path string // from the root of the repository, with slashes
	text string
	fset *token.FileSet // nil if it is not Go, and so are the fields below
	file *ast.File
	info *types.Info // of the root package only
}

func (s *source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }
func (s *source) isPure() bool { return slices.Contains(pureFiles, s.path) }
func (s *source) dir() string  { return path.Dir(s.path) }

// isTestCode reports whether s is part of a test: a test file, or the suite for engines, which
// is a package only because several engines run it.
func (s *source) isTestCode() bool { return s.isTest() || s.under("internal/enginetest") }

// under reports whether s lies in or below one of the folders.
func (s *source) under(folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(s.path, f+"/") })
}

// at makes a finding of a place in s.
func (s *source) at(pos token.Pos, format string, args ...any) string {
	return s.line(s.fset.Position(pos).Line, format, args...)
}

func (s *source) line(n int, format string, args ...any) string {
	return fmt.Sprintf("%s:%d: %s", s.path, n, fmt.Sprintf(format, args...))
}

// selectors calls f for each use of an imported package, such as time.Now.
func (s *source) selectors(f func(pkg, name string, pos token.Pos)) {
	names := map[string]string{}
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] != "" {
				f(names[x.Name], sel.Sel.Name, sel.Pos())
			}
		}
		return true
	})
}

// rule finds what breaks it in a set of files.
type rule struct {
	name  string
	check func(files []*source) []string
}

var rules = []rule{
	{"imports", eachGo(checkImports)},
	{"pure files", eachGo(checkPure)},
	{"map order", eachGo(checkMapOrder)},
	{"clock", eachGo(checkClock)},
	{"file calls", eachGo(checkFileCalls)},
	{"randomness", eachGo(checkRandomness)},
	{"no sleep in tests", eachGo(checkTestSleep)},
	{"file length", each(checkFileLength)},
	{"line length", each(checkLineLength)},
	{"package comment", checkPackageComment},
	{"doc comments", eachGo(checkDocComments)},
	{"left-over markers", eachGo(checkMarkers)},
	{"machine paths", each(checkMachinePaths)},
	{"package names", eachGo(checkPackageNames)},
	{"go.mod", each(checkGoMod)},
}

func each(check func(*source) []string) func([]*source) []string {
	return func(files []*source) (found []string) {
		for _, s := range files {
			found = append(found, check(s)...)
		}
		return found
	}
}

func eachGo(check func(*source) []string) func([]*source) []string {
	return each(func(s *source) []string {
		if s.file == nil {
			return nil
		}
		return check(s)
	})
}

func TestTidy(t *testing.T) {
	files := readSources(t)
	typeCheckPure(t, files)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, finding := range r.check(files) {
				t.Error(finding)
			}
		})
	}
	t.Run("linked modules", func(t *testing.T) {
		for _, m := range linkedBy(t, ".") {
			if !slices.Contains(linkedModules, m) {
				t.Errorf("a program with a broker links module %s", m)
			}
		}
	})
}

// readSources returns the text of the repository, and the syntax of its Go files.
func readSources(t *testing.T) []*source {
	t.Helper()
	var files []*source
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		p = filepath.ToSlash(p)
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && p != ".ci" && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case !d.Type().IsRegular() || !isText(p):
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		s, err := newSource(p, string(text))
		files, seen[p] = append(files, s), true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !seen["go.mod"] || !seen["declare.go"] {
		t.Fatal("go.mod or declare.go is not here: the test does not see the repository")
	}
	return files
}

func isText(p string) bool {
	switch path.Ext(p) {
	case ".go", ".mod", ".md", ".sh", ".yml":
		return true
	}
	return p == "Makefile" || p == ".ci/run"
}

func newSource(p, text string) (*source, error) {
	s := &source{path: p, text: text}
	if path.Ext(p) != ".go" {
		return s, nil
	}
	var err error
	s.fset = token.NewFileSet()
	s.file, err = parser.ParseFile(s.fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
	return s, err
}

// listed is what the go command says about one package.
type listed struct {
	ImportPath, Export string
	GoFiles            []string
	Module             *struct{ Path string }
}

func goList(t *testing.T, args ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Export,GoFiles,Module"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := dec.Decode(&l); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
}

// linkedBy returns the other modules that a package links.
func linkedBy(t *testing.T, pkg string) []string {
	t.Helper()
	var modules []string
	for _, l := range goList(t, "-deps", pkg) {
		if l.Module != nil && l.Module.Path != modulePath && !slices.Contains(modules, l.Module.Path) {
			modules = append(modules, l.Module.Path)
		}
	}
	return modules
}

// exportData returns a lookup of what packages export, and the Go files of the last of them.
// It comes from the build cache, where the build of this test has put most of it.
func exportData(t *testing.T, packages ...string) (lookup importer.Lookup, files []string) {
	t.Helper()
	exports := map[string]string{}
	for _, l := range goList(t, append([]string{"-export", "-deps"}, packages...)...) {
		exports[l.ImportPath], files = l.Export, l.GoFiles // dependencies come first
	}
	return func(p string) (io.ReadCloser, error) { return os.Open(exports[p]) }, files
}

// typeCheckPure gives types to the root package's files.
func typeCheckPure(t *testing.T, files []*source) {
	t.Helper()
	lookup, names := exportData(t, ".")
	var pkg []*source
	for _, s := range files {
		if slices.Contains(names, s.path) {
			pkg = append(pkg, s)
		}
	}
	if err := typeCheck(pkg, lookup); err != nil {
		t.Fatal(err)
	}
}

// typeCheck gives types to the files of one package.
func typeCheck(pkg []*source, lookup importer.Lookup) error {
	fset := token.NewFileSet() // one for all of them, as go/types asks
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	var parsed []*ast.File
	for _, s := range pkg {
		var err error
		s.fset, s.info = fset, info
		s.file, err = parser.ParseFile(fset, s.path, s.text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		parsed = append(parsed, s.file)
	}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	_, err := conf.Check(modulePath, fset, parsed, info)
	return err
}
