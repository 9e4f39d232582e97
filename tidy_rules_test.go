package bourse_test

// The rules of tidy_test.go: each function returns what in a file breaks its rule.

import (
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// checkImports holds the import directions.
func checkImports(s *source) (found []string) {
	folder, ok := s.dir(), false
	for f := folder; ; f = path.Dir(f) {
		if entry, here := layout[f]; here && (f == folder || entry.below) {
			folder, ok = f, true
			break
		}
		if f == "." {
			break
		}
	}
	if !ok {
		return []string{s.line(1, "folder %s is not in the layout", folder)}
	}
	entry := layout[folder]
	for _, spec := range s.file.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		local := p
		if p == modulePath {
			local = "."
		} else if rest, ok := strings.CutPrefix(p, modulePath+"/"); ok {
			local = rest
		}
		foreign := local == p
		allowed := func(list []string) bool {
			return slices.ContainsFunc(list, func(a string) bool {
				return local == a || strings.HasPrefix(local, a+"/") && a != "." || a == "*" && foreign
			})
		}
		switch {
		case spec.Name != nil && spec.Name.Name == ".":
			found = append(found, s.at(spec.Pos(), "dot import of %s hides where names come from", p))
		case p == "C":
			found = append(found, s.at(spec.Pos(), "cgo: the library must build without a C compiler"))
		case slices.Contains(testOnly, local):
			if !s.isTest() && s.dir() != local {
				found = append(found, s.at(spec.Pos(), "%s is for tests only", local))
			}
		case foreign && !strings.Contains(strings.Split(p, "/")[0], "."): // the standard library
		case allowed(entry.imports), s.isTest() && (allowed(entry.tests) || local == s.dir()):
		default:
			found = append(found, s.at(spec.Pos(), "%s may not import %s", folder, p))
		}
	}
	return found
}

// checkPure keeps pure files from everything that could differ between two replicas, except
// the order of maps, which takes types to find: see checkMapOrder.
func checkPure(s *source) (found []string) {
	if !s.isPure() {
		return nil
	}
	for _, spec := range s.file.Imports {
		if p, _ := strconv.Unquote(spec.Path.Value); !slices.Contains(pureImports, p) {
			found = append(found, s.at(spec.Pos(), "pure file imports %s", p))
		}
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		what := ""
		switch n := n.(type) {
		case *ast.GoStmt:
			what = "a go statement"
		case *ast.ChanType:
			what = "a channel"
		case *ast.SendStmt:
			what = "a send"
		case *ast.SelectStmt:
			what = "a select"
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				what = "a receive"
			}
		}
		if what != "" {
			found = append(found, s.at(n.Pos(), "pure file has %s", what))
		}
		return true
	})
	s.selectors(func(pkg, name string, pos token.Pos) {
		if pkg != "time" || slices.Contains(pureTime, name) {
			return
		}
		if (name == "Time" || name == "Unix") && slices.Contains(calendarFiles, s.path) {
			return
		}
		found = append(found, s.at(pos, "pure file uses time.%s", name))
	})
	return found
}

// checkMapOrder keeps the order of a map, which is random, out of pure files. A map is gone
// through by slices.Sorted(maps.Keys(m)), or by a slice that is sorted in the next statement.
func checkMapOrder(s *source) (found []string) {
	if !s.isPure() {
		return nil
	}
	if s.info == nil {
		return []string{s.line(1, "pure file is not part of the build, so it has no types")}
	}
	sorted := map[token.Pos]bool{} // arguments of a sort
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && isName(f.X, "slices") && strings.HasPrefix(f.Sel.Name, "Sorted") {
				sorted[n.Args[0].Pos()] = true
			}
		case *ast.BlockStmt:
			for i := 1; i < len(n.List); i++ {
				if keys := collected(n.List[i-1], n.List[i]); keys != nil {
					sorted[keys.Pos()] = true
				}
			}
		case *ast.RangeStmt:
			if hasMap(s.info.TypeOf(n.X)) {
				found = append(found, s.at(n.Pos(), "range over a map in a pure file: its order is random"))
			}
		}
		return true
	})
	s.selectors(func(pkg, name string, pos token.Pos) {
		switch name {
		case "Clone", "Copy", "Equal":
			return
		}
		if pkg == "maps" && !sorted[pos] {
			found = append(found, s.at(pos, "maps.%s in a pure file, and not the argument of slices.Sorted: its order is random", name))
		}
	})
	return found
}

