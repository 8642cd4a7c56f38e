package group

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// FSM is the state machine of a group; R is what an entry's proposer gets. Its
// methods are called one at a time; what Snapshot returns is used concurrently
// with later calls, and released if it has a method Release.
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

// Digester is an FSM with a checksum of its state, equal on all members that
// applied the same entries. It is called between two entries and must be quick.
type Digester interface {
	Digest() uint64
}

// Verifier is an FSM that can tell whether Restore would accept a snapshot,
// without changing the state. [Group.Restore] asks it. It is called concurrently
// with everything else.
type Verifier interface {
	Verify(r io.Reader) error
}

var (
	// ErrCannotApply means that a committed entry is beyond this binary. The
	// group stopped rather than go on without it.
	ErrCannotApply = errors.New("committed entry cannot be applied")
	// ErrRestoreLoop means that snapshots were restored again and again without
	// getting anywhere (hashicorp/raft#697). Reopening the group cures it.
	ErrRestoreLoop = errors.New("snapshots are restored in a loop")
)

// maxBarrenRestores is how many restores of one snapshot in a row may bring no new
// entry. Two happen in honest races of a snapshot with its own retry.
const maxBarrenRestores = 3

// adapter is an FSM as the library wants it, with the watchdog for restores. Its
// methods are called by the library's FSM goroutine, but before that runs by
// whoever starts the library.
type adapter[R any] struct {
	fsm     FSM[R]
	fault   func(guard string, err error)
	samples *sampler
	events  events

	// floor is the first entry of the log when the library starts: the snapshot
	// that it starts from must reach up to it.
	floor    uint64
	starting atomic.Bool
	// forced is set while Group.Restore is under way.
	forced atomic.Bool

	applied atomic.Uint64 // last entry in fsm
	barren  int           // restores of one snapshot in a row without an entry after it
	again   uint64        // which
	refused error         // why snapshots were not restored at the start
	stopped error         // why nothing is applied any more
}

// events is what an adapter tells of its work. All are set.
type events struct {
	configured func(index uint64, c raft.Configuration)
	restored   func(applied uint64, l label, took time.Duration)
	persisted  func(index uint64, bytes int64, took time.Duration)
	newest     func() uint64   // last entry of the newest snapshot that was restored
	unwritten  func(err error) // a snapshot could not be written
}

// Apply carries out an entry. Nothing is applied after the entry that could not
// be; its proposer and all later ones get nil.
func (a *adapter[R]) Apply(l *raft.Log) any {
	if a.stopped != nil {
		return nil
	}
	before := a.applied.Load()
	res, err := a.fsm.Apply(l.Index, l.Data)
	if err != nil {
		return a.stop("apply", fmt.Errorf("%w: %w", ErrCannotApply, err))
	}
	a.barren = 0
	a.applied.Store(l.Index)
	a.samples.step(before, l.Index)
	return res
}

// StoreConfiguration learns a committed configuration. That the adapter has this
// method also lets the library label a snapshot with the configuration's index:
// without it, an idle group refuses snapshots after each change of members.
func (a *adapter[R]) StoreConfiguration(index uint64, c raft.Configuration) {
	a.events.configured(index, c)
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
	if a.forced.Load() {
		return nil, errRestoring
	}
	return persister{a.fsm.Snapshot(), a.events}, nil
}

// Restore replaces the state and counts restores that bring nothing.
func (a *adapter[R]) Restore(r io.ReadCloser) error {
	if a.stopped != nil {
		return a.stopped
	}
	start, l := time.Now(), labelOf(r)
	if a.starting.Load() && l.index+1 < a.floor {
		return a.refuse(fmt.Errorf("%w: the snapshot ends with entry %d and the log begins with %d", ErrLogGap, l.index, a.floor))
	}
	if err := a.fsm.Restore(r); err != nil {
		return a.refuse(err)
	}
	applied := a.fsm.Applied()
	end := max(applied, l.index)
	if a.barren++; end != a.again {
		a.again, a.barren = end, 1
	}
	a.applied.Store(applied)
	a.events.restored(applied, l, time.Since(start))
	if a.barren >= maxBarrenRestores {
		a.stop("restore_loop", fmt.Errorf("%w: %d restores and none went beyond entry %d", ErrRestoreLoop, a.barren, end))
	}
	return a.stopped
}

// refuse is for a snapshot that was not restored. The library tries another, or
// asks for it again; only a restore that was forced upon it makes it panic, so
// that one stops the group.
func (a *adapter[R]) refuse(err error) error {
	if a.starting.Load() {
		a.refused = errors.Join(a.refused, err)
	}
	if a.forced.Load() {
		a.stop("restore", err)
		return nil
	}
	return err
}

// persister writes what an FSM captured.
type persister struct {
	state  io.WriterTo
	events events
}

func (p persister) Persist(sink raft.SnapshotSink) error {
	start := time.Now()
	n, err := p.state.WriteTo(sink)
	s, _ := sink.(indexed)
	if newest := p.events.newest(); err == nil && s.index < newest {
		err = fmt.Errorf("%w: entry %d, and %d", ErrSuperseded, s.index, newest)
	}
	if err != nil {
		err = errors.Join(err, sink.Cancel())
	} else {
		err = sink.Close()
	}
	if err != nil {
		p.events.unwritten(err)
		return err
	}
	p.events.persisted(s.index, n, time.Since(start))
	return nil
}

func (p persister) Release() {
	if r, ok := p.state.(interface{ Release() }); ok {
		r.Release()
	}
}
