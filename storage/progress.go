package storage

import "log/slog"

// progressBytes is how much log is replayed from one report to the next. Tests change it.
var progressBytes int64 = 64 << 20

// progress tells the logger how far a replay has come. One that is short tells nothing.
type progress struct {
	log   *slog.Logger
	dir   string
	total int64  // bytes that are to be read, those behind the end of the log included
	done  int64  // of them
	told  int64  // done at the last report
	count uint64 // records in them
}

// progressFrom is for a replay from b on.
func (l *Log) progressFrom(b base) *progress {
	p := &progress{log: l.opts.Logger, dir: l.dir}
	for n, s := range l.chain {
		if n >= b.segment && s.header {
			p.total += s.size
		}
	}
	p.total = max(0, p.total-int64(b.offset))
	return p
}

// read says that so many bytes more were read, with so many records in them.
func (p *progress) read(bytes int, records uint64) {
	p.done += int64(bytes)
	p.count += records
	if p.done-p.told < progressBytes {
		return
	}
	p.told = p.done
	p.log.Info("replaying the log", "dir", p.dir, "records", p.count, "bytes", p.done, "of", p.total,
		"percent", 100*p.done/max(p.total, 1))
}
