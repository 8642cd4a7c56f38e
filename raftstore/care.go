package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/raftstore/member"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

const (
	// tendEvery is how often a node looks whether something about its membership,
	// or the group's it leads, is to be done.
	tendEvery = 100 * time.Millisecond
	// changeTime bounds one change that nobody waits for.
	changeTime = 5 * time.Second
)

// care is the leader's knowledge of the members.
type care struct {
	verdict atomic.Pointer[member.Verdict] // nil where this node does not lead

	// What follows is the goroutine's that tends.
	last     time.Time // when the members were asked
	round    time.Time // when those had answered
	since    time.Time // beginning of this leadership, zero without one
	heard    map[string]time.Time
	nodes    map[string]NodeStatus
	holders  []string  // of grants, before the members were asked
	trouble  string    // logged last
	troubled time.Time // since when there is some; zero without
}

// answered is what a member said in the last round, if it did.
func (c *care) answered(id string) (NodeStatus, bool) {
	n, ok := c.nodes[id]
	return n, ok && c.heard[id].Equal(c.round)
}

// tend keeps this node a member, and, where it leads, the members in order.
func (s *Store) tend(g *groups) {
	timer := time.NewTimer(tendEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.faulted:
			return
		case <-s.ctx.Done():
			return
		}
		s.tendOnce(g)
		timer.Reset(tendEvery)
	}
}

func (s *Store) tendOnce(g *groups) {
	ctx, cancel := context.WithTimeout(s.ctx, changeTime)
	defer cancel()
	var errs []error
	if !s.home.joined.Load() {
		errs = append(errs, s.enrol(ctx, g))
	}
	if g.prefix.Leading() {
		errs = append(errs, s.followCore(ctx, g))
	}
	errs = append(errs, s.careFor(ctx, g))
	s.complain(errors.Join(errs...))
}

// complainAfter is how long a trouble may last before it is one: a node that
// comes in, a leader that has just been elected, need a moment.
const complainAfter = 5 * time.Second

// complain logs a trouble that lasts, once, not ten times a second.
func (s *Store) complain(err error) {
	c := &s.care
	if err == nil || s.ctx.Err() != nil {
		c.trouble, c.troubled = "", time.Time{}
		return
	}
	if c.troubled.IsZero() {
		c.troubled = time.Now()
	}
	if now := err.Error(); now != c.trouble && time.Since(c.troubled) >= complainAfter {
		c.trouble = now
		s.log.Warn("the cluster's members are not in order; trying again", "since", c.troubled, "error", err)
	}
}

// enrol makes this node a member, if it is not one yet.
func (s *Store) enrol(ctx context.Context, g *groups) error {
	m, ok := memberOf(g, s.cfg.NodeID)
	if ok && m.Voter == !s.cfg.Nonvoter {
		if s.dir != nil {
			if err := s.dir.markJoined(); err != nil {
				return err
			}
		}
		s.home.joined.Store(true)
		return nil
	}
	if s.home.leaving.Load() {
		return nil
	}
	// Without members in the log of its own, a node cannot know the leader by
	// Raft; those that it has met do.
	var why error
	for _, n := range s.net.book.Nodes(time.Now().Add(-s.pace.lately)) {
		if !n.GetVoter() || n.GetClusterId() != s.ClusterID() {
			continue
		}
		resp, err := s.askChange(ctx, n.GetId(), n.GetAddr(), &peer.ChangeRequest{
			Group: peer.Group_GROUP_CORE, Change: &peer.ChangeRequest_Put{Put: s.asMember()},
		})
		if err == nil {
			err = errorOf(resp.GetVerdict(), resp.GetDetail())
		}
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
		why = errors.Join(why, err)
	}
	return why
}

// wasRemoved is told that the leader does not count this node as a member.
func (s *Store) wasRemoved(by string) {
	if !s.home.joined.Load() || s.home.leaving.Load() {
		return // it is still coming, or going
	}
	// Also a gateway stops: what it knows may be of a history that the cluster has
	// given up (see Recover), and what was applied cannot be taken back. Its owner
	// opens another store, which begins from nothing.
	s.log.Warn("the leader does not count this node as a member", "leader", by)
	s.trip(ErrRemoved)
}

// followCore makes one step to give the prefix group the members of the core
// group.
func (s *Store) followCore(ctx context.Context, g *groups) error {
	want := membersOf(g.core)
	for i := range want {
		want[i].Addr = s.whereIs(want[i].ID, want[i].Addr)
	}
	step, ok := member.Next(want, membersOf(g.prefix), s.cfg.NodeID)
	if !ok {
		return nil
	}
	index, _ := g.prefix.Members()
	if err := s.carryOut(ctx, g, step, index); err != nil {
		return fmt.Errorf("group prefix: %w", err)
	}
	s.log.Info("the prefix group follows", "member", step.Member.ID, "step", step.Do.String())
	return nil
}