// collected returns seq if the two statements are, up to the names of the functions,
// s = slices.Collect(seq) or s = slices.AppendSeq(s, seq), and slices.Sort(s).
func collected(collect, sort ast.Stmt) ast.Expr {
	assign, ok := collect.(*ast.AssignStmt)
	if !ok || len(assign.Lhs) != 1 || len(assign.Rhs) != 1 {
		return nil
	}
	from := slicesCall(assign.Rhs[0], "Collect", "AppendSeq")
	expr, ok := sort.(*ast.ExprStmt)
	if !ok || from == nil {
		return nil
	}
	to := slicesCall(expr.X, "Sort", "SortFunc")
	if s, ok := assign.Lhs[0].(*ast.Ident); ok && to != nil && isName(to.Args[0], s.Name) {
		return from.Args[len(from.Args)-1]
	}
	return nil
}

// slicesCall returns e if it is a call of one of the functions of package slices.
func slicesCall(e ast.Expr, functions ...string) *ast.CallExpr {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return nil
	}
	if f, ok := call.Fun.(*ast.SelectorExpr); ok && isName(f.X, "slices") && slices.Contains(functions, f.Sel.Name) {
		return call
	}
	return nil
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// hasMap reports whether t is a map, or a type parameter that may be one.
func hasMap(t types.Type) bool {
	switch t := t.(type) {
	case nil:
		return false
	case *types.TypeParam:
		for e := range t.Constraint().Underlying().(*types.Interface).EmbeddedTypes() {
			if hasMap(e) {
				return true
			}
		}
		return false
	case *types.Union:
		for term := range t.Terms() {
			if hasMap(term.Type()) {
				return true
			}
		}
		return false
	}
	_, ok := t.Underlying().(*types.Map)
	return ok
}

// checkClock keeps the system clock behind the Clock interface. The programs that are not
// the library are free, and so is replicate: its Raft library reads the clock anyway.
func checkClock(s *source) (found []string) {
	if s.isTestCode() || s.path == "clock.go" || s.under("bench", "examples", "cmd", "replicate") {
		return nil
	}
	s.selectors(func(pkg, name string, pos token.Pos) {
		if pkg == "time" && slices.Contains(clockCalls, name) {
			found = append(found, s.at(pos, "time.%s outside clock.go", name))
		}
	})
	return found
}

var errno = regexp.MustCompile(`^E[A-Z0-9]+$|^Errno$`)

// checkFileCalls keeps the file system behind storage.FS. Package replicate looks at the folder and the certificates
// that its Raft library opens by itself.
func checkFileCalls(s *source) (found []string) {
	home := s.dir() == "storage" && strings.HasPrefix(path.Base(s.path), "fs")
	if home || s.isTestCode() || s.under("cmd", "examples", "bench", "replicate") {
		return nil
	}
	for _, spec := range s.file.Imports {
		switch p, _ := strconv.Unquote(spec.Path.Value); p {
		case "io/ioutil", "golang.org/x/sys/unix", "os/exec":
			found = append(found, s.at(spec.Pos(), "import of %s outside storage/fs*.go", p))
		}
	}
	s.selectors(func(pkg, name string, pos token.Pos) {
		calls := pkg == "os" && slices.Contains(fileCalls, name) || pkg == "syscall" && !errno.MatchString(name)
		walks := pkg == "path/filepath" && slices.Contains([]string{"EvalSymlinks", "Glob", "Walk", "WalkDir"}, name)
		if calls || walks {
			found = append(found, s.at(pos, "%s.%s outside storage/fs*.go", path.Base(pkg), name))
		}
	})
	return found
}

