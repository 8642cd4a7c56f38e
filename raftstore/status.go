package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/member"
)

// Sample is the digest of a state machine at one index. Nodes with the same log
// have the same digest there.
type Sample struct {
	Index  uint64 `json:"index"`
	Digest string `json:"digest"`
}

// GroupStatus is where a node stands in one Raft group.
type GroupStatus struct {
	State   string        `json:"state"` // follower, candidate, leader, shutdown; empty before the node is in a cluster
	Leading bool          `json:"leading"`
	Leader  string        `json:"leader"` // node id, empty when unknown
	Term    uint64        `json:"term"`
	Last    uint64        `json:"last"`    // last entry in the log
	Commit  uint64        `json:"commit"`  // last entry known to be committed
	Applied uint64        `json:"applied"` // last entry in the state
	Contact time.Duration `json:"contact"` // since the leader was heard; 0 on the leader, -1 never
	Samples []Sample      `json:"samples,omitempty"`
}

// NodeStatus is what one node says of itself.
type NodeStatus struct {
	NodeID      string `json:"node_id"`
	Incarnation string `json:"incarnation"` // new at each start
	ClusterID   string `json:"cluster_id"`
	Voter       bool   `json:"voter"` // what it means to be; see Member.Voter for what it is
	// Founders is how many planners founded the cluster, or voted before it was
	// recovered, if this node was one of them.
	Founders  int    `json:"founders,omitempty"`
	Version   string `json:"version"`
	MaxLevel  uint32 `json:"max_level"`
	Level     uint32 `json:"level"` // committed feature level, as far as it knows
	PeerAddr  string `json:"peer_addr"`
	AdminAddr string `json:"admin_addr"`

	Core   GroupStatus `json:"core"`
	Prefix GroupStatus `json:"prefix"`

	// MissingPolicies are the digests of policies whose bytes the node does not have.
	MissingPolicies []rollout.Digest `json:"missing_policies,omitempty"`

	SyncMedian time.Duration `json:"sync_median"` // of the disk, measured at the start; 0 in memory
	SyncWorst  time.Duration `json:"sync_worst"`
	// Verdict is the leader's judgement of all members, nil elsewhere.
	Verdict  *member.Verdict `json:"verdict,omitempty"`
	NotReady string          `json:"not_ready,omitempty"` // why, empty when ready
	Fault    string          `json:"fault,omitempty"`     // why it stopped, empty when it runs
}

// Member is one node of the cluster's configuration.
type Member = member.Member

// MemberStatus is one member as the node that was asked sees it.
type MemberStatus struct {
	Member
	Answered bool       `json:"answered"`
	Error    string     `json:"error,omitempty"` // why it did not answer
	Node     NodeStatus `json:"node"`            // zero when it did not answer
	Lag      uint64     `json:"lag"`             // core entries behind the leader
	Healthy  bool       `json:"healthy"`
	Reason   string     `json:"reason,omitempty"` // why not healthy
	// Stable is how long it has been as healthy, or not, as it is.
	Stable time.Duration `json:"stable"`
}

// ClusterStatus is the whole cluster at about one moment.
type ClusterStatus struct {
	ClusterID    string         `json:"cluster_id"`
	Node         string         `json:"node"` // who was asked
	Leader       string         `json:"leader"`
	PrefixLeader string         `json:"prefix_leader"`
	Level        uint32         `json:"level"`
	Index        uint64         `json:"index"` // of the configuration
	Healthy      bool           `json:"healthy"`
	Voters       int            `json:"voters"`
	CanLose      int            `json:"can_lose"` // healthy voters that may fail before the quorum is lost
	Members      []MemberStatus `json:"members"`  // by id
}

// Status is where this node stands.
func (s *Store) Status() NodeStatus {
	out := NodeStatus{
		NodeID: s.cfg.NodeID, Incarnation: s.incarnation, ClusterID: s.ClusterID(), Voter: !s.cfg.Nonvoter,
		Version: s.cfg.Version, MaxLevel: s.cfg.MaxLevel, Level: s.machine.FeatureLevel(),
		PeerAddr: s.cfg.Advertise, AdminAddr: s.cfg.AdminAddr, Founders: s.id.Load().founders(),
		SyncMedian: s.sync.Median, SyncWorst: s.sync.Worst, Verdict: s.care.verdict.Load(),
		MissingPolicies: s.MissingBlobs(),
	}
	if g := s.groups.Load(); g != nil {
		out.Core, out.Prefix = groupStatus(g.core), groupStatus(g.prefix)
	}
	if err := s.Ready(); err != nil {
		out.NotReady = err.Error()
	}
	if err := s.Fault(); err != nil {
		out.Fault = err.Error()
	}
	return out
}

