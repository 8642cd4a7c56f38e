package group

import (
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// labelling remembers, in what it opens, what a snapshot is labelled with:
// the library does not tell it to the FSM that restores it.
type labelling struct {
	raft.SnapshotStore
	forced *atomic.Bool                   // set while Group.Restore is under way
	failed func(error)                    // told of a snapshot that could not be written
	note   func(index, term uint64) error // told of one that a restore begins
}

// Create begins a snapshot and tells of a failure, which the library only logs.
func (s labelling) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	if s.forced.Load() {
		if err := s.note(index, term); err != nil {
			return nil, err
		}
	}
	sink, err := s.SnapshotStore.Create(v, index, term, c, cIndex, t)
	if err != nil {
		s.failed(err)
		return nil, err
	}
	return indexed{sink, index}, nil
}

// indexed is a sink that knows the last entry of its snapshot.
type indexed struct {
	raft.SnapshotSink
	index uint64
}

// Open opens a snapshot. While a restore is forced, one that cannot be opened
// fails when it is read instead: the library would panic, and so it is the
// adapter that deals with it.
func (s labelling) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	switch {
	case err == nil:
		return meta, labelled{r, label{meta.Index, meta.Term, meta.ConfigurationIndex}}, nil
	case s.forced.Load():
		return &raft.SnapshotMeta{ID: id}, unreadable{err}, nil
	default:
		return nil, nil, err
	}
}

type unreadable struct{ err error }

func (u unreadable) Read([]byte) (int, error) { return 0, u.err }
func (unreadable) Close() error               { return nil }

// label is what the library knows a snapshot by: the last entry in it, and the
// entry that made its members so.
type label struct{ index, term, members uint64 }

type labelled struct {
	io.ReadCloser
	label label
}

// labelOf is the label of the snapshot that r reads, zero if it has none.
func labelOf(r io.ReadCloser) label {
	for {
		switch v := r.(type) {
		case labelled:
			return v.label
		case interface{ WrappedReadCloser() io.ReadCloser }: // the library's, which counts bytes
			r = v.WrappedReadCloser()
		default:
			return label{}
		}
	}
}
