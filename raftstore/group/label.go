package group

import (
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// labelling remembers, in what it opens, the index that a snapshot is labelled
// with: the library does not tell it to the FSM that restores it.
type labelling struct {
	raft.SnapshotStore
	forced *atomic.Bool // set while Group.Restore is under way
}

// Open opens a snapshot. While a restore is forced, one that cannot be opened
// fails when it is read instead: the library would panic, and so it is the
// adapter that deals with it.
func (s labelling) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	switch {
	case err == nil:
		return meta, labelled{r, meta.Index}, nil
	case s.forced.Load():
		return &raft.SnapshotMeta{ID: id}, unreadable{err}, nil
	default:
		return nil, nil, err
	}
}

type unreadable struct{ err error }

func (u unreadable) Read([]byte) (int, error) { return 0, u.err }
func (unreadable) Close() error               { return nil }

type labelled struct {
	io.ReadCloser
	index uint64
}

// labelOf is the index of the snapshot that r reads, or 0 if it has no label.
func labelOf(r io.ReadCloser) uint64 {
	for {
		switch v := r.(type) {
		case labelled:
			return v.index
		case interface{ WrappedReadCloser() io.ReadCloser }: // the library's, which counts bytes
			r = v.WrappedReadCloser()
		default:
			return 0
		}
	}
}
