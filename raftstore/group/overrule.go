package group

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// ErrOverruled means that this member held a snapshot that was being restored by
// force when its leader was lost, and the others went on without it. Reopening the
// group cures it: the snapshot is in quarantine, and the leader sends what is
// missing.
var ErrOverruled = errors.New("the group went on without a restore that was not finished")

var (
	// overruledKey is the durable index of a snapshot that was overruled, while the
	// log behind it is still to be dropped.
	overruledKey = []byte("ym-overruled")
	// promiseIndexKey and promiseTermKey are the durable parts of a promise.
	promiseIndexKey = []byte("ym-promise-index")
	promiseTermKey  = []byte("ym-promise-term")
	// forcedIndexKey and forcedTermKey name the snapshot of a restore by this member
	// that is not known to be committed.
	forcedIndexKey = []byte("ym-forced-index")
	forcedTermKey  = []byte("ym-forced-term")
)

// promise is the furthest that a member may have acknowledged before a restore
// dropped its log. Whoever has less may lack what was committed with this member's
// word, so that it neither votes for such a one nor stands for election as one.
type promise struct{ index, term uint64 }

// kept reports whether a log that ends with the entry has all that was promised.
func (p promise) kept(index, term uint64) bool {
	return term > p.term || term == p.term && index >= p.index
}

// errPromised refuses a vote.
var errPromised = errors.New("a log with less than was acknowledged here gets no vote")

// readPromise reads the promise, zero if there is none.
func readPromise(s raft.StableStore) promise {
	// The stores have an error for a key that is not there.
	index, _ := s.GetUint64(promiseIndexKey)
	term, _ := s.GetUint64(promiseTermKey)
	return promise{index, term}
}

// clearPromise is for a group that begins anew from what is left.
func clearPromise(s raft.StableStore) error {
	if readPromise(s) == (promise{}) {
		return nil
	}
	return errors.Join(s.SetUint64(promiseIndexKey, 0), s.SetUint64(promiseTermKey, 0))
}

// overrule finds a leader's entry where this member has a snapshot that lacks it.
//
// A forced restore is in force at the leader, and at the followers that installed
// it, before it is committed, and the library has no way back from a snapshot: it
// would keep the state and go on with the other leader's entries behind it. That
// of a committed state is never in conflict with a leader.
func (g *Group[R]) overrule(req *raft.AppendEntriesRequest) error {
	base := g.base.Load()
	if base.index == 0 || req.Term < g.raft.CurrentTerm() {
		return nil
	}
	found := base.conflicts(req.PrevLogEntry, req.PrevLogTerm)
	for i := 0; !found && i < len(req.Entries) && req.Entries[i].Index <= base.index; i++ {
		found = base.conflicts(req.Entries[i].Index, req.Entries[i].Term)
	}
	if !found {
		return nil
	}
	g.overruling.Lock() // requests come over several connections
	defer g.overruling.Unlock()
	if fault := g.Fault(); fault != nil {
		return fault
	}
	err := fmt.Errorf("%w: snapshot of entry %d, term %d; the leader of term %d has another entry there", ErrOverruled, base.index, base.term, req.Term)
	g.trip("restore_overruled", errors.Join(err, g.discard(*base, err)))
	return err
}

// conflicts reports whether an entry cannot be of the history that ends in the
// snapshot.
func (l label) conflicts(index, term uint64) bool {
	return index == l.index && term != l.term || index < l.index && term > l.term
}

// discard puts the snapshots from that one on away, and has the log behind them
// dropped when the group is opened again.
func (g *Group[R]) discard(base label, why error) error {
	store, ok := g.cfg.Snapshots.(interface {
		Discard(id string, why error) error
	})
	if !ok {
		return nil // it ends with the process
	}
	list, err := store.(raft.SnapshotStore).List()
	if err != nil {
		return err
	}
	// The note comes last: with it the log is dropped, and the promise is what
	// takes its place.
	for _, note := range []struct {
		key   []byte
		value uint64
	}{{promiseIndexKey, base.index - 1}, {promiseTermKey, base.term}, {overruledKey, base.index}} {
		if err := g.store.SetUint64(note.key, note.value); err != nil {
			return err
		}
	}
	for _, s := range list {
		if s.Index >= base.index {
			err = errors.Join(err, store.Discard(s.ID, why))
		}
	}
	return err
}

// dropOverruled drops entries from the index of a snapshot that was overruled:
// they are of its history. It runs before the library does.
func (g *Group[R]) dropOverruled() error {
	index, err := g.store.GetUint64(overruledKey)
	if err != nil || index == 0 {
		return nil //nolint:nilerr // the stores have an error for a key that is not there
	}
	first, err := g.store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := g.store.LastIndex()
	if err != nil {
		return err
	}
	if from := max(first, index); last >= from && last > 0 {
		if err := g.store.DeleteRange(from, last); err != nil {
			return err
		}
	}
	return g.store.SetUint64(overruledKey, 0)
}

// noteForced notes the snapshot of a restore before it is in force.
func (g *Group[R]) noteForced(index, term uint64) error {
	g.noted.Store(true)
	if err := g.store.SetUint64(forcedTermKey, term); err != nil {
		return err
	}
	return g.store.SetUint64(forcedIndexKey, index)
}

// forgetForced is for a restore that is committed, or replaced by another state.
func (g *Group[R]) forgetForced() {
	if g.noted.CompareAndSwap(true, false) {
		_ = g.store.SetUint64(forcedIndexKey, 0) // its guard stops the group
	}
}

// dropUnfinished gives up a restore in whose midst this member ended. With no entry
// behind the snapshot it has acknowledged nothing of it: the others either have it
// and send it, or went on without it. It runs before the library does.
func (g *Group[R]) dropUnfinished() error {
	index, err := g.store.GetUint64(forcedIndexKey)
	if err != nil || index == 0 {
		return nil //nolint:nilerr // as above
	}
	term, err := g.store.GetUint64(forcedTermKey)
	if err != nil {
		return err
	}
	last, err := g.store.LastIndex()
	if err != nil {
		return err
	}
	list, err := g.snapshots.List()
	if err != nil {
		return err
	}
	if last < index && len(list) > 0 && list[0].Index == index && list[0].Term == term {
		g.log.Warn("a restore was not finished when this node ended; it goes back to what the others have", "entry", index)
		if err := g.discard(label{index: index, term: term}, ErrOverruled); err != nil {
			return err
		}
	}
	return g.store.SetUint64(forcedIndexKey, 0)
}
