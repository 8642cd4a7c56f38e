package wal

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
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

// Open opens or creates the log in dir. One process may have it open.
func Open(dir string, log hclog.Logger) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("log directory: %w", err)
	}
	// The log leaves its meta file open, and locked, when it fails to open.
	meta := &metadb.BoltMetaDB{}
	w, err := raftwal.Open(dir, raftwal.WithLogger(log), raftwal.WithSegmentSize(segmentBytes), raftwal.WithMetaStore(meta))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the log in %s: %w", dir, err), meta.Close())
	}
	return checked{w}, nil
}

// Memory is a store that ends with the process.
func Memory() Store { return memory{raft.NewInmemStore()} }

type memory struct{ *raft.InmemStore }

func (memory) IsMonotonic() bool { return false }
func (memory) Close() error      { return nil }
