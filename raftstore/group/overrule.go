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

// overruledKey is the durable index of a snapshot that was overruled, while the
// log behind it is still to be dropped.
var overruledKey = []byte("ym-overruled")

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
	err := fmt.Errorf("%w: snapshot of entry %d, term %d; the leader of term %d has another entry there", ErrOverruled, base.index, base.term, req.Term)
	g.trip("restore_overruled", errors.Join(err, g.discard(base.index, err)))
	return err
}

// conflicts reports whether an entry cannot be of the history that ends in the
// snapshot.
func (l label) conflicts(index, term uint64) bool {
	return index == l.index && term != l.term || index < l.index && term > l.term
}

// discard puts the snapshots from index on away, and has the log behind them
// dropped when the group is opened again.
func (g *Group[R]) discard(index uint64, why error) error {
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
	if err := g.store.SetUint64(overruledKey, index); err != nil {
		return err
	}
	for _, s := range list {
		if s.Index >= index {
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
