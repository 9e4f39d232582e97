package replicate

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/lni/dragonboat/v4/logger"
)

// The Raft library logs through one factory per process, which can be set once. bridge
// sets it, unless the application has, and points it at l.
var (
	bridgeOnce sync.Once
	bridgeTo   atomic.Pointer[slog.Logger]
)

func bridge(l *slog.Logger) {
	bridgeTo.Store(l)
	bridgeOnce.Do(func() {
		defer func() { _ = recover() }() // the application has set a factory: leave it
		logger.SetLoggerFactory(func(pkg string) logger.ILogger { return bridged(pkg) })
	})
}

// bridged is the logger of one package of the library. Elections and the like, which the
// library reports as information and warnings, are Debug to us.
type bridged string

func (b bridged) log(level slog.Level, format string, args []any) {
	l := bridgeTo.Load()
	if !l.Enabled(context.Background(), level) {
		return
	}
	l.Log(context.Background(), level, "raft library", "package", string(b), "text", fmt.Sprintf(format, args...))
}

func (b bridged) SetLevel(logger.LogLevel)            {}
func (b bridged) Debugf(format string, args ...any)   {}
func (b bridged) Infof(format string, args ...any)    { b.log(slog.LevelDebug, format, args) }
func (b bridged) Warningf(format string, args ...any) { b.log(slog.LevelDebug, format, args) }
func (b bridged) Errorf(format string, args ...any)   { b.log(slog.LevelWarn, format, args) }

func (b bridged) Panicf(format string, args ...any) {
	b.log(slog.LevelError, format, args)
	panic(fmt.Sprintf(format, args...)) // its callers rely on it
}
