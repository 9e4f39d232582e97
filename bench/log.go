package bench

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
)

const (
	logHeader    = 16      // checksum, length, sequence
	bufferAtOnce = 1 << 20 // of zeros, while a file is prepared
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// groupLog appends records to one file whose blocks were all written before. Many records are one write and one sync,
// and while one batch syncs the next fills. M is what has to be told when a record is on disk. Its methods may be
// called concurrently.
type groupLog[M any] struct {
	file    *os.File                  // fixed after openLog, like the next three
	size    int64                     // of the file; at its end the log starts over
	tell    func(told []M, err error) // called by write; err is how the write or the sync ended
	stopped chan struct{}             // closed by write

	mu      sync.Mutex // guards below
	work    sync.Cond  // write waits: there is something in open, or closing
	open    *logBatch[M]
	idle    *logBatch[M] // for reuse
	seq     uint64       // of the last record
	at      int64        // where the next batch goes
	used    int64        // what the records since startOver take, and what was reserved with them
	closing bool
	err     error // of the file; nothing is confirmed after it
}

// recordSizes is what a broker writes, headers and padding included.
type recordSizes struct{ publish, ack int }

type logBatch[M any] struct {
	buf  []byte
	told []M   // who waits for the sync; without any the batch is only written
	at   int64 // where it goes
}

// openLog makes a file in dir, with all its blocks written.
func openLog[M any](dir, name string, size int64, tell func([]M, error)) (*groupLog[M], error) {
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, bufferAtOnce)
	for at := int64(0); at < size && err == nil; at += int64(len(zeros)) {
		_, err = file.WriteAt(zeros, at)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("prepare %s: %w", name, err)
	}
	l := &groupLog[M]{file: file, size: size, tell: tell, stopped: make(chan struct{})}
	l.open, l.idle = &logBatch[M]{}, &logBatch[M]{}
	l.work.L = &l.mu
	go l.write() // ends by close, which waits for it
	return l, nil
}

// close writes what is there and removes the file.
func (l *groupLog[M]) close() error {
	l.mu.Lock()
	l.closing = true
	l.work.Signal()
	l.mu.Unlock()
	<-l.stopped
	for _, err := range []error{l.file.Close(), os.Remove(l.file.Name())} {
		if l.err == nil {
			l.err = err
		}
	}
	return l.err
}

// startOver makes the next batch the first of the file.
func (l *groupLog[M]) startOver() {
	l.mu.Lock()
	l.at, l.used = 0, int64(len(l.open.buf))
	l.mu.Unlock()
}

// reserveLocked takes n bytes of the file for records to come. It reports false if the file has not as many left.
func (l *groupLog[M]) reserveLocked(n int) bool {
	if l.used+int64(n) > l.size {
		return false
	}
	l.used += int64(n)
	return true
}

// appendLocked adds a record of size bytes that holds body.
func (l *groupLog[M]) appendLocked(size int, seq uint64, body []byte) {
	from := len(l.open.buf)
	if from+size > cap(l.open.buf) {
		grown := make([]byte, from, 2*(from+size))
		copy(grown, l.open.buf)
		l.open.buf = grown
	}
	l.open.buf = l.open.buf[:from+size]
	r := l.open.buf[from:]
	binary.LittleEndian.PutUint32(r[4:], uint32(len(body)))
	binary.LittleEndian.PutUint64(r[8:], seq)
	copy(r[logHeader:], body)
	binary.LittleEndian.PutUint32(r, crc32.Checksum(r[4:], castagnoli))
}

// write takes what is there, writes it, syncs it if somebody waits, and tells who does. Meanwhile the next batch fills.
func (l *groupLog[M]) write() {
	defer close(l.stopped)
	for {
		l.mu.Lock()
		for len(l.open.buf) == 0 && !l.closing {
			l.work.Wait()
		}
		b, err := l.open, l.err
		if len(b.buf) == 0 {
			l.mu.Unlock()
			return
		}
		if l.at+int64(len(b.buf)) > l.size {
			l.at = 0
		}
		b.at = l.at
		l.at += int64(len(b.buf))
		l.open = l.idle
		l.mu.Unlock()
		if err == nil {
			err = l.flush(b)
		}
		l.tell(b.told, err)
		clear(b.told)
		b.buf, b.told = b.buf[:0], b.told[:0]
		l.mu.Lock()
		l.idle, l.err = b, err
		l.mu.Unlock()
	}
}

func (l *groupLog[M]) flush(b *logBatch[M]) error {
	if _, err := l.file.WriteAt(b.buf, b.at); err != nil || len(b.told) == 0 {
		return err
	}
	return datasync(l.file)
}
