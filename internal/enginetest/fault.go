package enginetest

import "strconv"

// fault is something that a [Disk] makes its engine do wrong, so that the suite's own tests
// can see whether the suite notices.
type fault int

const (
	none             fault = iota
	reorder                // swaps the last two proposals of a batch
	loseDone               // leaves out a Done
	doubleDone             // repeats one
	earlyDone              // calls Done before Apply
	wrongAnswer            // answers with the answer to the command before
	doneError              // says that the outcome is unknown, without need
	doneBackwards          // calls the Dones of a batch from the last to the first
	appendTwice            // calls AppendTo twice
	sameIndex              // gives a batch one index
	aliasBody              // lets later commands overwrite a kept one
	readOverwrites         // returns the bytes in place of appending them
	forgetBody             // drops kept commands at a snapshot
	neverFree              // ignores Free
	freeAll                // forgets a command at the first Free
	applyTwice             // repeats the last command at a reopen
	reopenShort            // leaves it out
	loseLast               // does not write the last command before Close
	ignoreSnapshot         // recovers from the log alone, which is cut off
	tailOverlaps           // repeats the last command of the snapshot
	unlockedSnapshot       // calls Snapshot beside Apply
	dropOnClose            // forgets what is pending at Close
	closeEarly             // returns from Close before the end
	acceptAfterClose       // accepts proposals after Close
	closeOnce              // fails the second Engine.Close
	openTwiceAllowed       // opens a shard twice
	shardsShared           // puts all shards into one log
	ignoreContext          // opens although ctx is over
	leadEarly              // leads before it has recovered
	leadTwice              // leads twice
	faults                 // how many there are
)

// String is the name of a test that plants the fault.
func (f fault) String() string { return "fault" + strconv.Itoa(int(f)) }

func (d *Disk) has(f fault) bool { return d.fault == f }
