package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/boursemq/bourse"
)

// compact makes the directory small, and prints what it took before and takes now.
func compact(ctx context.Context, dir string, _ options, out io.Writer) (int, error) {
	before, err := sizeOf(dir)
	if err != nil {
		return unknown, err
	}
	status, err := open(ctx, dir, bourse.LocalOptions{}, func(ctx context.Context, b *bourse.Broker) (int, error) {
		err := b.Compact(ctx)
		switch {
		case err == nil:
			return well, nil
		case errors.Is(err, bourse.ErrStorage):
			return damaged, err // what could be copied was
		}
		return unknown, err
	})
	if err != nil {
		return status, err
	}
	after, err := sizeOf(dir)
	if err == nil {
		_, err = fmt.Fprintf(out, "%d bytes on disk before, %d now\n", before, after)
	}
	if err != nil {
		return unknown, err
	}
	return well, nil
}

// sizeOf is the length of all files in dir.
func sizeOf(dir string) (sum int64, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return 0, err
		}
		sum += info.Size()
	}
	return sum, nil
}
