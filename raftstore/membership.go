package raftstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// AddMember gives a node another address or role, or a place among the members
// if it runs. A node that is started with Join adds itself, so this is for
// changing minds. Errors wrap ErrRefused, ErrNoLeader, ErrAmbiguous or ErrHalfDone.
func (s *Store) AddMember(ctx context.Context, m Member) error {
	return s.change(ctx, &peer.ChangeRequest{
		Group: peer.Group_GROUP_CORE, Change: &peer.ChangeRequest_Put{Put: &peer.Member{Id: m.ID, Addr: m.Addr, Voter: m.Voter}},
	})
}

// RemoveMember takes a node out of the cluster, dead or alive. One that runs has
// the fault ErrRemoved then; to join again a planner has to start with an empty
// directory. Errors wrap ErrUnknownMember, ErrRefused, ErrNoLeader, ErrAmbiguous
// or ErrHalfDone.
func (s *Store) RemoveMember(ctx context.Context, id string) error {
	err := s.change(ctx, &peer.ChangeRequest{Group: peer.Group_GROUP_CORE, Change: &peer.ChangeRequest_Remove{Remove: id}})
	if (errors.Is(err, ErrAmbiguous) || errors.Is(err, ErrHalfDone)) && errors.Is(err, ErrUnknownMember) {
		return nil // an earlier attempt has removed it
	}
	return err
}

// Leave takes this node out of the cluster, for ever: a gateway that ends, a
// planner that is not coming back. Close follows.
func (s *Store) Leave(ctx context.Context) error {
	s.home.leaving.Store(true)
	if s.groups.Load() == nil {
		return nil
	}
	err := s.RemoveMember(ctx, s.cfg.NodeID)
	if errors.Is(err, ErrUnknownMember) {
		return nil
	}
	return err
}

// Transfer hands the leadership of both groups to a voter, or to the fittest
// when id is empty, and returns when it has been given up by whoever had it.
// Errors wrap ErrUnknownMember, ErrRefused, ErrNoLeader or ErrAmbiguous; beside
// ErrHalfDone they are of the prefix group alone.
func (s *Store) Transfer(ctx context.Context, id string) error {
	transfer := &peer.ChangeRequest_Transfer{Transfer: &peer.Transfer{To: id}}
	if err := s.change(ctx, &peer.ChangeRequest{Group: peer.Group_GROUP_CORE, Change: transfer}); err != nil {
		return err
	}
	return halfDone(s.change(ctx, &peer.ChangeRequest{Group: peer.Group_GROUP_PREFIX, Change: transfer}))
}

// StepDown hands on whatever leadership this node has. It is nil when it has
// none.
func (s *Store) StepDown(ctx context.Context) error {
	g := s.groups.Load()
	if g == nil {
		return s.notInCluster()
	}
	var errs []error
	for _, l := range []changer{g.core, g.prefix} {
		if l.Status().State == stateLeader {
			errs = append(errs, handOverFrom(ctx, l))
		}
	}
	return errors.Join(errs...)
}

// changer is the part of a group that changes its members.
type changer interface {
	waiter
	Status() group.Status
	Members() (index uint64, members []Member)
	AddVoter(ctx context.Context, id, addr string, prevIndex uint64) error
	AddNonvoter(ctx context.Context, id, addr string, prevIndex uint64) error
	Demote(ctx context.Context, id string, prevIndex uint64) error
	Remove(ctx context.Context, id string, prevIndex uint64) error
	Transfer(ctx context.Context, id string) error
}

func (g *groups) changer(which peer.Group) changer {
	if which == peer.Group_GROUP_PREFIX {
		return g.prefix
	}
	return g.core
}

func (s *Store) bell(which peer.Group) *bell {
	if which == peer.Group_GROUP_PREFIX {
		return &s.bells.prefix
	}
	return &s.bells.core
}

