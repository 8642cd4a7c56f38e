package group

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// FSM is the state machine of a group; R is what an entry's proposer gets. Its
// methods are called one at a time; what Snapshot returns is used concurrently
// with later calls.
type FSM[R any] interface {
	// Apply carries out a committed entry. An error is final: the group stops.
	Apply(index uint64, entry []byte) (R, error)
	// Snapshot captures the state without encoding it.
	Snapshot() io.WriterTo
	// Restore replaces the state.
	Restore(r io.Reader) error
	// Applied is the last entry the state contains.
	Applied() uint64
}

var (
	// ErrCannotApply means that a committed entry is beyond this binary. The
	// group stopped rather than go on without it.
	ErrCannotApply = errors.New("committed entry cannot be applied")
	// ErrRestoreLoop means that snapshots were restored again and again without
	// getting anywhere (hashicorp/raft#697). Reopening the group cures it.
	ErrRestoreLoop = errors.New("snapshots are restored in a loop")
)

// maxBarrenRestores is how many restores in a row may bring no new entry. Two
// happen in honest races of a snapshot with its own retry.
const maxBarrenRestores = 3

// adapter is an FSM as the library wants it, with the watchdog for restores.
type adapter[R any] struct {
	fsm    FSM[R]
	fault  func(guard string, err error)
	onStep func(applied uint64)

	highest uint64 // highest entry ever contained
	barren  int    // restores since highest last rose
	stopped error  // why nothing is applied any more
}

// Apply is called by the library's FSM goroutine. Nothing is applied after the
// entry that could not be; its proposer and all later ones get nil.
func (a *adapter[R]) Apply(l *raft.Log) any {
	if a.stopped != nil {
		return nil
	}
	res, err := a.fsm.Apply(l.Index, l.Data)
	if err != nil {
		return a.stop("apply", fmt.Errorf("%w: %w", ErrCannotApply, err))
	}
	a.advance(l.Index)
	a.onStep(l.Index)
	return res
}

func (a *adapter[R]) advance(index uint64) {
	if index > a.highest {
		a.highest, a.barren = index, 0
	}
}

// stop lets nothing through any more, and returns nil.
func (a *adapter[R]) stop(guard string, err error) any {
	a.stopped = err
	a.fault(guard, err)
	return nil
}

// Snapshot captures the state. After a fault it refuses: the library would
// label the state with entries it does not contain.
func (a *adapter[R]) Snapshot() (raft.FSMSnapshot, error) {
	if a.stopped != nil {
		return nil, a.stopped
	}
	return persister{a.fsm.Snapshot()}, nil
}

// Restore replaces the state and counts restores that bring nothing.
func (a *adapter[R]) Restore(r io.ReadCloser) error {
	if a.stopped != nil {
		return a.stopped
	}
	if err := a.fsm.Restore(r); err != nil {
		return err
	}
	a.barren++
	a.advance(a.fsm.Applied())
	a.onStep(a.fsm.Applied())
	if a.barren >= maxBarrenRestores {
		a.stop("restore_loop", fmt.Errorf("%w: %d restores and none went beyond entry %d", ErrRestoreLoop, a.barren, a.highest))
	}
	return a.stopped
}

type persister struct{ state io.WriterTo }

func (p persister) Persist(sink raft.SnapshotSink) error {
	if _, err := p.state.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (persister) Release() {}
