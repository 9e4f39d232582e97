// Package invariant holds the assertions of the project. A broken one is a bug,
// never bad input or a fault of the disk, so it panics: a queue that no longer
// adds up must stop before it loses or doubles a message.
//
// [Check] is cheap and always on. Costly checks, those that walk a whole
// structure, run only where [Costly] is true: in builds with the tag invariants,
// and in tests that call them.
package invariant

import "fmt"

// Check panics with the formatted text if ok is false. The arguments are
// evaluated in any case, so a call on a hot path passes only what it has at hand.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("bourse: invariant broken: " + fmt.Sprintf(format, args...))
	}
}
