package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Shadow returns a file system that shows the operating system's and keeps every change in memory: what is on disk is
// read and never written. A log opened on it is what Open would have made of the directory. Its lock is shared by
// shadows, and keeps out, and is kept out by, whoever has the directory open to write. Mkdir makes nothing: the
// directory must be there.
func Shadow() FS { return &shadowFS{files: make(map[string]*shadowFile)} }

type shadowFS struct {
	mu    sync.Mutex             // guards below
	files map[string]*shadowFile // that were looked at, by cleaned path; nil: removed
}

// shadowPage is how much of a file is copied by the first write into it.
const shadowPage = 64 << 10

// shadowFile is a file as it is on disk, and the pages that were written.
type shadowFile struct {
	name string // on disk

	mu     sync.RWMutex // guards below
	opened int          // times it is open
	disk   *os.File     // while it is open; nil if nothing of it is on disk
	lower  int64        // bytes of disk that count; what is behind them has been cut off
	size   int64
	pages  map[int64][]byte // by offset, each of shadowPage bytes
}

func (s *shadowFS) Mkdir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return &fs.PathError{Op: "open", Path: dir, Err: errors.New("it is no directory")}
	}
	return &fs.PathError{Op: "mkdir", Path: dir, Err: fs.ErrExist}
}

func (s *shadowFS) ReadDir(dir string) ([]string, error) {
	names, err := osFS{}.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := make(map[string]bool, len(names))
	for _, n := range names {
		there[n] = true
	}
	for path, f := range s.files {
		if filepath.Dir(path) == filepath.Clean(dir) {
			there[filepath.Base(path)] = f != nil
		}
	}
	maps.DeleteFunc(there, func(_ string, is bool) bool { return !is })
	return slices.Collect(maps.Keys(there)), nil
}

func (s *shadowFS) Create(name string) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &shadowFile{name: name, pages: make(map[int64][]byte), opened: 1}
	s.files[filepath.Clean(name)] = f
	return f, nil
}

func (s *shadowFS) Open(name string) (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.findLocked(name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.opened == 0 && f.lower > 0 {
		if f.disk, err = os.OpenFile(f.name, os.O_RDONLY|openFlags, 0); err != nil {
			return nil, err
		}
	}
	f.opened++
	return f, nil
}

// findLocked returns the file of that name, which is known from then on.
func (s *shadowFS) findLocked(name string) (*shadowFile, error) {
	path := filepath.Clean(name)
	if f, known := s.files[path]; f != nil {
		return f, nil
	} else if known {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	f := &shadowFile{name: name, lower: info.Size(), size: info.Size(), pages: make(map[int64][]byte)}
	s.files[path] = f
	return f, nil
}

func (s *shadowFS) Rename(oldname, newname string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := s.findLocked(oldname)
	if err != nil {
		return err
	}
	s.files[filepath.Clean(oldname)] = nil
	s.files[filepath.Clean(newname)] = f
	return nil
}

func (s *shadowFS) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.findLocked(name); err != nil {
		return err
	}
	s.files[filepath.Clean(name)] = nil
	return nil
}

func (s *shadowFS) SyncDir(string) error { return nil }

// Free is as on disk, of which nothing is taken.
func (s *shadowFS) Free(dir string) (int64, error) { return freeBytes(dir) }

func (s *shadowFS) Lock(name string) (io.Closer, error) {
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return io.NopCloser(nil), nil // nobody has ever had it open
	}
	return lockShared(name)
}

func (f *shadowFile) Size() (int64, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.size, nil
}

func (f *shadowFile) ReadAt(b []byte, off int64) (n int, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if len(b) == 0 {
		return 0, nil
	}
	if off >= f.size {
		return 0, io.EOF
	}
	short := int64(len(b)) > f.size-off
	if short {
		b = b[:f.size-off]
	}
	for n < len(b) {
		k, err := f.readPage(b[n:], off+int64(n))
		n += k
		if err != nil {
			return n, err
		}
	}
	if short {
		return n, io.EOF
	}
	return n, nil
}

// readPage reads up to the end of the page that off is in.
func (f *shadowFile) readPage(b []byte, off int64) (int, error) {
	in := off % shadowPage
	b = b[:min(int64(len(b)), shadowPage-in)]
	if p := f.pages[off-in]; p != nil {
		return copy(b, p[in:]), nil
	}
	return len(b), f.readLower(b, off)
}

// readLower fills b with what is on disk, and with zeros where nothing is.
func (f *shadowFile) readLower(b []byte, off int64) error {
	there := max(0, min(int64(len(b)), f.lower-off))
	clear(b[there:])
	if there == 0 {
		return nil
	}
	n, err := f.disk.ReadAt(b[:there], off)
	if int64(n) == there {
		return nil
	}
	return fmt.Errorf("%s: %d bytes at %d: %w", f.name, there, off, err)
}

func (f *shadowFile) WriteAt(b []byte, off int64) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for n < len(b) {
		at := off + int64(n)
		p, err := f.pageLocked(at - at%shadowPage)
		if err != nil {
			return n, err
		}
		n += copy(p[at%shadowPage:], b[n:])
	}
	if n > 0 {
		f.size = max(f.size, off+int64(n))
	}
	return n, nil
}

// pageLocked is the page at off, to write into.
func (f *shadowFile) pageLocked(off int64) ([]byte, error) {
	p := f.pages[off]
	if p == nil {
		p = make([]byte, shadowPage)
		if err := f.readLower(p, off); err != nil {
			return nil, err
		}
		f.pages[off] = p
	}
	return p, nil
}

func (f *shadowFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for off, p := range f.pages {
		switch {
		case off >= size:
			delete(f.pages, off)
		case off+shadowPage > size:
			clear(p[size-off:])
		}
	}
	f.lower, f.size = min(f.lower, size), size
	return nil
}

func (f *shadowFile) Allocate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.size = max(f.size, size)
	return nil
}

func (f *shadowFile) Sync() error { return nil }

// Close keeps what was written: the file may be opened again.
func (f *shadowFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened--
	if f.opened > 0 || f.disk == nil {
		return nil
	}
	disk := f.disk
	f.disk = nil
	return disk.Close()
}
