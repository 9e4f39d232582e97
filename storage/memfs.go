package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/boursemq/bourse/internal/invariant"
)

// MemFS is a file system in memory, for brokers that need no durability and for
// tests. The zero value is empty and ready. It can be asked how it might look after a
// power cut: it keeps apart what was synced and what was not, for the content of each
// file and for the names in each directory. Methods may be called concurrently.
type MemFS struct {
	// Volatile turns the record of what is not synced off: Crash must not be called.
	// Set it before first use.
	Volatile bool

	capacity atomic.Int64 // see SetCapacity
	used     atomic.Int64 // sum of the sizes of files with a name

	// gate is held shared by what changes anything, and exclusively by Crash, which needs
	// one instant of all files. Not used if Volatile.
	gate sync.RWMutex

	mu    sync.Mutex // guards below
	dirs  map[string]*memDir
	locks map[string]bool
}

// SetCapacity bounds the sum of all file sizes: what would exceed it fails with
// syscall.ENOSPC. Zero is no bound. It may be changed at any time.
func (m *MemFS) SetCapacity(bytes int64) { m.capacity.Store(bytes) }

// Used returns the sum of all file sizes.
func (m *MemFS) Used() int64 { return m.used.Load() }

// memDir is one directory. durable and pending are for Crash.
type memDir struct {
	names   map[string]*memNode
	durable map[string]*memNode
	pending []nameOp // since SyncDir
	named   bool     // its own name is durable
}

func newMemDir(named bool) *memDir {
	return &memDir{names: map[string]*memNode{}, durable: map[string]*memNode{}, named: named}
}

// nameOp is one change of a directory: name refers to node, and old, if not empty, no
// longer does. A nil node takes name away.
type nameOp struct {
	name, old string
	node      *memNode
}

func (op nameOp) apply(names map[string]*memNode) {
	if op.old != "" {
		delete(names, op.old)
	}
	if op.node != nil {
		names[op.name] = op.node
	} else {
		delete(names, op.name)
	}
}

// memNode is the content of one file, whatever its names.
type memNode struct {
	mu      sync.RWMutex
	now     content
	durable content
	pending []contentOp // since Sync
}

// contentOp is a write of data at offset, or, without data, a new size.
type contentOp struct {
	offset int64
	data   []byte
	size   int64
}

const (
	pageBytes   = 16 << 10
	sectorBytes = 512
)

// content is bytes in pages; a nil page is zeros.
type content struct {
	pages [][]byte
	size  int64
}