func (s *Store) carryOut(ctx context.Context, g *groups, step member.Step, index uint64) error {
	id, addr := step.Member.ID, step.Member.Addr
	switch step.Do {
	case member.Put:
		if !step.Member.Voter {
			return g.prefix.AddNonvoter(ctx, id, addr, index)
		}
		return s.putPrefixVoter(ctx, g, id, addr, index)
	case member.Demote:
		return g.prefix.Demote(ctx, id, index)
	case member.Remove:
		return g.prefix.Remove(ctx, id, index)
	case member.HandOver:
		return handOverFrom(ctx, g.prefix)
	}
	return nil
}

// putPrefixVoter lets a new voter catch up before it votes: the snapshot of a
// large index takes seconds.
func (s *Store) putPrefixVoter(ctx context.Context, g *groups, id, addr string, index uint64) error {
	for _, m := range membersOf(g.prefix) {
		if m.ID != id {
			continue
		}
		if m.Voter || id == s.cfg.NodeID {
			return g.prefix.AddVoter(ctx, id, addr, index)
		}
		n, err := s.askStatus(ctx, id, addr)
		if err != nil {
			return err
		}
		const near = 1024
		if n.Prefix.Applied+near < g.prefix.CommitIndex() {
			return nil // not yet
		}
		return g.prefix.AddVoter(ctx, id, addr, index)
	}
	return g.prefix.AddNonvoter(ctx, id, addr, index)
}

// careFor is what the leader of the core group does for the members.
func (s *Store) careFor(ctx context.Context, g *groups) error {
	c := &s.care
	now := time.Now()
	if !g.core.Leading() {
		c.verdict.Store(nil)
		c.since = time.Time{}
		return nil
	}
	if c.since.IsZero() {
		c.since, c.last = now, time.Time{}
		c.heard, c.nodes = map[string]time.Time{}, map[string]NodeStatus{}
	}
	if now.Sub(c.last) < s.pace.hello {
		return nil
	}
	c.last = now
	// Before anybody is asked: a run of a node that holds one of these has begun
	// before it answers.
	c.holders = holders(s.machine.Quotas())
	members := membersOf(g.core)
	s.askAll(ctx, members)
	s.judge(g, members)
	return errors.Join(
		s.moveMembers(ctx, g, members),
		s.raiseLevel(ctx, g, members),
		s.keepRecords(ctx, g, members),
		s.removeDead(ctx, g),
	)
}

// askAll asks the members how they are, all at once.
func (s *Store) askAll(ctx context.Context, members []Member) {
	c := &s.care
	answers := make([]NodeStatus, len(members))
	errs := make([]error, len(members))
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() { answers[i], errs[i] = s.askStatus(ctx, m.ID, m.Addr) })
	}
	all.Wait()
	now := time.Now()
	c.round = now
	current := map[string]bool{}
	for i, m := range members {
		current[m.ID] = true
		if errs[i] == nil {
			c.heard[m.ID], c.nodes[m.ID] = now, answers[i]
		}
	}
	for id := range c.nodes {
		if !current[id] {
			delete(c.nodes, id)
		}
	}
	for id := range c.heard {
		if !current[id] {
			delete(c.heard, id)
		}
	}
}

func (s *Store) judge(g *groups, members []Member) {
	c := &s.care
	now := time.Now()
	st := g.core.Status()
	l := member.Leader{ID: s.cfg.NodeID, Term: st.Term, Commit: st.Commit, Heartbeat: s.cfg.Heartbeat, Grace: 5 * s.pace.hello / 2}
	var seen []member.Seen
	for _, m := range members {
		heard, ok := c.heard[m.ID]
		if !ok {
			// Whoever came since is given as long as everybody else.
			heard = c.since
			if n, met, ok := s.net.book.Find(m.ID); ok && n != nil && met.After(heard) {
				heard = met
			}
		}
		n := c.nodes[m.ID]
		seen = append(seen, member.Seen{
			ID: m.ID, Voter: m.Voter, Silent: now.Sub(heard), Term: n.Core.Term, Contact: n.Core.Contact, Applied: n.Core.Applied,
			Fault: n.Fault,
		})
	}
	var before member.Verdict
	if v := c.verdict.Load(); v != nil {
		before = *v
	}
	v := member.Judge(now, before, l, seen, s.Autopilot())
	c.verdict.Store(&v)
}

// moveMembers gives members their new addresses.
func (s *Store) moveMembers(ctx context.Context, g *groups, members []Member) error {
	for _, m := range members {
		addr := s.whereIs(m.ID, m.Addr)
		if addr == m.Addr || addr == "" {
			continue
		}
		if err := s.putHere(ctx, g, &peer.Member{Id: m.ID, Addr: addr, Voter: m.Voter}); err != nil {
			return fmt.Errorf("new address of %s: %w", m.ID, err)
		}
		s.log.Info("a member has moved", "member", m.ID, "from", m.Addr, "to", addr)
	}
	return nil
}

