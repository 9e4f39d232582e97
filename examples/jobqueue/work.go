package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"

	"github.com/boursemq/bourse"
)

// result is the body of a message in the queue results.
type result struct {
	Path      string `json:"path"`
	Functions int    `json:"functions"` // methods included
	Lines     int    `json:"lines"`
	Sum       string `json:"sha256"`
}

// parseFile is the worker. It acks a job, by returning nil, only when the result is durable. In between it can
// be killed: then the job comes again, and so does its result, which the collector recognises by its path.
func parseFile(b *bourse.Broker, root *os.Root) bourse.Handler {
	return bourse.Handle(bourse.JSON[job](), func(ctx context.Context, j job, d *bourse.Delivery) error {
		source, err := root.ReadFile(j.Path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), j.Path, source, parser.SkipObjectResolution)
		if err != nil {
			return err // tried again, and dead after Queue.MaxRetries
		}
		sum := sha256.Sum256(source)
		r := result{Path: j.Path, Lines: bytes.Count(source, []byte("\n")), Sum: hex.EncodeToString(sum[:])}
		for _, decl := range file.Decls {
			if _, ok := decl.(*ast.FuncDecl); ok {
				r.Functions++
			}
		}
		body, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return b.Publish(ctx, bourse.Message{RoutingKey: "results", ID: d.ID, Body: body})
	})
}
