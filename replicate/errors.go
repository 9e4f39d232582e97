package replicate

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/lni/dragonboat/v4"

	"github.com/boursemq/bourse"
)

// started puts an error, or a panic, of starting a NodeHost into our words. The library's
// errors for its directory are internal to it, so they are told apart by their text.
func started(err error) error {
	text := err.Error()
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	var port *net.OpError
	switch {
	case errors.As(err, &port):
		return err
	case has("lock directory", "LOCK", "resource temporarily unavailable"):
		return fmt.Errorf("%w: %w", bourse.ErrDirInUse, err)
	case has("hostname changed", "not the owner", "deployment ID", "incompatible", "logdb type", "hard settings"):
		return fmt.Errorf("%w: %w", bourse.ErrForeignDir, err)
	}
	return fmt.Errorf("%w: %w", bourse.ErrStorage, err)
}

// opened puts an error of starting a replica into our words.
func opened(err error) error {
	switch {
	case errors.Is(err, dragonboat.ErrClosed):
		return bourse.ErrClosed
	case errors.Is(err, dragonboat.ErrInvalidShardSettings):
		return fmt.Errorf("%w: the shard was started with other members", bourse.ErrForeignDir)
	case errors.Is(err, dragonboat.ErrReplicaRemoved):
		return fmt.Errorf("%w: this node was removed from the shard", bourse.ErrForeignDir)
	}
	return fmt.Errorf("%w: %w", bourse.ErrStorage, err)
}

// checkHost refuses a directory that another host has written. The library keeps its data
// in a folder named after the host, so under a new name a node would start empty: it would
// have forgotten what it acknowledged and whom it voted for.
func checkHost(dir string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && !strings.EqualFold(e.Name(), host) {
			return fmt.Errorf("%w: %s belongs to host %q, this is %q", bourse.ErrForeignDir, dir, e.Name(), host)
		}
	}
	return nil
}
