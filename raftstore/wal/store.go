package wal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
)

// Store is a log and the small durable values beside it.
type Store interface {
	raft.LogStore
	raft.StableStore
	raft.MonotonicLogStore
	io.Closer
}

// segmentBytes is the size of a log file, allocated ahead. The core group
// writes little; a segment also bounds what a restart scans.
const segmentBytes = 8 << 20

// Option changes how a log is opened.
type Option func(*options)

type options struct{ acceptLoss bool }

// AcceptLoss opens a log that has lost entries at its end, or has unreadable ones
// there, as one that ends before them.
func AcceptLoss(o *options) { o.acceptLoss = true }

func chosen(opts []Option) (o options) {
	for _, set := range opts {
		set(&o)
	}
	return o
}

// Open opens or creates the log in dir. One process may have it open. A log of which
// files are missing or damaged, or that ends before where it had certainly been, is
// refused with ErrDamaged, and nothing is changed then.
func Open(dir string, log hclog.Logger, opts ...Option) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("log directory: %w", err)
	}
	// The log leaves its meta file open, and locked, when it fails to open.
	meta := &metadb.BoltMetaDB{}
	s, err := openIn(dir, meta, orSilent(log), chosen(opts))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the log in %s: %w", dir, err), meta.Close())
	}
	return s, nil
}

func openIn(dir string, meta *metadb.BoltMetaDB, log hclog.Logger, o options) (Store, error) {
	m, found, err := examine(meta, dir, dir, log, o)
	if err != nil {
		return nil, err
	}
	if err := found.prepare(meta, dir); err != nil {
		return nil, err
	}
	w, err := openLog(func() (*raftwal.WAL, error) {
		return raftwal.Open(dir, raftwal.WithLogger(log), raftwal.WithSegmentSize(segmentBytes), raftwal.WithMetaStore(meta),
			raftwal.WithSegmentFiler(segment.NewFiler(dir, files{fs.New()})))
	})
	if err != nil {
		return nil, err
	}
	s, err := keepMark(checked{w}, m, markEvery)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return s, nil
}

// examine looks at the log in dir, with its file of segments read in metaDir, before
// anything is changed there.
func examine(meta *metadb.BoltMetaDB, metaDir, dir string, log hclog.Logger, o options) (*mark, survey, error) {
	m, err := readMark(dir)
	if errors.Is(err, ErrDamaged) && o.acceptLoss {
		m, err = &mark{path: filepath.Join(dir, markName)}, nil
	}
	if err != nil {
		return nil, survey{}, err
	}
	state, err := loadMeta(meta, metaDir, dir, m)
	if err != nil {
		return nil, survey{}, err
	}
	s, err := inspect(dir, state, m, o.acceptLoss)
	if err == nil && s.torn > 0 {
		log.Warn("bytes at the end of the log are of no whole entry and are left out; after a power cut that is what a write looks like which nobody was told to be done, and harmless",
			"file", s.tail, "byte", s.torn, "last_entry", s.last)
	}
	return m, s, err
}

// openLog is the library's, which says of damage that the log is corrupt, or panics.
func openLog(open func() (*raftwal.WAL, error)) (w *raftwal.WAL, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	w, err = open()
	if errors.Is(err, raftwal.ErrCorrupt) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return w, err
}

func orSilent(log hclog.Logger) hclog.Logger {
	if log == nil {
		return hclog.NewNullLogger()
	}
	return log
}

// Memory is a store that ends with the process.
func Memory() Store { return memory{raft.NewInmemStore()} }

type memory struct{ *raft.InmemStore }

func (memory) IsMonotonic() bool { return false }
func (memory) Close() error      { return nil }
