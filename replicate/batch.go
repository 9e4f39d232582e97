package replicate

import (
	"encoding/binary"
	"fmt"

	"github.com/lni/dragonboat/v4"

	"github.com/boursemq/bourse"
)

// One Raft entry holds one batch:
//
//	0   1  version, 1
//	1   1  kind
//	2   8  epoch: the Raft term in which the proposer became leader
//	10  8  sequence in the epoch, from 1; 0 in an opening
//	18  4  attempt: how often the proposer has sent its batches again; not part of the order
//	22  4  number of commands
//	26     each command: length, 4, and the bytes
//
// Numbers are little endian. The entry has the checksums of the log and the transport.
const (
	batchVersion = 1
	batchHeader  = 26
	lengthBytes  = 4

	batchOpens    = 1 // starts an epoch, has no commands, and ends all epochs before it
	batchCommands = 2
)

const (
	// MaxCommandBytes is the largest command that a log takes.
	MaxCommandBytes = 32 << 20

	batchBytes   = 64 << 10 // a batch with several commands is not larger
	batchEntries = 4096     // nor has it more
	refBits      = 24       // of a Ref for the offset in the entry, the rest for its index
)

// batch is a batch on its way into the log.
type batch struct {
	payload []byte
	props   []bourse.Proposal // one a command

	epoch, seq uint64 // set when first sent

	// owned by the log's goroutine
	result *dragonboat.RequestState // of the last try; nil: it failed at once or is known
}

func newBatch(room int) *batch {
	return &batch{payload: make([]byte, batchHeader, batchHeader+room)}
}

// add appends p's command and returns its length.
func (b *batch) add(p bourse.Proposal) int {
	at := len(b.payload)
	b.payload = p.AppendTo(append(b.payload, 0, 0, 0, 0))
	n := len(b.payload) - at - lengthBytes
	binary.LittleEndian.PutUint32(b.payload[at:], uint32(n))
	b.props = append(b.props, p)
	return n
}

// drop takes the last command, of n bytes, back and returns it.
func (b *batch) drop(n int) (bourse.Proposal, []byte) {
	last := len(b.props) - 1
	p, end := b.props[last], len(b.payload)
	b.props[last] = nil
	b.props = b.props[:last]
	b.payload = b.payload[:end-n-lengthBytes]
	return p, b.payload[end-n : end]
}

// full reports whether no further command goes in.
func (b *batch) full() bool { return len(b.payload) >= batchBytes || len(b.props) >= batchEntries }

// seal fills in the header.
func (b *batch) seal(epoch, seq uint64, attempt uint32) {
	b.epoch, b.seq = epoch, seq
	putHeader(b.payload, header{batchCommands, epoch, seq, attempt, uint32(len(b.props))})
}

type header struct {
	kind       byte
	epoch, seq uint64
	attempt    uint32
	commands   uint32
}

func putHeader(b []byte, h header) {
	b[0], b[1] = batchVersion, h.kind
	binary.LittleEndian.PutUint64(b[2:], h.epoch)
	binary.LittleEndian.PutUint64(b[10:], h.seq)
	binary.LittleEndian.PutUint32(b[18:], h.attempt)
	binary.LittleEndian.PutUint32(b[22:], h.commands)
}

// opening encodes the batch that opens an epoch.
func opening(epoch uint64) []byte {
	b := make([]byte, batchHeader)
	putHeader(b, header{kind: batchOpens, epoch: epoch})
	return b
}

// parseHeader panics at what this release did not write: an old binary has met a newer
// log, and must stop rather than guess.
func parseHeader(b []byte) header {
	if len(b) < batchHeader || b[0] != batchVersion || b[1] != batchOpens && b[1] != batchCommands {
		panic(fmt.Sprintf("replicate: a log entry of %d bytes that this release does not know: % x", len(b), b[:min(len(b), 8)]))
	}
	return header{
		kind:     b[1],
		epoch:    binary.LittleEndian.Uint64(b[2:]),
		seq:      binary.LittleEndian.Uint64(b[10:]),
		attempt:  binary.LittleEndian.Uint32(b[18:]),
		commands: binary.LittleEndian.Uint32(b[22:]),
	}
}

// commands appends the commands in payload, the entry at index, to dst, numbered from
// first on. They are parts of payload.
func commands(dst []bourse.Entry, payload []byte, h header, index, first uint64) []bourse.Entry {
	at := batchHeader
	for i := range h.commands {
		n := -1
		if len(payload)-at >= lengthBytes {
			n = int(binary.LittleEndian.Uint32(payload[at:]))
		}
		at += lengthBytes
		if n < 0 || n > len(payload)-at {
			panic(fmt.Sprintf("replicate: entry %d: command %d of %d runs past its end", index, i+1, h.commands))
		}
		dst = append(dst, bourse.Entry{
			Index: first + uint64(i),
			Ref:   bourse.Ref(index<<refBits | uint64(at)),
			Cmd:   payload[at : at+n : at+n],
		})
		at += n
	}
	if at != len(payload) {
		panic(fmt.Sprintf("replicate: entry %d: %d bytes after the last command", index, len(payload)-at))
	}
	return dst
}

// take is add for a command that is encoded already.
func (b *batch) take(p bourse.Proposal, cmd []byte) {
	b.payload = binary.LittleEndian.AppendUint32(b.payload, uint32(len(cmd)))
	b.payload = append(b.payload, cmd...)
	b.props = append(b.props, p)
}
