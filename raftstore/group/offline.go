package group

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/member"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// Inspection is what the storage of a member that does not run contains.
type Inspection struct {
	// Members as this node last knew them, and the entry that made them so; that
	// entry need not have been committed.
	Members      []member.Member
	MembersIndex uint64
	Term         uint64 // the newest this node has seen
	// First and Last are the entries of the log, 0 without any; LastTerm is the
	// term of the last one, or of the newest snapshot without any.
	First, Last, LastTerm uint64
	Snapshots             []SnapshotMeta // newest first
}

// Inspect reads a member's storage and changes nothing. Errors are the storage's.
func Inspect(store wal.Store, snapshots raft.SnapshotStore) (Inspection, error) {
	out, err := inspect(store, snapshots)
	if err != nil {
		return Inspection{}, fmt.Errorf("inspect: %w", err)
	}
	return out, nil
}

func inspect(store wal.Store, snapshots raft.SnapshotStore) (out Inspection, err error) {
	if out.Term, err = currentTerm(store); err != nil {
		return out, err
	}
	list, err := snapshots.List()
	if err != nil {
		return out, err
	}
	for _, m := range list {
		out.Snapshots = append(out.Snapshots, metaOf(m))
	}
	if len(list) > 0 {
		out.LastTerm = list[0].Term
		out.MembersIndex, out.Members = list[0].ConfigurationIndex, out.Snapshots[0].Members
	}
	return out, out.readLog(store)
}

// currentTerm is 0 when none was ever stored.
func currentTerm(store raft.StableStore) (uint64, error) {
	term, err := store.GetUint64([]byte("CurrentTerm"))
	if err != nil && err.Error() == "not found" { // the library knows it by this text too
		return 0, nil
	}
	return term, err
}

func (in *Inspection) readLog(store raft.LogStore) (err error) {
	if in.First, err = store.FirstIndex(); err != nil {
		return err
	}
	if in.Last, err = store.LastIndex(); err != nil {
		return err
	}
	for i := max(in.First, 1); i <= in.Last; i++ {
		var l raft.Log
		if err := store.GetLog(i, &l); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		in.LastTerm = l.Term
		if l.Type == raft.LogConfiguration && i > in.MembersIndex {
			in.MembersIndex, in.Members = i, membersOf(raft.DecodeConfiguration(l.Data))
		}
	}
	return nil
}

// RecoverConfig is what Recover works on.
type RecoverConfig struct {
	NodeID    string
	Servers   []Server // the voters from now on, this node usually the only one
	Store     wal.Store
	Snapshots raft.SnapshotStore
	Logger    *slog.Logger // nil discards
}

// Recover gives the storage of a member that does not run other members, when a
// majority of the old ones is gone for good. Everything in its log counts as
// committed from then on; a snapshot of it takes the log's place. On each server
// that is to go on it must be run with the same servers, or on one whose peers
// then join it with empty directories. fsm is used up. The storage stays the
// caller's. Errors wrap ErrCannotApply or are the storage's.
func Recover[R any](cfg RecoverConfig, fsm FSM[R]) error {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	var fault error
	all := Config{NodeID: cfg.NodeID, Registry: &measure.Registry{}}.withDefaults()
	a := &adapter[R]{
		fsm: fsm, samples: &sampler{every: 1}, events: silence(),
		fault: func(_ string, err error) { fault = errors.Join(fault, err) },
	}
	_, trans := raft.NewInmemTransport("")
	err := raft.RecoverCluster(all.library(cfg.Logger), a, cfg.Store, cfg.Store, labelling{cfg.Snapshots, &a.forced, a.events.unwritten, nil}, trans, configuration(cfg.Servers))
	if err := errors.Join(fault, err); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := clearPromise(cfg.Store); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	return nil
}

// silence is events that nobody listens to.
func silence() events {
	return events{
		configured: func(uint64, raft.Configuration) {},
		restored:   func(uint64, label, time.Duration) {}, persisted: func(uint64, int64, time.Duration) {}, newest: func() uint64 { return 0 },
		unwritten: func(error) {},
	}
}