func (c *content) readAt(b []byte, offset int64) (n int, err error) {
	for n < len(b) && offset < c.size {
		i, o := offset/pageBytes, int(offset%pageBytes)
		k := int(min(int64(min(len(b)-n, pageBytes-o)), c.size-offset))
		if i < int64(len(c.pages)) && c.pages[i] != nil {
			copy(b[n:n+k], c.pages[i][o:])
		} else {
			clear(b[n : n+k])
		}
		n, offset = n+k, offset+int64(k)
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (c *content) writeAt(b []byte, offset int64) {
	c.size = max(c.size, offset+int64(len(b)))
	for len(b) > 0 {
		i, o := int(offset/pageBytes), int(offset%pageBytes)
		k := min(len(b), pageBytes-o)
		if i >= len(c.pages) {
			c.pages = append(c.pages, make([][]byte, i+1-len(c.pages))...)
		}
		if c.pages[i] == nil && !allZero(b[:k]) {
			c.pages[i] = make([]byte, pageBytes)
		}
		if c.pages[i] != nil {
			copy(c.pages[i][o:], b[:k])
		}
		b, offset = b[k:], offset+int64(k)
	}
}

func (c *content) resize(size int64) {
	if size < c.size {
		keep := int((size + pageBytes - 1) / pageBytes)
		if keep < len(c.pages) {
			clear(c.pages[keep:])
			c.pages = c.pages[:keep]
		}
		if o := size % pageBytes; o > 0 && keep <= len(c.pages) && c.pages[keep-1] != nil {
			clear(c.pages[keep-1][o:])
		}
	}
	c.size = size
}

func (c *content) clone() content {
	d := content{size: c.size, pages: make([][]byte, len(c.pages))}
	for i, p := range c.pages {
		if p != nil {
			d.pages[i] = slices.Clone(p)
		}
	}
	return d
}

func (c *content) apply(op contentOp) {
	if op.data != nil {
		c.writeAt(op.data, op.offset)
	} else {
		c.resize(op.size)
	}
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

func (m *MemFS) enter() func() {
	if m.Volatile {
		return func() {}
	}
	m.gate.RLock()
	return m.gate.RUnlock
}

func notExist(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

// dirLocked returns the directory of name, and the last part of name.
func (m *MemFS) dirLocked(op, name string) (*memDir, string, error) {
	dir, base := filepath.Split(filepath.Clean(name))
	d := m.dirs[filepath.Clean(dir)]
	if d == nil {
		return nil, "", notExist(op, name)
	}
	return d, base, nil
}

func (m *MemFS) changeLocked(d *memDir, op nameOp) {
	if old := d.names[op.name]; old != nil && old != op.node {
		old.mu.RLock()
		m.used.Add(-old.now.size)
		old.mu.RUnlock()
	}
	op.apply(d.names)
	if !m.Volatile {
		d.pending = append(d.pending, op)
	}
}

// Mkdir implements FS.
func (m *MemFS) Mkdir(dir string) error {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	dir = filepath.Clean(dir)
	switch {
	case m.findLocked(dir) != nil:
		return &fs.PathError{Op: "mkdir", Path: dir, Err: fs.ErrExist}
	case m.findLocked(filepath.Dir(dir)) == nil:
		return notExist("mkdir", dir)
	}
	m.dirs[dir] = newMemDir(false)
	return nil
}

// findLocked returns a directory, or nil. Those that everything is below were always there.
func (m *MemFS) findLocked(dir string) *memDir {
	dir = filepath.Clean(dir)
	if m.dirs == nil {
		m.dirs, m.locks = map[string]*memDir{}, map[string]bool{}
	}
	if m.dirs[dir] == nil && filepath.Dir(dir) == dir {
		m.dirs[dir] = newMemDir(true)
	}
	return m.dirs[dir]
}

// belowLocked returns the directories in dir.
func (m *MemFS) belowLocked(dir string) []string {
	var below []string
	for name := range m.dirs {
		if name != dir && filepath.Dir(name) == dir {
			below = append(below, name)
		}
	}
	return below
}

// ReadDir implements FS.
func (m *MemFS) ReadDir(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.findLocked(dir)
	if d == nil {
		return nil, notExist("readdir", dir)
	}
	names := make([]string, 0, len(d.names))
	for n := range d.names {
		names = append(names, n)
	}
	for _, below := range m.belowLocked(filepath.Clean(dir)) {
		names = append(names, filepath.Base(below))
	}
	slices.Sort(names)
	return names, nil
}

// Create implements FS.
func (m *MemFS) Create(name string) (File, error) {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dirLocked("create", name)
	if err != nil {
		return nil, err
	}
	n := d.names[base]
	if n == nil {
		n = &memNode{}
		m.changeLocked(d, nameOp{name: base, node: n})
		return &memFile{fs: m, node: n, name: name}, nil
	}
	f := &memFile{fs: m, node: n, name: name}
	return f, f.resize(0)
}

// Open implements FS.
func (m *MemFS) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dirLocked("open", name)
	if err != nil {
		return nil, err
	}
	if d.names[base] == nil {
		return nil, notExist("open", name)
	}
	return &memFile{fs: m, node: d.names[base], name: name}, nil
}

// Rename implements FS, within one directory.
func (m *MemFS) Rename(oldname, newname string) error {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	d, from, err := m.dirLocked("rename", oldname)
	if err != nil {
		return err
	}
	to, base, err := m.dirLocked("rename", newname)
	if err != nil {
		return err
	}
	if d != to {
		return &fs.PathError{Op: "rename", Path: oldname, Err: syscall.EXDEV}
	}
	if d.names[from] == nil {
		return notExist("rename", oldname)
	}
	m.changeLocked(d, nameOp{name: base, old: from, node: d.names[from]})
	return nil
}

// Remove implements FS.
func (m *MemFS) Remove(name string) error {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dirLocked("remove", name)
	if err != nil {
		return err
	}
	if d.names[base] == nil {
		return notExist("remove", name)
	}
	m.changeLocked(d, nameOp{name: base})
	return nil
}

// SyncDir implements FS.
func (m *MemFS) SyncDir(dir string) error {
	defer m.enter()()
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.findLocked(dir)
	if d == nil {
		return notExist("syncdir", dir)
	}
	for _, op := range d.pending {
		op.apply(d.durable)
	}
	d.pending = nil
	for _, below := range m.belowLocked(filepath.Clean(dir)) {
		m.dirs[below].named = true
	}
	return nil
}

// Free implements FS: what is left of the capacity, and errors.ErrUnsupported without one.
func (m *MemFS) Free(string) (int64, error) {
	c := m.capacity.Load()
	if c <= 0 {
		return 0, errors.ErrUnsupported
	}
	return max(0, c-m.used.Load()), nil
}

// Lock implements FS.
func (m *MemFS) Lock(name string) (io.Closer, error) {
	f, err := m.Create(name)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	name = filepath.Clean(name)
	if m.locks[name] {
		return nil, fmt.Errorf("%s: %w", name, ErrLocked)
	}
	m.locks[name] = true
	return &memLock{fs: m, name: name, File: f}, nil
}

type memLock struct {
	File
	fs   *MemFS
	name string
	once sync.Once
}

func (l *memLock) Close() error {
	l.once.Do(func() {
		l.fs.mu.Lock()
		defer l.fs.mu.Unlock()
		delete(l.fs.locks, l.name)
	})
	return nil
}

// memFile is an open file.
type memFile struct {
	fs     *MemFS
	node   *memNode
	name   string
	closed atomic.Bool
}

func (f *memFile) check(op string) error {
	if f.closed.Load() {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}

func (f *memFile) Close() error {
	f.closed.Store(true)
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	return f.node.now.size, f.check("size")
}

func (f *memFile) ReadAt(b []byte, offset int64) (int, error) {
	if err := f.check("read"); err != nil {
		return 0, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	return f.node.now.readAt(b, offset)
}

func (f *memFile) WriteAt(b []byte, offset int64) (int, error) {
	if err := f.check("write"); err != nil {
		return 0, err
	}
	defer f.fs.enter()()
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if err := f.growLocked("write", offset+int64(len(b))); err != nil {
		return 0, err
	}
	f.node.now.writeAt(b, offset)
	if !f.fs.Volatile {
		f.node.pending = append(f.node.pending, contentOp{offset: offset, data: append([]byte{}, b...)})
	}
	return len(b), nil
}

// growLocked accounts for a file that becomes size bytes long, if it is shorter.
func (f *memFile) growLocked(op string, size int64) error {
	more := size - f.node.now.size
	if more <= 0 {
		return nil
	}
	if c := f.fs.capacity.Load(); f.fs.used.Add(more) > c && c > 0 {
		f.fs.used.Add(-more)
		return &fs.PathError{Op: op, Path: f.name, Err: syscall.ENOSPC}
	}
	return nil
}

func (f *memFile) resize(size int64) error {
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	return f.resizeLocked("truncate", size)
}

func (f *memFile) resizeLocked(op string, size int64) error {
	if err := f.growLocked(op, size); err != nil {
		return err
	}
	if size < f.node.now.size {
		f.fs.used.Add(size - f.node.now.size)
	}
	f.node.now.resize(size)
	if !f.fs.Volatile {
		f.node.pending = append(f.node.pending, contentOp{size: size})
	}
	return nil
}

func (f *memFile) Truncate(size int64) error {
	if err := f.check("truncate"); err != nil {
		return err
	}
	defer f.fs.enter()()
	return f.resize(size)
}

func (f *memFile) Allocate(size int64) error {
	if err := f.check("allocate"); err != nil {
		return err
	}
	defer f.fs.enter()()
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	if size <= f.node.now.size {
		return nil
	}
	return f.resizeLocked("allocate", size)
}

func (f *memFile) Sync() error {
	if err := f.check("sync"); err != nil {
		return err
	}
	defer f.fs.enter()()
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	for _, op := range f.node.pending {
		f.node.durable.apply(op)
	}
	f.node.pending = nil
	return nil
}

// forget takes what is not synced in a file for synced, though it is not on disk: what
// some kernels do to pages that could not be written.
func (m *MemFS) forget(name string) error {
	f, err := m.Open(name)
	if err != nil {
		return err
	}
	file, ok := f.(*memFile)
	invariant.Check(ok, "%s is not a file of this MemFS", name)
	n := file.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = nil
	return nil
}

// CrashMode says what a power cut does to what was not synced.
type CrashMode int

const (
	CrashLost   CrashMode = iota // all of it is lost
	CrashKept                    // all of it is there, as after a killed process
	CrashRandom                  // each sector of 512 bytes, size and name as at some time since
	CrashTorn                    // all is there but the last write to each file, of which a part is
	CrashKilled                  // no power cut: the process died, and what was not synced still is not
)

// CrashModes are all of them.
var CrashModes = []CrashMode{CrashLost, CrashKept, CrashRandom, CrashTorn, CrashKilled}

func (c CrashMode) String() string {
	return [...]string{"lost", "kept", "random", "torn", "killed"}[c]
}

// Crash returns the file system as it might be found after a power cut at this
// instant. choose returns a number from 0 to n-1, from the test's seeded source. m
// itself goes on, and holds no lock for the result.
func (m *MemFS) Crash(mode CrashMode, choose func(n int) int) *MemFS {
	m.gate.Lock()
	defer m.gate.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &MemFS{dirs: map[string]*memDir{}, locks: map[string]bool{}}
	out.capacity.Store(m.capacity.Load())
	clones := map[*memNode]*memNode{}
	for _, dir := range sortedKeys(m.dirs) {
		d := m.dirs[dir]
		if mode == CrashKilled {
			out.dirs[dir] = d.clone(clones)
			continue
		}
		if above := filepath.Dir(dir); above != dir && out.dirs[above] == nil { // lost, with all in it
			continue
		}
		if !d.named && (mode == CrashLost || mode == CrashRandom && choose(2) == 0) {
			continue
		}
		names := map[string]*memNode{}
		for n, node := range d.durable {
			names[n] = node
		}
		for _, op := range d.pending {
			if mode == CrashLost || mode == CrashRandom && choose(2) == 0 {
				continue
			}
			op.apply(names)
		}
		e := newMemDir(true)
		for _, n := range sortedKeys(names) {
			node := names[n]
			if clones[node] == nil {
				clones[node] = node.crash(mode, choose)
				out.used.Add(clones[node].now.size)
			}
			e.names[n], e.durable[n] = clones[node], clones[node]
		}
		out.dirs[dir] = e
	}
	if mode == CrashKilled {
		out.used.Store(m.used.Load())
	}
	return out
}

// clone copies d as it is. clones maps the nodes of d to those of the copy.
func (d *memDir) clone(clones map[*memNode]*memNode) *memDir {
	node := func(n *memNode) *memNode {
		if n == nil {
			return nil
		}
		if clones[n] == nil {
			n.mu.RLock()
			clones[n] = &memNode{now: n.now.clone(), durable: n.durable.clone(), pending: slices.Clone(n.pending)}
			n.mu.RUnlock()
		}
		return clones[n]
	}
	e := newMemDir(d.named)
	for name, n := range d.names {
		e.names[name] = node(n)
	}
	for name, n := range d.durable {
		e.durable[name] = node(n)
	}
	for _, op := range d.pending {
		e.pending = append(e.pending, nameOp{op.name, op.old, node(op.node)})
	}
	return e
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// sectors cuts a write along the sectors of the file.
func (op contentOp) sectors(fn func(sector int64, data []byte, offset int64)) {
	for at := 0; at < len(op.data); {
		offset := op.offset + int64(at)
		k := min(sectorBytes-int(offset%sectorBytes), len(op.data)-at)
		fn(offset/sectorBytes, op.data[at:at+k], offset)
		at += k
	}
}

func (n *memNode) crash(mode CrashMode, choose func(n int) int) *memNode {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c := n.durable.clone()
	// A sector on disk is as it was in memory at one time: with the first so many of the
	// writes to it. The writes are counted first, then cut off at a number per sector.
	writes, keep := map[int64]int{}, map[int64]int{}
	if mode == CrashRandom {
		for _, op := range n.pending {
			op.sectors(func(sector int64, _ []byte, _ int64) { writes[sector]++ })
		}
	}
	for i, op := range n.pending {
		switch {
		case mode == CrashLost:
		case mode == CrashTorn && i == len(n.pending)-1 && len(op.data) > 0:
			c.writeAt(op.data[:choose(len(op.data))], op.offset)
		case mode == CrashRandom && op.data == nil:
			if choose(2) == 0 {
				c.resize(op.size)
			}
		case mode == CrashRandom:
			op.sectors(func(sector int64, data []byte, offset int64) {
				if _, ok := keep[sector]; !ok {
					keep[sector] = choose(writes[sector] + 1)
				}
				if keep[sector]--; keep[sector] >= 0 {
					c.writeAt(data, offset)
				}
			})
		default:
			c.apply(op)
		}
	}
	d := c.clone()
	return &memNode{now: c, durable: d}
}
