package storage

import (
	"encoding/binary"
	"math/bits"
	"sync"
)

// Reading ahead: records that are read in the order in which they lie in a segment, as when a deep queue is drained, come from
// memory into which many of them were read at once.
//
// A run is a piece of one segment in memory. A read that no run has goes to the file alone, as if there were no runs, until three
// before it have come close behind each other: then a run is read from its place on. Whoever comes close behind the end of a
// run has the next one read into its place.
//
// A run says nothing about what is in the file now, and need not. Who may read a record holds it, so its segment is there;
// numbers of segments are not used twice, and a record is written once. What was read before the record was written, or while a file
// was given another number, is not whole by its checksum, which is verified when a record is served; then the file is asked.
// Runs of a segment that was freed are found by nobody, since Read finds no such segment, and go when they have been idle.
const (
	runLeast   = 8 << 10   // bytes of a run
	runMost    = 256 << 10 // likewise; a power of two times runLeast
	runUsual   = 64 << 10  // the first of several, if those before were used
	runGap     = 16 << 10  // bytes between two records that are close
	runRecord  = 32 << 10  // a record of more is read alone: there is nothing to gain
	runMisses  = 4         // reads of the file, close behind each other, the last of which reads a run
	runLimit   = 64        // runs
	runIdle    = 4096      // reads after which a run that was not used may go
	trailLimit = 64        // places of reads that are remembered
)

const defaultAheadBytes = 4 << 20

// runs are those of a log.
//
// Invariants:
//  1. bytes is the memory of all, and at most budget.
//  2. A run that is pinned or being loaded is changed by who loads it only.
//  3. What was read is in memory: from, to and window are within it.
type runs struct {
	budget int // fixed after Open; 0: there are none

	mu     sync.Mutex // guards below; a leaf, not held while anything is read
	all    [runLimit]run
	n      int // of all, how many there are
	trails [trailLimit]Position
	misses [trailLimit]uint8 // of each trail, how many reads have come close behind each other
	next   int               // of trails, the one to be forgotten next
	turn   uint64            // counts reads
	bytes  int
	usual  int   // of the first of several runs; less while they go unused
	hits   int64 // reads that were served
	loads  int64 // runs that were read
	loaded int64 // bytes that were
}

// run mirrors the records from from to to, which are in one segment; nothing, if they are equal.
type run struct {
	from, to Position
	loading  bool
	pins     int    // that are being served
	mem      []byte // of which mem[:to-from] was read; a power of two
	window   int    // of it that is read, likewise
	served   int    // records
	used     uint64 // turn of the last
}

