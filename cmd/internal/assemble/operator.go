package assemble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/member"
	"github.com/yardmaster/yardmaster/raftstore/wal"
	"github.com/yardmaster/yardmaster/server/admin"
)

// operator is a store as the admin API sees it: the one that takes part in the
// cluster now. dir is the data directory of a planner, if it has one.
type operator struct {
	store func() *raftstore.Store
	dir   string
}

// told is a store's error under the name that the admin API has for it.
type told struct{ err, as error }

// Error is the store's sentence.
func (t *told) Error() string { return Plain(t.err.Error()) }

// Unwrap is both names.
func (t *told) Unwrap() []error { return []error{t.as, t.err} }

// tell names an error as the admin API does.
func tell(err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []struct{ from, as error }{
		{raftstore.ErrHalfDone, admin.ErrUncertain},
		{raftstore.ErrAmbiguous, admin.ErrUncertain},
		{raftstore.ErrNoLeader, admin.ErrNoLeader},
		{raftstore.ErrNotLeader, admin.ErrNoLeader},
		{raftstore.ErrNotReady, admin.ErrNoLeader},
		{raftstore.ErrUnknownMember, admin.ErrUnknownMember},
		{raftstore.ErrRefused, admin.ErrRefused},
		{raftstore.ErrBusy, admin.ErrBusy},
		{raftstore.ErrTooFewHold, admin.ErrBusy},
		{raftstore.ErrNoBlob, admin.ErrBusy},
		{planner.ErrInvalid, admin.ErrInvalid},
		{planner.ErrConflict, admin.ErrConflict},
		{planner.ErrUnknownTenant, admin.ErrUnknownTenant},
		{planner.ErrRefused, admin.ErrRefused},
		{planner.ErrTaken, admin.ErrRefused},
		{planner.ErrStaleEpoch, admin.ErrConflict},
		{planner.ErrStaleWindow, admin.ErrConflict},
		{planner.ErrClock, admin.ErrRefused},
		{planner.ErrUnknownWorker, admin.ErrRefused},
		{planner.ErrLevel, admin.ErrRefused},
		{planner.ErrFull, admin.ErrRefused},
	} {
		if errors.Is(err, known.from) {
			return &told{err, known.as}
		}
	}
	return err
}

// Status implements admin.Cluster.
func (o operator) Status(ctx context.Context) admin.ClusterStatus {
	s := o.store().ClusterStatus(ctx)
	out := statusOf(&s, o.store().Autopilot().MinVoters)
	if since, why := o.store().Stranded(); why != nil {
		out.Healthy = false
		out.Problems = append(out.Problems, fmt.Sprintf("for %v only planners of another cluster answer: %s", time.Since(since).Round(time.Second), stranger(why)))
	}
	// A node that is in no cluster yet is asked what it waits for.
	if err := o.store().Ready(); err != nil && s.ClusterID == "" {
		out.Healthy, out.Problems = false, append(out.Problems, Plain(err.Error()))
	}
	return out
}

// Peers implements admin.Cluster.
func (o operator) Peers() admin.Peers {
	index, members := o.store().Members()
	out := admin.Peers{Node: o.store().NodeID(), Index: index, Peers: []admin.Peer{}}
	for _, m := range members {
		out.Peers = append(out.Peers, admin.Peer{ID: m.ID, Address: m.Addr, Voter: m.Voter})
	}
	return out
}

// Add implements admin.Cluster.
func (o operator) Add(ctx context.Context, p admin.Peer) error {
	if p.ID == "" || p.Address == "" {
		return fmt.Errorf("%w: a member has an id and the address of its peer port", admin.ErrInvalid)
	}
	return tell(o.store().AddMember(ctx, raftstore.Member{ID: p.ID, Addr: p.Address, Voter: p.Voter}))
}

// Remove implements admin.Cluster.
func (o operator) Remove(ctx context.Context, id string) error {
	return tell(o.store().RemoveMember(ctx, id))
}

// Transfer implements admin.Cluster.
func (o operator) Transfer(ctx context.Context, id string) (leader string, err error) {
	before, _ := o.store().Leader()
	if err := o.store().Transfer(ctx, id); err != nil {
		return "", tell(err)
	}
	return o.newLeader(ctx, func(now string) bool { return now == id || id == "" && now != before })
}

// StepDown implements admin.Cluster.
func (o operator) StepDown(ctx context.Context) (leader string, err error) {
	own := o.store().NodeID()
	if !o.store().Leading() && !o.store().LeadingPrefix() {
		if leader, _ := o.store().Leader(); leader != "" {
			return "", fmt.Errorf("%w: this node, %s, does not lead: %s does", admin.ErrRefused, own, leader)
		}
		return "", fmt.Errorf("%w: nobody leads now", admin.ErrNoLeader)
	}
	if err := o.store().StepDown(ctx); err != nil {
		return "", tell(err)
	}
	return o.newLeader(ctx, func(now string) bool { return now != own })
}

// newLeader waits until this node has heard who leads.
func (o operator) newLeader(ctx context.Context, right func(string) bool) (string, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if id, _ := o.store().Leader(); id != "" && right(id) {
			return id, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: leadership was handed on, and nobody has taken it up yet", admin.ErrUncertain)
		case <-tick.C:
		}
	}
}

// Save implements admin.Cluster.
func (o operator) Save(ctx context.Context, w io.Writer) error {
	_, err := o.store().SaveSnapshot(ctx, w)
	return tell(err)
}

// Restore implements admin.Cluster.
func (o operator) Restore(ctx context.Context, saved io.Reader) error {
	_, err := o.store().RestoreSnapshot(ctx, saved)
	return tell(err)
}

// Room implements admin.Cluster. A state that is restored is on the disk twice
// until it is in force: as it came, and as the snapshot of its groups. What is
// left besides keeps the log alive.
func (o operator) Room() (bytes int64, known bool) {
	if o.dir == "" {
		return 0, false
	}
	free, err := wal.FreeBytes(o.dir)
	if err != nil {
		return 0, false // the restoration meets the fault itself
	}
	return (int64(min(free, 1<<62)) - diskReserve) / 2, true
}

// diskReserve is what a restoration leaves free: twice as much as the log needs to
// go on.
const diskReserve = 128 << 20

// Autopilot implements admin.Cluster.
func (o operator) Autopilot() admin.Autopilot {
	s := o.store().Autopilot()
	return admin.Autopilot{
		CleanupDeadVoters: s.CleanupDeadVoters, DeadAfterMS: s.DeadAfter.Milliseconds(), MinVoters: s.MinVoters,
		MaxLag: s.MaxLag, StableAfterMS: s.StableAfter.Milliseconds(),
	}
}

// SetAutopilot implements admin.Cluster.
func (o operator) SetAutopilot(ctx context.Context, a admin.Autopilot) error {
	s := member.Settings{
		CleanupDeadVoters: a.CleanupDeadVoters, DeadAfter: time.Duration(a.DeadAfterMS) * time.Millisecond, MinVoters: a.MinVoters,
		MaxLag: a.MaxLag, StableAfter: time.Duration(a.StableAfterMS) * time.Millisecond,
	}
	if err := s.Validate(); err != nil {
		return &told{err, admin.ErrInvalid}
	}
	return tell(o.store().SetAutopilot(ctx, s))
}
