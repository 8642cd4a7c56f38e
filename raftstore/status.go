package raftstore

import (
	"context"
	"time"

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
	Version     string `json:"version"`
	MaxLevel    uint32 `json:"max_level"`
	Level       uint32 `json:"level"` // committed feature level, as far as it knows
	PeerAddr    string `json:"peer_addr"`
	AdminAddr   string `json:"admin_addr"`

	Core   GroupStatus `json:"core"`
	Prefix GroupStatus `json:"prefix"`

	SyncMedian time.Duration `json:"sync_median"` // of the disk, measured at the start; 0 in memory
	SyncWorst  time.Duration `json:"sync_worst"`
	NotReady   string        `json:"not_ready,omitempty"` // why, empty when ready
	Fault      string        `json:"fault,omitempty"`     // why it stopped, empty when it runs
}

// Member is one node of the cluster's configuration.
type Member struct {
	ID    string `json:"id"`
	Addr  string `json:"addr"`
	Voter bool   `json:"voter"`
}

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
		NodeID: s.cfg.NodeID, Incarnation: s.incarnation, ClusterID: s.id.ClusterID, Voter: !s.cfg.Nonvoter,
		Version: s.cfg.Version, MaxLevel: s.cfg.MaxLevel, Level: s.machine.FeatureLevel(),
		PeerAddr: s.cfg.Advertise, AdminAddr: s.cfg.AdminAddr,
		SyncMedian: s.sync.Median, SyncWorst: s.sync.Worst,
		Core: groupStatus(s.core.Status(), s.core.Leading()),
	}
	if err := s.Ready(); err != nil {
		out.NotReady = err.Error()
	}
	if err := s.Fault(); err != nil {
		out.Fault = err.Error()
	}
	return out
}

func groupStatus(g group.Status, leading bool) GroupStatus {
	return GroupStatus{
		State: g.State, Leading: leading, Leader: g.Leader, Term: g.Term, Last: g.Last, Commit: g.Commit, Applied: g.Applied,
	}
}

// ClusterStatus asks every member at once, until ctx ends or 3 s have passed. A
// member that does not answer is listed as such.
func (s *Store) ClusterStatus(context.Context) ClusterStatus {
	self := s.Status()
	one := MemberStatus{
		Member: Member{ID: self.NodeID, Addr: self.PeerAddr, Voter: self.Voter}, Answered: true, Node: self, Healthy: self.Core.Leading,
	}
	return ClusterStatus{
		ClusterID: self.ClusterID, Node: self.NodeID, Leader: self.Core.Leader, PrefixLeader: self.Prefix.Leader,
		Level: self.Level, Healthy: one.Healthy, Voters: 1, Members: []MemberStatus{one},
	}
}

// Members is the cluster's configuration as this node knows it, by id, and the
// index of the entry that made it.
func (s *Store) Members() (index uint64, members []Member) {
	return 0, []Member{{ID: s.cfg.NodeID, Addr: s.cfg.Advertise, Voter: !s.cfg.Nonvoter}}
}

// Autopilot is the settings in force.
func (s *Store) Autopilot() member.Settings { return member.Defaults() }

// SetAutopilot replaces them. Errors are those of Propose.
func (s *Store) SetAutopilot(_ context.Context, set member.Settings) error {
	return set.Validate()
}