// read appends the body of the record with that home which is at pos, in s, to dst, if it can come from a run, or if it is
// time to read one. After false dst is as it was.
func (rs *runs) read(s *segment, pos, home Position, size int, dst []byte) ([]byte, bool) {
	if rs.budget == 0 || size > runRecord {
		return dst, false
	}
	rs.mu.Lock()
	rs.turn++
	r, what := rs.find(pos)
	if what == runEnds || what == runNone {
		r = rs.toLoad(r, pos, size)
	}
	if r == nil || what == runBeside {
		rs.mu.Unlock()
		return dst, false
	}
	if what != runHas {
		rs.load(r, s, pos)
	}
	r.pins++
	r.used = rs.turn
	b := r.mem[pos-r.from : r.to-r.from]
	rs.mu.Unlock()
	record, bad := decodeRecord(b, s.number, pos.offset())
	body, ok := record.body(pos, home)
	if ok = ok && bad == ""; ok {
		dst = append(dst, body...)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.pins--
	if !ok {
		r.to = r.from // the file says what is wrong, if it is
		return dst, false
	}
	r.served++
	rs.hits++
	return dst, true
}

// load reads r, which toLoad has returned, from pos on. It lets go of mu meanwhile.
func (rs *runs) load(r *run, s *segment, pos Position) {
	mem := r.mem[:max(0, min(int64(r.window), s.size-int64(pos.offset())))]
	rs.mu.Unlock()
	n, _ := s.file.ReadAt(mem, int64(pos.offset())) // whoever asks the file then gets its error
	rs.mu.Lock()
	rs.loads++
	rs.loaded += int64(n)
	r.loading = false
	r.to = pos + Position(n)
}

// runIs is what a run is to a place.
type runIs int

const (
	runNone   runIs = iota
	runHas          // it has the whole record there
	runEnds         // it ends there, or not far before
	runBeside       // it begins behind it, or is being loaded, or the record is a large one: read it alone
)

// find returns the run for pos, and what it is to that.
func (rs *runs) find(pos Position) (best *run, what runIs) {
	for i := range rs.all[:rs.n] {
		r := &rs.all[i]
		if pos-r.from+runGap > r.to-r.from+2*runGap && !r.loading { // far from both ends
			continue
		}
		if is := r.is(pos); is == runHas {
			return r, is
		} else if is > what {
			best, what = r, is
		}
	}
	return best, what
}

func (r *run) is(pos Position) runIs {
	switch {
	case r.loading && pos+runGap >= r.from && pos <= r.from+Position(r.window)+runGap:
		return runBeside
	case r.loading || r.from == r.to || pos+runGap < r.from || pos > r.to+runGap:
		return runNone
	case pos < r.from:
		return runBeside
	case pos+recordBytes > r.to:
		return runEnds
	}
	length := binary.LittleEndian.Uint32(r.mem[pos-r.from+4:])
	switch {
	case length > runRecord:
		return runBeside
	case pos+Position(recordSize(int(length))) > r.to:
		return runEnds
	}
	return runHas
}

// toLoad returns a run that is to be read from pos on, with memory for it: r, if it ends there, or one for a trail that has become
// long enough. Nil: the read goes to the file alone.
func (rs *runs) toLoad(r *run, pos Position, size int) *run {
	switch {
	case r != nil && r.pins > 0:
		return nil
	case r != nil:
		if r.wasUsed() {
			r.window = min(2*r.window, runMost)
			rs.usual = min(2*rs.usual, runUsual)
		} else {
			r.window = max(r.window/2, runLeast)
		}
	case rs.follow(pos, pos+Position(recordSize(size))) < runMisses:
		return nil
	default:
		if r = rs.fresh(); r == nil {
			return nil
		}
		r.window = rs.usual
	}
	rs.fit(r)
	r.loading, r.served, r.used = true, 0, rs.turn
	r.from, r.to = pos, pos
	return r
}

// follow takes note of a read of the file, and returns how many of them have come close behind each other, not counting those that
// went a little back. It starts anew when a run is to be read.
func (rs *runs) follow(pos, end Position) uint8 {
	for i, trail := range rs.trails {
		if pos-trail+runGap > 2*runGap {
			continue
		}
		if pos < trail {
			return 0
		}
		rs.trails[i] = end
		rs.misses[i]++
		n := rs.misses[i]
		if n >= runMisses {
			rs.trails[i], rs.misses[i] = 0, 0
		}
		return n
	}
	rs.trails[rs.next], rs.misses[rs.next] = end, 1
	rs.next = (rs.next + 1) % trailLimit
	return 1
}

// wasUsed reports whether r was worth its reading: as much as where records are as far from each other as may be.
func (r *run) wasUsed() bool { return Position(r.served)*runGap >= r.to-r.from }

// share is how much memory each of the runs that are in use may have: a power of two, at least runLeast.
func (rs *runs) share() int {
	busy := 1
	for i := range rs.all[:rs.n] {
		if rs.turn-rs.all[i].used < runIdle {
			busy++
		}
	}
	return 1 << (bits.Len(uint(max(rs.budget/busy, runLeast))) - 1)
}

// fresh returns a run that nobody uses, or nil: one that was idle for long, if there is one. So however the log is read, runs of which
// nothing is used are read no oftener than runLimit times in runIdle reads.
func (rs *runs) fresh() *run {
	var idle *run
	for i := range rs.all[:rs.n] {
		r := &rs.all[i]
		if r.pins == 0 && !r.loading && rs.turn-r.used >= runIdle && (idle == nil || r.used < idle.used) {
			idle = r
		}
	}
	switch {
	case idle != nil:
		if !idle.wasUsed() {
			rs.usual = max(rs.usual/2, runLeast)
		}
	case rs.n < runLimit && rs.bytes+runLeast <= rs.budget:
		idle = &rs.all[rs.n]
		idle.mem = make([]byte, runLeast)
		rs.bytes += runLeast
		rs.n++
	}
	return idle
}

// fit gives r memory for its window, as far as its share and the budget go. Larger memory that it has already it keeps.
func (rs *runs) fit(r *run) {
	most := rs.share()
	r.window = min(r.window, most)
	have := len(r.mem)
	for have <= most && r.window > have && rs.bytes-have+r.window > rs.budget {
		r.window /= 2
	}
	if r.window > have || have > most {
		r.mem = make([]byte, r.window)
		rs.bytes += r.window - have
	}
}

// memoryStats adds what is said of memory.
func (l *Log) memoryStats(st *Stats) {
	l.runs.mu.Lock()
	st.AheadHits, st.AheadRuns, st.AheadRead = l.runs.hits, l.runs.loads, l.runs.loaded
	st.Ahead = int64(l.runs.bytes)
	l.runs.mu.Unlock()
	l.cacheMu.RLock()
	st.Cached = int64(l.cache.bytes)
	l.cacheMu.RUnlock()
}
