package admin

import (
	"context"
	"errors"
	"io"
)

// Why a change or a question could not be carried out, as a [Cluster] says it
// with %w. Any other error is told as code internal.
var (
	// ErrNoLeader means that no leader could be reached in time. Nothing was
	// changed. Code no_leader, status 503.
	ErrNoLeader = errors.New("the cluster has no leader")
	// ErrUnknownMember means that no member has that id. Code not_found, status 404.
	ErrUnknownMember = errors.New("no such member")
	// ErrRefused means that the change would do harm, or is not possible now; the
	// text says why. Code refused, status 409.
	ErrRefused = errors.New("refused")
	// ErrInvalid means that the request does not make sense. Code invalid, status
	// 400.
	ErrInvalid = errors.New("invalid")
	// ErrConflict means that another changed it since the client looked: look again.
	// Code conflict, status 409.
	ErrConflict = errors.New("changed by another meanwhile")
	// ErrUnknownTenant means that the tenant has no quota. Code not_found, status 404.
	ErrUnknownTenant = errors.New("tenant has no quota")
	// ErrBusy means that the cluster, or the node, could not do it just now, for no fault
	// of the request's: trying again is harmless. Code busy, status 503, with
	// Retry-After.
	ErrBusy = errors.New("could not be done just now")
	// ErrUncertain means that the change may or may not have come into force: look
	// at the status before trying again. Code uncertain, status 502.
	ErrUncertain = errors.New("the outcome is not known: look at the status before trying again")
)

// Cluster is the replicated state as operators see and change it, from any of
// its members: what only the leader can do is handed on to it. All methods
// respect ctx's deadline.
type Cluster interface {
	// Status asks every member. One that does not answer in time is listed with
	// the reason.
	Status(ctx context.Context) ClusterStatus
	// Peers is the membership as this node knows it, from memory.
	Peers() Peers
	// Add makes a node a member, which then is told to come in; a member of that
	// id gets the new address and role.
	Add(ctx context.Context, p Peer) error
	// Remove takes a member out. It may be dead.
	Remove(ctx context.Context, id string) error
	// Transfer hands leadership to a voter, or to the fittest when id is empty,
	// and says who leads then.
	Transfer(ctx context.Context, id string) (leader string, err error)
	// StepDown hands leadership on if the node that is asked leads.
	StepDown(ctx context.Context) (leader string, err error)
	// Save writes a snapshot of the whole replicated state, which Restore reads.
	// When it fails after it has written something, that is worthless.
	Save(ctx context.Context, w io.Writer) error
	// Restore replaces the whole replicated state by a saved one. It reads to the
	// end and checks before it changes anything.
	Restore(ctx context.Context, saved io.Reader) error
	// Room is how long a state may be for Restore to find room for it on this
	// node's disk, in bytes; known is false where no disk is needed, or nothing is
	// known of it.
	Room() (bytes int64, known bool)
	// Autopilot is the settings in force.
	Autopilot() Autopilot
	// SetAutopilot replaces them.
	SetAutopilot(ctx context.Context, a Autopilot) error
}

// Peer is a member as the configuration of the Raft groups names it.
type Peer struct {
	ID      string `json:"id"`
	Address string `json:"address"` // of its peer port
	Voter   bool   `json:"voter"`
}

// Peers is the membership.
type Peers struct {
	Node  string `json:"node"`  // who answers
	Index uint64 `json:"index"` // of the configuration; it grows with each change
	Peers []Peer `json:"peers"` // by id
}

// ClusterStatus is what a node knows of all.
type ClusterStatus struct {
	ClusterID    string   `json:"cluster_id"`
	Node         string   `json:"node"`          // who answers
	Leader       string   `json:"leader"`        // of group core; empty without one
	PrefixLeader string   `json:"prefix_leader"` // of group prefix; empty without one
	FeatureLevel uint32   `json:"feature_level"`
	Healthy      bool     `json:"healthy"`
	Problems     []string `json:"problems,omitempty"` // of the whole
	Hints        []string `json:"hints,omitempty"`    // what could be better, and is not wrong
	// Tolerates is how many more voters may fail before changes stop.
	Tolerates int      `json:"tolerates"`
	Members   []Member `json:"members"` // by id
}

// Member is one node.
type Member struct {
	ID       string   `json:"id"`
	Planner  bool     `json:"planner"` // else a gateway
	Voter    bool     `json:"voter"`   // a planner is once it has caught up
	Leader   bool     `json:"leader"`
	Address  string   `json:"address"`         // of its peer port
	Admin    string   `json:"admin,omitempty"` // of its admin API, on its own machine
	Version  string   `json:"version,omitempty"`
	MaxLevel uint32   `json:"max_level,omitempty"` // feature level that its binary knows
	Reached  bool     `json:"reached"`             // else what follows is unknown
	Healthy  bool     `json:"healthy"`
	Problems []string `json:"problems,omitempty"`
	NotReady string   `json:"not_ready,omitempty"` // why its view cannot be relied on yet
	// LastContactMS is since it last heard of the leader, or for the leader zero.
	LastContactMS int64 `json:"last_contact_ms"`
	// DiskSyncUS is the median time of a synced write, measured at its start; zero
	// in memory.
	DiskSyncUS int64        `json:"disk_sync_us,omitempty"`
	Core       *GroupStatus `json:"core,omitempty"`
	Prefix     *GroupStatus `json:"prefix,omitempty"`
}

// GroupStatus is where a node stands in one Raft group. Indices are the group's.
type GroupStatus struct {
	State     string `json:"state"` // leader, follower, candidate, …
	Term      uint64 `json:"term"`
	Committed uint64 `json:"committed"`
	Applied   uint64 `json:"applied"`
	Last      uint64 `json:"last"` // in its log
	Lag       uint64 `json:"lag"`  // entries behind the leader
}

// Health is the short of a status: what a probe or an alert asks for.
type Health struct {
	Healthy   bool           `json:"healthy"`
	Leader    string         `json:"leader"`
	Tolerates int            `json:"tolerates"`
	Problems  []string       `json:"problems,omitempty"`
	Members   []MemberHealth `json:"members"`
}

// MemberHealth is one node's.
type MemberHealth struct {
	ID       string   `json:"id"`
	Voter    bool     `json:"voter"`
	Healthy  bool     `json:"healthy"`
	Problems []string `json:"problems,omitempty"`
}

func (s *ClusterStatus) health() Health {
	h := Health{Healthy: s.Healthy, Leader: s.Leader, Tolerates: s.Tolerates, Problems: s.Problems, Members: []MemberHealth{}}
	for i := range s.Members {
		m := &s.Members[i]
		h.Members = append(h.Members, MemberHealth{ID: m.ID, Voter: m.Voter, Healthy: m.Healthy, Problems: m.Problems})
	}
	return h
}

// Autopilot is how the leader judges members, and what it does by itself. Times
// are in milliseconds.
type Autopilot struct {
	// CleanupDeadVoters removes voters that are long dead, as long as enough
	// healthy ones stay. Off unless set.
	CleanupDeadVoters bool `json:"cleanup_dead_voters"`
	// DeadAfterMS is how long a voter must have been silent to be removed.
	DeadAfterMS int64 `json:"dead_after_ms"`
	// MinVoters is how many voters a cleanup leaves at least.
	MinVoters int `json:"min_voters"`
	// MaxLag is the entries that a healthy member may be behind.
	MaxLag uint64 `json:"max_lag"`
	// StableAfterMS is how long a member must be well to count as healthy.
	StableAfterMS int64 `json:"stable_after_ms"`
}
