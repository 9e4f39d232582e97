//go:build invariants

package invariant

// Costly reports whether the costly checks run. Build with -tags invariants to
// turn them on.
const Costly = true