// checkRandomness keeps math/rand to code that prints its seed.
func checkRandomness(s *source) (found []string) {
	if s.isTestCode() || s.under("bench", "internal/sim") {
		return nil
	}
	for _, spec := range s.file.Imports {
		if p, _ := strconv.Unquote(spec.Path.Value); p == "math/rand" || p == "math/rand/v2" {
			found = append(found, s.at(spec.Pos(), "import of %s outside tests, bench and internal/sim", p))
		}
	}
	return found
}

// checkTestSleep keeps sleeps out of tests: they wait for a condition, or move a clock.
func checkTestSleep(s *source) (found []string) {
	if !s.isTestCode() {
		return nil
	}
	s.selectors(func(pkg, name string, pos token.Pos) {
		if pkg == "time" && name == "Sleep" {
			found = append(found, s.at(pos, "time.Sleep in a test"))
		}
	})
	return found
}

func checkFileLength(s *source) []string {
	n := strings.Count(s.text, "\n")
	if s.file == nil || n <= maxFileLines || slices.Contains(longFiles, s.path) {
		return nil
	}
	return []string{s.line(n, "%d lines, at most %d: split it along an idea", n, maxFileLines)}
}

// checkLineLength lets the rows of tables be long: of Markdown, and of tests.
func checkLineLength(s *source) (found []string) {
	n := 0
	for l := range strings.Lines(s.text) {
		n++
		l = strings.TrimRight(l, "\n")
		columns := utf8.RuneCountInString(l) + 3*strings.Count(l, "\t")
		row := path.Ext(s.path) == ".md" && strings.HasPrefix(l, "|") || s.isTest() && strings.HasPrefix(strings.TrimSpace(l), "{")
		if columns > maxLineColumns && !row {
			found = append(found, s.line(n, "%d columns, at most %d", columns, maxLineColumns))
		}
	}
	return found
}

// checkPackageComment asks that a file of each package says what the package is.
func checkPackageComment(files []*source) (found []string) {
	first := map[string]*source{}
	said := map[string]bool{}
	var dirs []string
	for _, s := range files {
		if s.file == nil || s.isTest() {
			continue
		}
		if first[s.dir()] == nil {
			first[s.dir()] = s
			dirs = append(dirs, s.dir())
		}
		said[s.dir()] = said[s.dir()] || s.file.Doc != nil
	}
	for _, dir := range dirs {
		if !said[dir] {
			found = append(found, first[dir].line(1, "no file of package %s has a package comment", first[dir].file.Name.Name))
		}
	}
	return found
}