// reporter is the part of a group that a status is read from.
type reporter interface {
	Status() group.Status
	Leading() bool
	LastContact() time.Time
	Samples() []group.Sample
}

func groupStatus(g reporter) GroupStatus {
	st := g.Status()
	out := GroupStatus{
		State: strings.ToLower(st.State), Leading: g.Leading(), Leader: st.Leader, Term: st.Term,
		Last: st.Last, Commit: st.Commit, Applied: st.Applied, Contact: -1,
	}
	if heard := g.LastContact(); st.State == stateLeader {
		out.Contact = 0
	} else if !heard.IsZero() {
		out.Contact = max(time.Since(heard), 0)
	}
	for _, x := range g.Samples() {
		out.Samples = append(out.Samples, Sample{x.Index, fmt.Sprintf("%016x", x.Digest)})
	}
	return out
}

// statusTime bounds the questions of a cluster's status.
const statusTime = 1500 * time.Millisecond

// ClusterStatus asks every member at once, until ctx ends or 1.5 s have passed. A
// member that does not answer is listed as such.
func (s *Store) ClusterStatus(ctx context.Context) ClusterStatus {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	out := ClusterStatus{ClusterID: s.ClusterID(), Node: s.cfg.NodeID, Level: s.machine.FeatureLevel()}
	out.Leader, _ = s.Leader()
	out.PrefixLeader, _ = s.PrefixLeader()
	index, members := s.Members()
	out.Index = index
	out.Members = make([]MemberStatus, len(members))
	var all sync.WaitGroup
	for i, m := range members {
		all.Go(func() { out.Members[i] = s.memberStatus(ctx, m) })
	}
	all.Wait()
	out.draw()
	return out
}

func (s *Store) memberStatus(ctx context.Context, m Member) MemberStatus {
	out := MemberStatus{Member: m}
	n, err := s.askStatus(ctx, m.ID, m.Addr)
	if err != nil {
		out.Error, out.Reason = err.Error(), "does not answer"
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			out.Error = "does not answer in time: it hangs, or something between drops packets"
		}
		return out
	}
	out.Answered, out.Node = true, n
	return out
}

// draw draws the conclusions: the leader's, if it answered.
func (c *ClusterStatus) draw() {
	var verdict *member.Verdict
	var commit uint64
	for i := range c.Members {
		m := &c.Members[i]
		commit = max(commit, m.Node.Core.Commit)
		if m.Voter {
			c.Voters++
		}
		if m.Node.Core.Leading {
			verdict = m.Node.Verdict
		}
	}
	for i := range c.Members {
		m := &c.Members[i]
		if m.Answered && commit > m.Node.Core.Applied {
			m.Lag = commit - m.Node.Core.Applied
		}
		if verdict == nil && m.Reason == "" {
			m.Reason = "no leader judges"
		}
	}
	if verdict == nil {
		return
	}
	c.Healthy, c.CanLose = verdict.Healthy, verdict.CanLose
	for _, h := range verdict.Members {
		for i := range c.Members {
			if m := &c.Members[i]; m.ID == h.ID && m.Answered {
				m.Healthy, m.Reason, m.Stable = h.Healthy, h.Reason, time.Since(h.Since)
			}
		}
	}
}

// Members is the cluster's configuration as this node knows it, by id, and the
// index of the entry that made it.
func (s *Store) Members() (index uint64, members []Member) {
	g := s.groups.Load()
	if g == nil {
		return 0, nil
	}
	index, list := g.core.Members()
	for _, m := range list {
		m.Addr = s.whereIs(m.ID, m.Addr)
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b Member) int { return compare(a.ID, b.ID) })
	return index, members
}

// autopilotKey is the register of the autopilot's settings.
const autopilotKey = "autopilot"

// Autopilot is the settings in force.
func (s *Store) Autopilot() member.Settings {
	r, ok := s.machine.Register(autopilotKey)
	if !ok {
		return member.Defaults()
	}
	set, err := member.ParseSettings(r.Value)
	if err != nil { // of a newer release, or written by hand
		return member.Defaults()
	}
	return set
}

// SetAutopilot replaces them. Errors wrap planner.ErrInvalid or are those of
// Propose.
func (s *Store) SetAutopilot(ctx context.Context, set member.Settings) error {
	if err := set.Validate(); err != nil {
		return fmt.Errorf("%w: %w", planner.ErrInvalid, err)
	}
	res, err := s.Propose(ctx, planner.SetRegister{Key: autopilotKey, Value: set.Encode()})
	if err != nil {
		return err
	}
	return res.Err()
}