// handOverFrom gives up a leadership. A single voter has nobody to give it to.
func handOverFrom(ctx context.Context, l changer) error {
	_, members := l.Members()
	if countVoters(members) < 2 {
		return fmt.Errorf("%w: there is no other voter", ErrRefused)
	}
	if err := l.Transfer(ctx, ""); err != nil && !errors.Is(err, ErrNotLeader) {
		return err
	}
	return nil
}

func countVoters(members []Member) (n int) {
	for _, m := range members {
		if m.Voter {
			n++
		}
	}
	return n
}

// change has the group's leader make a change. Every change may be repeated.
func (s *Store) change(ctx context.Context, req *peer.ChangeRequest) error {
	g := s.groups.Load()
	if g == nil {
		return s.notInCluster()
	}
	if s.net == nil {
		return fmt.Errorf("%w: this planner has no port for peers", ErrRefused)
	}
	l := g.changer(req.GetGroup())
	return s.persist(ctx, l, s.bell(req.GetGroup()), func(ctx context.Context) error {
		if l.Leading() {
			return s.changeHere(ctx, s.cfg.NodeID, req)
		}
		id, addr, _ := l.Leader()
		if id == "" || id == s.cfg.NodeID {
			return ErrNoLeader
		}
		resp, err := s.askChange(ctx, id, s.whereIs(id, addr), req)
		if err != nil {
			return err
		}
		return errorOf(resp.GetVerdict(), resp.GetDetail())
	})
}