// checkDocComments asks for the contract of everything a user can name.
func checkDocComments(s *source) (found []string) {
	if s.isTest() || s.dir() != "." && s.dir() != "storage" && s.dir() != "replicate" {
		return nil
	}
	need := func(name *ast.Ident, doc *ast.CommentGroup, kind string) {
		if problem := docProblem(name.Name, doc); name.IsExported() && problem != "" {
			found = append(found, s.at(name.Pos(), "%s %s: doc comment %s", kind, name.Name, problem))
		}
	}
	for _, decl := range s.file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				need(decl.Name, decl.Doc, "func")
				continue
			}
			// The fmt methods say the same thing everywhere, and methods of unexported types
			// are there for an interface, which has the contract.
			if n := decl.Name.Name; ast.IsExported(receiver(decl.Recv.List[0].Type)) && n != "Error" && n != "String" {
				need(decl.Name, decl.Doc, "method")
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					doc := spec.Doc
					if doc == nil {
						doc = decl.Doc
					}
					need(spec.Name, doc, "type")
					if it, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() {
						for _, m := range it.Methods.List {
							for _, name := range m.Names {
								need(name, m.Doc, "method")
							}
						}
					}
				case *ast.ValueSpec:
					// In a group, the comment above the group or behind the line is enough.
					if decl.Lparen.IsValid() && spec.Doc == nil && (decl.Doc != nil || spec.Comment != nil) {
						continue
					}
					doc := spec.Doc
					if doc == nil {
						doc = decl.Doc
					}
					need(spec.Names[0], doc, "value")
				}
			}
		}
	}
	return found
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// docProblem says what is wrong with the doc comment of name: it is a whole sentence that
// starts with the name, after an article if it reads better.
func docProblem(name string, doc *ast.CommentGroup) string {
	text := strings.TrimSpace(doc.Text())
	if text == "" {
		return "is missing"
	}
	start := text
	for _, article := range []string{"A ", "An ", "The "} {
		start = strings.TrimPrefix(start, article)
	}
	if rest, ok := strings.CutPrefix(start, name); !ok || rest != "" && !strings.ContainsAny(rest[:1], " ,:\n'(") {
		return "does not start with the name"
	}
	if !regexp.MustCompile(`[.:?!)](\s|$)`).MatchString(text) {
		return "is not a sentence"
	}
	return ""
}

var (
	marker = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)
	issue  = regexp.MustCompile(`(#|issues/)[0-9]+`)
)

// checkMarkers asks for an issue with every note that something is left to do.
func checkMarkers(s *source) (found []string) {
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			if m := marker.FindString(c.Text); m != "" && !issue.MatchString(c.Text) {
				found = append(found, s.at(c.Pos(), "%s without the number of an issue", m))
			}
		}
	}
	return found
}

var machinePath = regexp.MustCompile(`(^|[^\w.-])/(work|root|home|tmp)/`)

// checkMachinePaths finds paths that exist on the machine of one author only. Tests may name
// such paths, since what they name there is made up.
func checkMachinePaths(s *source) (found []string) {
	if s.isTest() {
		return nil
	}
	n := 0
	for l := range strings.Lines(s.text) {
		n++
		if p := machinePath.FindString(l); p != "" {
			found = append(found, s.line(n, "path of one machine: %s", strings.TrimSpace(l)))
		}
	}
	return found
}

// checkPackageNames wants names that say what a package is about.
func checkPackageNames(s *source) (found []string) {
	if slices.Contains(bannedNames, strings.TrimSuffix(s.file.Name.Name, "_test")) {
		found = append(found, s.at(s.file.Name.Pos(), "package name %s says nothing", s.file.Name.Name))
	}
	for _, dir := range strings.Split(s.dir(), "/") {
		if slices.Contains(bannedNames, dir) {
			found = append(found, s.line(1, "folder name %s says nothing", dir))
		}
	}
	return found
}

var requirement = regexp.MustCompile(`^\s*(?:require\s+)?([\w.-]+\.[\w.-]+/\S+)\s+v\S+(\s*// indirect)?`)

// checkGoMod keeps the Raft library in the module of its own, and the direct requirements of
// the root module to those that layout knows.
func checkGoMod(s *source) (found []string) {
	if path.Base(s.path) != "go.mod" {
		return nil
	}
	if want := path.Join(modulePath, s.dir()); !regexp.MustCompile(`(?m)^module ` + want + `$`).MatchString(s.text) {
		found = append(found, s.line(1, "the module is not named %s", want))
	}
	n := 0
	for l := range strings.Lines(s.text) {
		n++
		if strings.Contains(l, "dragonboat") && s.dir() != "replicate" {
			found = append(found, s.line(n, "dragonboat outside replicate/go.mod"))
		}
		m := requirement.FindStringSubmatch(l)
		if s.dir() == "." && m != nil && m[2] == "" && !slices.Contains(linkedModules, m[1]) && !slices.Contains(testModules, m[1]) {
			found = append(found, s.line(n, "the root module requires %s", m[1]))
		}
	}
	return found
}
