package group

import (
	"io"

	"github.com/hashicorp/raft"
)

// labelling remembers, in what it opens, the index that a snapshot is labelled
// with: the library does not tell it to the FSM that restores it.
type labelling struct{ raft.SnapshotStore }

func (s labelling) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, labelled{r, meta.Index}, nil
}

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
