package bourse_test

// Goal: no part of the public API escapes TestModelAPI unnoticed. Method: each exported method of Broker, Delivery and Subscription is
// called in a file of the model, and each exported field of what is declared or published is set in one, or it is on the list below
// with its reason. A field or a method that is new fails here until the model draws it.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/boursemq/bourse"
)

// undrawn is what the model does not draw, and why.
var undrawn = map[string]string{
	"Backoff.Jitter":          "the pause is a hash that the reference would have to share: retry_test.go",
	"Broker.EncodedTopology":  "export_test.go",
	"Broker.Annexes":          "export_test.go",
	"Broker.Pullers":          "export_test.go",
	"Broker.Resting":          "export_test.go",
	"Broker.Routes":           "export_test.go",
	"Broker.Served":           "export_test.go",
	"Broker.Weighed":          "export_test.go",
	"Subscription.Pause":      "export_test.go",
	"Message.Transient":       "a queue with an annex is two: semantics_transient_test.go has a model of the two as one",
	"Broker.Backup":           "backup_test.go compares whole states",
	"Broker.Compact":          "compact_test.go has it beside publishers, and each call under it failing",
	"Broker.Browse":           "browsed calls it",
	"Broker.QueueStats":       "Stats is compared, and has the same source",
	"Broker.Shutdown":         "it is about handlers: life_test.go",
	"Broker.Work":             "handlers run beside the model: work_test.go",
	"Delivery.Redelivered":    "it is Deliveries, which is compared",
	"Subscription.All":        "it calls Next: read_test.go",
	"Subscription.ID":         "a name without meaning",
	"BrowseOptions.After":     "semantics_browse_test.go",
	"BrowseOptions.Limit":     "semantics_browse_test.go",
	"BrowseOptions.States":    "semantics_browse_test.go",
	"ReplayOptions.Filter":    "a function: semantics_replay_test.go",
	"ReplayOptions.Rate":      "it waits for a clock that nobody moves: semantics_replay_test.go",
	"Queue.Expires":           "a lease has edges that the calls of the model would blur: lease_test.go, semantics_lifetime_test.go",
	"Queue.AutoDelete":        "semantics_lifetime_test.go",
	"Queue.Exclusive":         "the model has one broker: exclusive_test.go",
	"Options.Dir":             "the model has an engine in memory",
	"Options.Preallocate":     "without effect with an engine",
	"Options.MinFreeDisk":     "without effect with an engine: watermark_test.go",
	"Options.MemoryLimit":     "memory_limit_test.go",
	"Options.Logger":          "nothing to compare",
	"Options.MaxPending":      "block_test.go",
	"Options.MaxPendingBytes": "block_test.go",
	"Options.MaxBodyBytes":    "refusal_test.go",
	"Options.MaxQueues":       "refusal_test.go",
	"Options.MaxBindings":     "refusal_test.go",
	"Options.MaxSchedules":    "refusal_test.go",
}

func TestModelDrawsAll(t *testing.T) {
	used := modelNames(t)
	known := map[string]bool{}
	check := func(name, member string) {
		known[name] = true
		if _, listed := undrawn[name]; !used[member] && !listed {
			t.Errorf("%s is not drawn by the model: draw it in TestModelAPI, or put it on the list with the reason", name)
		}
	}
	for _, v := range []any{&bourse.Broker{}, &bourse.Delivery{}, &bourse.Subscription{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumMethod() {
			check(typ.Elem().Name()+"."+typ.Method(i).Name, "."+typ.Method(i).Name)
		}
	}
	for _, v := range []any{
		bourse.Queue{}, bourse.Fairness{}, bourse.Backoff{}, bourse.DeadLetter{}, bourse.Dedup{}, bourse.InboxMemory{}, bourse.Message{},
		bourse.Exchange{}, bourse.Binding{}, bourse.Schedule{}, bourse.SubscribeOptions{}, bourse.DeleteOnly{}, bourse.ReplayOptions{},
		bourse.BrowseOptions{}, bourse.Options{},
	} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			if f := typ.Field(i); f.IsExported() {
				check(typ.Name()+"."+f.Name, typ.Name()+"."+f.Name)
			}
		}
	}
	for name := range undrawn {
		require.True(t, known[name], "%s is on the list, and does not exist", name)
	}
}

// drawnAs are the model's names for what it draws.
var drawnAs = map[string]string{"q": "Queue", "m": "Message", "d": "Binding", "x": "Schedule"}

// set notes the fields that a literal sets. Of a literal in one of a list or a map, the type is that of its elements.
func set(used map[string]bool, n *ast.CompositeLit, of string) {
	elements := ""
	switch typ := n.Type.(type) {
	case *ast.SelectorExpr:
		of = typ.Sel.Name
	case *ast.ArrayType:
		if e, ok := typ.Elt.(*ast.SelectorExpr); ok {
			elements = e.Sel.Name
		}
	}
	for _, e := range n.Elts {
		switch e := e.(type) {
		case *ast.KeyValueExpr:
			if key, ok := e.Key.(*ast.Ident); ok {
				used[of+"."+key.Name] = true
			}
		case *ast.CompositeLit:
			if e.Type == nil {
				set(used, e, elements)
			}
		}
	}
}

// modelNames is what the files of the model name: a method as .Name, and a field as Type.Name where it is set, in a literal or by an
// assignment.
func modelNames(t *testing.T) map[string]bool {
	files, err := filepath.Glob("model_*_test.go")
	require.NoError(t, err)
	used := map[string]bool{}
	for _, name := range append(files, "model_test.go") {
		if name == "model_drawn_test.go" {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				used["."+n.Sel.Name] = true
			case *ast.CompositeLit:
				set(used, n, "")
			case *ast.AssignStmt:
				for _, to := range n.Lhs {
					s, ok := to.(*ast.SelectorExpr)
					if !ok {
						continue
					}
					switch of := s.X.(type) {
					case *ast.Ident:
						used[drawnAs[of.Name]+"."+s.Sel.Name] = true
					case *ast.SelectorExpr:
						used[of.Sel.Name+"."+s.Sel.Name] = true
					}
				}
			}
			return true
		})
	}
	return used
}