// raiseLevel raises the feature level once every member understands a higher
// one.
func (s *Store) raiseLevel(ctx context.Context, g *groups, members []Member) error {
	var levels []uint32
	for _, m := range members {
		level := uint32(0) // whoever does not answer may be another binary by now
		if n, ok := s.care.answered(m.ID); ok {
			level = n.MaxLevel
		}
		levels = append(levels, level)
	}
	level, ok := member.Level(levels)
	if !ok || level <= s.machine.FeatureLevel() {
		return nil
	}
	if err := s.command(ctx, g, planner.SetFeatureLevel{Level: level}); err != nil {
		return fmt.Errorf("feature level %d: %w", level, err)
	}
	s.log.Info("the cluster's feature level rises", "level", level)
	return nil
}

// command proposes as the leader that this node is.
func (s *Store) command(ctx context.Context, g *groups, cmd planner.Command) error {
	entry, err := s.machine.Encode(NewRequestID(), cmd)
	if err != nil {
		return err
	}
	res, err := g.core.Apply(ctx, entry)
	if err != nil {
		return err
	}
	return res.Err()
}

// recordLevel is the feature level from which members have records.
const recordLevel = 2

// keepRecords makes the members' records what they say of themselves, and
// returns what holders that are gone were granted.
func (s *Store) keepRecords(ctx context.Context, g *groups, members []Member) error {
	if s.machine.FeatureLevel() < recordLevel {
		return nil
	}
	current := map[string]bool{}
	for _, m := range members {
		current[m.ID] = true
		n, ok := s.care.answered(m.ID)
		if !ok || n.Incarnation == "" {
			continue
		}
		wanted := planner.Member{
			ID: m.ID, Role: planner.MemberGateway, PeerAddr: s.whereIs(m.ID, m.Addr), AdminAddr: n.AdminAddr,
			Version: n.Version, MaxLevel: n.MaxLevel, Incarnation: n.Incarnation,
		}
		if m.Voter {
			wanted.Role = planner.MemberPlanner
		}
		have, _ := s.machine.Member(m.ID)
		have.Index = 0
		if have == wanted {
			continue
		}
		if err := s.command(ctx, g, planner.PutMember{Member: wanted}); err != nil {
			return fmt.Errorf("record of %s: %w", m.ID, err)
		}
	}
	for _, r := range s.machine.Members() {
		if current[r.ID] {
			continue
		}
		if err := s.command(ctx, g, planner.DropMember{ID: r.ID, Incarnation: r.Incarnation}); err != nil {
			return fmt.Errorf("record of %s: %w", r.ID, err)
		}
	}
	return s.endHolders(ctx, g, current)
}

// holderSeparator is between a node's id and its incarnation in the name of a
// holder of grants. Ids cannot contain it.
const holderSeparator = "/"

// Holder is the name under which this run of the node takes quota grants: when
// it is gone the leader returns them.
func (s *Store) Holder() string { return s.cfg.NodeID + holderSeparator + s.incarnation }

// holders are the names under which grants are held.
func holders(q quota.Ledger) (names []string) {
	for _, t := range q.Tenants() {
		for _, grant := range t.Value.Grants {
			names = append(names, grant.Holder)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ended are the holders that are gone: their node is no member, or has just
// answered as another run. What it said earlier proves nothing, for it may have
// been started anew since.
func (c *care) ended(current map[string]bool) (gone []string) {
	for _, holder := range c.holders {
		id, incarnation, ok := strings.Cut(holder, holderSeparator)
		n, answered := c.answered(id)
		other := answered && n.Incarnation != "" && n.Incarnation != incarnation
		if ok && (!current[id] || other) {
			gone = append(gone, holder)
		}
	}
	return gone
}

// endHolders returns what was granted to runs of nodes that are gone.
func (s *Store) endHolders(ctx context.Context, g *groups, current map[string]bool) error {
	for _, holder := range s.care.ended(current) {
		if err := s.command(ctx, g, planner.EndHolder{Holder: holder}); err != nil {
			return fmt.Errorf("grants of %s: %w", holder, err)
		}
	}
	return nil
}

// removeDead takes gateways out that are gone, and voters if the settings say
// so.
func (s *Store) removeDead(ctx context.Context, g *groups) error {
	v := s.care.verdict.Load()
	if v == nil {
		return nil
	}
	dead := member.Reap(*v, s.cfg.ReapAfter)
	if id, ok := member.Cleanup(*v, s.Autopilot()); ok {
		dead = append(dead, id)
	}
	for _, id := range dead {
		if err := s.removeHere(ctx, g, id); err != nil {
			return fmt.Errorf("remove %s: %w", id, err)
		}
		s.log.Warn("a member is gone and was removed", "member", id)
	}
	return nil
}
