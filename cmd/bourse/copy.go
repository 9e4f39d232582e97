package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/boursemq/bourse"
)

// copies are the commands that write: a backup, or a directory from one.
var copies = map[string]func(args []string, errs io.Writer) int{"backup": backup, "restore": restore}

func twoNames(command string, args []string, errs io.Writer) bool {
	if len(args) != 2 {
		_, _ = fmt.Fprintf(errs, "bourse: %s: want two names, got %d\n%s", command, len(args), usage)
		return false
	}
	return true
}

// backup writes the backup of a directory, under its name only when it is whole and durable. A file that is there stays.
func backup(args []string, errs io.Writer) int {
	if !twoNames("backup", args, errs) {
		return unknown
	}
	to := args[1]
	if s, err := os.Stat(to); err == nil && s.IsDir() {
		to = filepath.Join(to, "bourse-backup.tar")
	}
	status, err := look(context.Background(), args[0], func(ctx context.Context, b *bourse.Broker) (int, error) {
		if _, err := os.Lstat(to); err == nil {
			return unknown, fmt.Errorf("%s is there already", to)
		}
		temp := to + ".tmp"
		f, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return unknown, err
		}
		err = b.Backup(ctx, f)
		if err == nil {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close())
		if err == nil {
			err = os.Rename(temp, to)
		}
		if err == nil {
			err = syncDir(filepath.Dir(to))
		}
		if err == nil {
			return well, nil
		}
		_ = os.Remove(temp) // it is not there, or of no use
		if errors.Is(err, bourse.ErrStorage) {
			return damaged, err
		}
		return unknown, err
	})
	if err != nil {
		_, _ = fmt.Fprintf(errs, "bourse: backup: %v\n", err)
	}
	return status
}

// restore makes a directory from a backup.
func restore(args []string, errs io.Writer) int {
	if !twoNames("restore", args, errs) {
		return unknown
	}
	f, err := os.Open(args[0])
	if err == nil {
		err = bourse.Restore(args[1], f)
		_ = f.Close() // it was only read
	}
	if err == nil {
		return well
	}
	_, _ = fmt.Fprintf(errs, "bourse: restore: %v\n", err)
	if errors.Is(err, bourse.ErrStorage) && !errors.Is(err, fs.ErrExist) {
		return damaged
	}
	return unknown
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // there it cannot be asked for
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
