package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/raftstore/member"
)

var (
	// ErrMembersChanged means that the members are no longer those that a change
	// was based on. Look at them again.
	ErrMembersChanged = errors.New("members have changed meanwhile")
	// ErrChangeRefused means that a change of members is not possible: it would
	// leave no voter, or give a voter's address to another.
	ErrChangeRefused = errors.New("change of members refused")
	// ErrNoSuchMember means that no member has the id.
	ErrNoSuchMember = errors.New("no such member")
)

// Server is a node by its stable name and where to reach it. raftstore writes
// it to disk: the JSON names are those of its files.
type Server struct {
	ID   string `json:"id"`
	Addr string `json:"addr"` // of its peer port
}

func configuration(servers []Server) raft.Configuration {
	var c raft.Configuration
	for _, s := range servers {
		c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Addr)})
	}
	return c
}

// Members lists the members as this node knows them, in the order they came,
// and the entry that made them so: pass it to the changes below, which then fail
// if the members have changed since. Members may be seen here before they are
// committed; the index is then still that of those before.
func (g *Group[R]) Members() (index uint64, members []member.Member) {
	// Loaded first: members that are newer than the index make a change fail, and
	// an index that is newer than the members would let it through.
	index = g.membersIndex.Load()
	return index, membersOf(g.raft.GetConfiguration().Configuration())
}

func membersOf(c raft.Configuration) []member.Member {
	out := make([]member.Member, 0, len(c.Servers))
	for _, s := range c.Servers {
		out = append(out, member.Member{ID: string(s.ID), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return out
}

func voters(c raft.Configuration) (n int) {
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

// AddVoter adds a voter, gives a non-voter a vote, or gives a member a new
// address, if prevIndex is 0 or still the index of Members. It returns when the
// change is committed. Only the leader can. Errors wrap those of Apply,
// ErrMembersChanged or ErrChangeRefused.
func (g *Group[R]) AddVoter(ctx context.Context, id, addr string, prevIndex uint64) error {
	return g.change(ctx, "add voter "+id, prevIndex, func(wait time.Duration) raft.Future {
		return g.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(addr), prevIndex, wait)
	})
}

// AddNonvoter adds a member without a vote, or gives one a new address. A voter
// keeps its vote: see Demote. Otherwise it is like AddVoter.
func (g *Group[R]) AddNonvoter(ctx context.Context, id, addr string, prevIndex uint64) error {
	return g.change(ctx, "add non-voter "+id, prevIndex, func(wait time.Duration) raft.Future {
		return g.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), prevIndex, wait)
	})
}

// Demote takes a voter's vote. Otherwise it is like AddVoter.
func (g *Group[R]) Demote(ctx context.Context, id string, prevIndex uint64) error {
	return g.change(ctx, "demote "+id, prevIndex, func(wait time.Duration) raft.Future {
		return g.raft.DemoteVoter(raft.ServerID(id), prevIndex, wait)
	})
}

// Remove takes a member out; one that is none is no error. A leader that removes
// itself steps down when the change is committed. Otherwise it is like AddVoter.
func (g *Group[R]) Remove(ctx context.Context, id string, prevIndex uint64) error {
	return g.change(ctx, "remove "+id, prevIndex, func(wait time.Duration) raft.Future {
		return g.raft.RemoveServer(raft.ServerID(id), prevIndex, wait)
	})
}

func (g *Group[R]) change(ctx context.Context, what string, prevIndex uint64, start func(time.Duration) raft.Future) error {
	if g.lowDisk.Load() {
		return ErrLowDisk
	}
	err := g.do(ctx, func() error { return start(g.enqueue(ctx)).Error() })
	if err != nil {
		return fmt.Errorf("%s: %w", what, g.changeError(err, prevIndex))
	}
	return nil
}

// changeError finds out what the library says only in words.
func (g *Group[R]) changeError(err error, prevIndex uint64) error {
	for _, known := range []error{
		raft.ErrNotLeader, raft.ErrEnqueueTimeout, raft.ErrLeadershipTransferInProgress, raft.ErrLeadershipLost,
		raft.ErrRaftShutdown, raft.ErrAbortedByRestore, ErrAmbiguous, ErrBusy, ErrClosed, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return g.proposeError(err)
		}
	}
	if g.store.Fault() != nil {
		return g.proposeError(err)
	}
	if prevIndex > 0 && strings.Contains(err.Error(), "configuration changed since") {
		return fmt.Errorf("%w: %w", ErrMembersChanged, err)
	}
	return fmt.Errorf("%w: %w", ErrChangeRefused, err)
}

// Transfer hands leadership to the voter, or to the one that is furthest if id
// is empty, and returns when it has been given up here. Only the leader can. The
// group refuses proposals meanwhile. Errors wrap ErrNotLeader, ErrNoSuchMember,
// ErrTransferring, ErrAmbiguous or ErrClosed.
func (g *Group[R]) Transfer(ctx context.Context, id string) error {
	start := func() raft.Future { return g.raft.LeadershipTransfer() }
	if id != "" {
		addr, ok := g.addressOf(id)
		if !ok {
			return fmt.Errorf("transfer leadership to %s: %w", id, ErrNoSuchMember)
		}
		start = func() raft.Future {
			return g.raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(addr))
		}
	}
	if g.raft.State() != raft.Leader {
		return fmt.Errorf("transfer leadership: %w", ErrNotLeader)
	}
	before := g.handing.Swap(g.raft.CurrentTerm())
	if err := g.do(ctx, func() error { return start().Error() }); err != nil {
		g.handing.Store(before)
		if errors.Is(err, raft.ErrEnqueueTimeout) { // its queue for transfers has room for one
			return fmt.Errorf("transfer leadership: %w", ErrTransferring)
		}
		return fmt.Errorf("transfer leadership: %w", g.proposeError(err))
	}
	return nil
}

func (g *Group[R]) addressOf(id string) (string, bool) {
	_, members := g.Members()
	for _, m := range members {
		if m.ID == id && m.Voter {
			return m.Addr, true
		}
	}
	return "", false
}

// Leader is the leader as this node knows it, empty when it knows none, and this
// node's term.
func (g *Group[R]) Leader() (id, addr string, term uint64) {
	term = g.raft.CurrentTerm()
	a, i := g.raft.LeaderWithID()
	return string(i), string(a), term
}