// askChange asks a node for a change. Errors wrap peer.ErrUnreachable, and
// ErrNoLeader, when it was not asked, else ErrAmbiguous.
func (s *Store) askChange(ctx context.Context, id, addr string, req *peer.ChangeRequest) (*peer.ChangeResponse, error) {
	client, err := s.net.pool.Client(ctx, id, addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	resp, err := client.Change(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("%w: asked %s: %w", ErrAmbiguous, id, err)
	}
	return resp, nil
}

// changeHere makes a change, if this node leads the group.
func (s *Store) changeHere(ctx context.Context, caller string, req *peer.ChangeRequest) error {
	g := s.groups.Load()
	if g == nil {
		return s.notInCluster()
	}
	l := g.changer(req.GetGroup())
	if !s.awaitLead(ctx, l, s.bell(req.GetGroup())) {
		return ErrNotLeader
	}
	switch c := req.GetChange().(type) {
	case *peer.ChangeRequest_Transfer:
		return s.transferHere(ctx, g, req.GetGroup(), c.Transfer.GetTo())
	case *peer.ChangeRequest_Remove:
		if req.GetGroup() == peer.Group_GROUP_PREFIX {
			return l.Remove(ctx, c.Remove, 0)
		}
		return s.retire(ctx, g, c.Remove, func() error { return s.removeAnyhow(ctx, g, c.Remove) })
	case *peer.ChangeRequest_Put:
		if c.Put.GetVoter() {
			return s.putHere(ctx, g, c.Put)
		}
		return s.retire(ctx, g, c.Put.GetId(), func() error { return s.putHere(ctx, g, c.Put) })
	case *peer.ChangeRequest_Admit:
		return s.admitHere(ctx, g, caller, c.Admit)
	}
	return fmt.Errorf("%w: a change of a newer release", ErrRefused)
}

// quorate is an error if the voters would have no quorum of answering ones.
func (s *Store) quorate(members []Member) error {
	voters, alive := 0, 0
	for _, m := range members {
		if !m.Voter {
			continue
		}
		voters++
		if _, met, ok := s.net.book.Find(m.ID); m.ID == s.cfg.NodeID || (ok && time.Since(met) < s.pace.lately) {
			alive++
		}
	}
	switch {
	case voters == 0:
		return fmt.Errorf("%w: no voter would be left", ErrRefused)
	case alive <= voters/2:
		return fmt.Errorf("%w: of %d voters that would be left only %d answer", ErrRefused, voters, alive)
	}
	return nil
}

func without(members []Member, id string) []Member {
	var out []Member
	for _, m := range members {
		if m.ID != id {
			out = append(out, m)
		}
	}
	return out
}

// removeAnyhow is removeHere, again and again while others change the members
// meanwhile: whoever leaves, leaves, whoever comes or goes beside it. To add a
// member is not repeated here: it may have asked to be removed meanwhile.
func (s *Store) removeAnyhow(ctx context.Context, g *groups, id string) error {
	for {
		err := s.removeHere(ctx, g, id)
		if !errors.Is(err, group.ErrMembersChanged) || !s.sleep(ctx, firstRetry) {
			return err
		}
	}
}

// removeHere takes a member out of the core group; the prefix group follows. A
// leader that is to go hands over first, and its successor removes it.
func (s *Store) removeHere(ctx context.Context, g *groups, id string) error {
	index, members := g.core.Members()
	m, ok := memberOf(g, id)
	if !ok {
		return fmt.Errorf("%w: %q", ErrUnknownMember, id)
	}
	if m.Voter {
		if err := s.quorate(without(members, id)); err != nil {
			return err
		}
	}
	if id == s.cfg.NodeID {
		if err := handOverFrom(ctx, g.core); err != nil {
			return err
		}
		return ErrNotLeader
	}
	s.unseat(ctx, g, id, m.Addr)
	return g.core.Remove(ctx, id, index)
}

// unseat has a node that is to go hand over the prefix group, if it leads that.
// One that does not answer loses it anyhow.
func (s *Store) unseat(ctx context.Context, g *groups, id, addr string) {
	if leads, _, _ := g.prefix.Leader(); leads != id {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOver)
	defer cancel()
	req := &peer.ChangeRequest{Group: peer.Group_GROUP_PREFIX, Change: &peer.ChangeRequest_Transfer{Transfer: &peer.Transfer{}}}
	if _, err := s.askChange(ctx, id, s.whereIs(id, addr), req); err != nil {
		s.log.Info("a member that leads the prefix group is removed without handing over", "member", id, "error", err)
	}
}

// putHere adds a member, or gives it another address or role.
func (s *Store) putHere(ctx context.Context, g *groups, m *peer.Member) error {
	index, members := g.core.Members()
	old, known := memberOf(g, m.GetId())
	node, met, spoken := s.net.book.Find(m.GetId())
	self := m.GetId() == s.cfg.NodeID
	switch {
	case fleet.CheckNodeID(m.GetId()) != nil || m.GetAddr() == "":
		return fmt.Errorf("%w: no node id or no address", ErrRefused)
	case known && old.Voter == m.GetVoter() && old.Addr == m.GetAddr():
		return nil
	case !known && (!spoken || time.Since(met) > s.pace.lately || node.GetClusterId() == ""):
		return fmt.Errorf("%w: %s does not answer: start it with the address of a member to join, and it comes in by itself", ErrRefused, m.GetId())
	case spoken && !self && node.GetMaxLevel() < s.machine.FeatureLevel():
		return tooOld(node, s.machine.FeatureLevel())
	case m.GetVoter() && !self && spoken && !node.GetVoter():
		return fmt.Errorf("%w: %s is a gateway, which keeps no log on disk and cannot vote", ErrRefused, m.GetId())
	}
	if err := s.clearAddress(ctx, g, m); err != nil {
		return err
	}
	if known && old.Voter && !m.GetVoter() {
		if err := s.quorate(without(members, m.GetId())); err != nil {
			return err
		}
		if self {
			return errors.Join(handOverFrom(ctx, g.core), ErrNotLeader)
		}
		return g.core.Demote(ctx, m.GetId(), index)
	}
	if !m.GetVoter() {
		return g.core.AddNonvoter(ctx, m.GetId(), m.GetAddr(), index)
	}
	if !known || !old.Voter {
		// A voter that lags holds up every commit until it has caught up.
		if err := g.core.AddNonvoter(ctx, m.GetId(), m.GetAddr(), index); err != nil {
			return err
		}
		if err := s.awaitMember(ctx, g, m); err != nil {
			return err
		}
		return halfDone(g.core.AddVoter(ctx, m.GetId(), m.GetAddr(), 0))
	}
	return g.core.AddVoter(ctx, m.GetId(), m.GetAddr(), index)
}

// clearAddress takes a non-voter out that stands in the configuration with the
// address of another: the port's certificate says whose it is now.
func (s *Store) clearAddress(ctx context.Context, g *groups, m *peer.Member) error {
	_, members := g.core.Members()
	for _, other := range members {
		if other.Addr != m.GetAddr() || other.ID == m.GetId() {
			continue
		}
		if other.Voter {
			return fmt.Errorf("%w: %s stands with the address %s", ErrRefused, other.ID, other.Addr)
		}
		if err := g.core.Remove(ctx, other.ID, 0); err != nil {
			return err
		}
	}
	return nil
}

// awaitMember waits until a new member, which has no vote yet, has what is
// committed.
func (s *Store) awaitMember(ctx context.Context, g *groups, m *peer.Member) error {
	target := g.core.CommitIndex()
	for {
		node, err := s.askStatus(ctx, m.GetId(), m.GetAddr())
		if err == nil && node.Core.Last >= target {
			return nil
		}
		if !s.sleep(ctx, retryPause) {
			return fmt.Errorf("%w: %s has not caught up yet, and gets its vote when this is repeated", ErrHalfDone, m.GetId())
		}
	}
}

// admitHere lets a node in that has no state. If a voter of that id is a member
// it has lost its disk, and what it voted for with it: it must not be one of
// them again before they have agreed that it was gone.
func (s *Store) admitHere(ctx context.Context, g *groups, caller string, m *peer.Member) error {
	node, _, met := s.net.book.Find(caller)
	if caller != m.GetId() || !met {
		return fmt.Errorf("%w: %q asks for %q, and has not said hello", ErrRefused, caller, m.GetId())
	}
	if node.GetClusterId() != "" {
		return fmt.Errorf("%w: %q is in a cluster already", ErrRefused, caller)
	}
	if node.GetMaxLevel() < s.machine.FeatureLevel() {
		return tooOld(node, s.machine.FeatureLevel())
	}
	index, members := g.core.Members()
	if old, ok := memberOf(g, caller); ok && old.Voter {
		if err := s.quorate(without(members, caller)); err != nil {
			return err
		}
		s.log.Warn("a voter comes back without its data; it is removed and joins anew", "member", caller)
		if err := g.core.Remove(ctx, caller, index); err != nil {
			return err
		}
	}
	for _, old := range membersOf(g.prefix) {
		if old.ID == caller && old.Voter {
			return halfDone(s.change(ctx, &peer.ChangeRequest{Group: peer.Group_GROUP_PREFIX, Change: &peer.ChangeRequest_Remove{Remove: caller}}))
		}
	}
	return nil
}

func tooOld(n *peer.Node, level uint32) error {
	return fmt.Errorf("%w: %s is of release %s, which knows feature level %d at most, and the cluster is at %d: upgrade it first",
		ErrRefused, n.GetId(), n.GetVersion(), n.GetMaxLevel(), level)
}

func membersOf(l changer) []Member {
	_, members := l.Members()
	return members
}

// askStatus asks a member how it is.
func (s *Store) askStatus(ctx context.Context, id, addr string) (NodeStatus, error) {
	if id == s.cfg.NodeID {
		return s.Status(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.pace.answer)
	defer cancel()
	client, err := s.net.pool.Client(ctx, id, s.whereIs(id, addr))
	if err != nil {
		return NodeStatus{}, err
	}
	resp, err := client.Status(ctx, &peer.StatusRequest{})
	if err != nil {
		return NodeStatus{}, fmt.Errorf("status of %s: %w", id, err)
	}
	var n NodeStatus
	if err := json.Unmarshal(resp.GetJson(), &n); err != nil {
		return NodeStatus{}, fmt.Errorf("status of %s: %w", id, err)
	}
	return n, nil
}
