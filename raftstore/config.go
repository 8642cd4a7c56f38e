package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// Config says how to open a store. Its shape follows from Port and Nonvoter:
//
//   - alone: no Port. The one voter of a cluster of its own.
//   - a planner: a Port, and a Dir that remembers what it voted for.
//   - a gateway: a Port and Nonvoter. It receives everything, decides nothing,
//     and keeps nothing on disk.
type Config struct {
	Dir      string // data directory; created if absent. A gateway has none
	InMemory bool   // keep everything in memory instead; Dir is ignored
	NodeID   string // stable name of this node; empty means "planner-0"
	// ClusterID, if not empty, must be the directory's. A new directory takes it,
	// or a random one. A node that joins takes its cluster's.
	ClusterID string

	// Port is this node's door for its peers; nil is a node alone. It is not closed
	// by the store.
	Port *transport.Port
	// Nonvoter makes the node a follower for ever. Its NodeID is best new at each
	// start.
	Nonvoter bool
	// Advertise is the host:port under which other nodes reach this one's port.
	Advertise string
	// Join lists addresses of other nodes, this one's own may be among them. A
	// node with a directory needs them only the first time, or when all its peers
	// have moved.
	Join []string
	// BootstrapExpect is how many new nodes found a cluster together; each of them
	// must be told the same number. 0 and 1 mean that a node without Join founds
	// one alone, and a node with Join waits for a cluster to join.
	BootstrapExpect int
	// ReapAfter is how long the leader bears with a gateway that it does not hear
	// from; 0 means 60 s.
	ReapAfter time.Duration

	AdminAddr string // where this node's admin API answers; others are told
	Version   string // of this binary; others are told
	// MaxLevel is the highest feature level this node claims to understand; 0
	// means what the binary understands. Tests play old binaries with it.
	MaxLevel uint32

	Heartbeat time.Duration // heartbeat and election timeout; 0 means 300 ms
	Lease     time.Duration // leader lease; 0 means half of Heartbeat
	// WriteDeadline is how long a write may take before the disk counts as hung; 0
	// means 500 ms while there are several voters, who take over, else 5 s.
	WriteDeadline time.Duration

	// Window is the present window of quotas by this node's clock, with which it
	// compares those of grants that it is to propose while it leads; nil compares none.
	Window func() uint64

	// Verify judges, by a planner's own trust, what an upload was signed with: it says
	// whose signature of the digest that is, empty for an unsigned upload that it takes,
	// or why it takes none. nil takes everything. It must not wait.
	Verify func(d rollout.Digest, signature []byte) (signer string, err error)

	Prefix prefix.Options // of the prefix index
	Tuning Tuning         // zero but in tests

	pace    pace // zero follows the heartbeat; tests hurry
	noCalls bool // calls are neither made nor served, as by an older release; for tests

	Registry *measure.Registry // required
	Logger   *slog.Logger      // nil discards
}

const (
	defaultReapAfter = 60 * time.Second
	defaultHeartbeat = 300 * time.Millisecond
)

// validate reports every problem at once.
func (c *Config) validate() error {
	var faults []error
	if c.Dir == "" && !c.InMemory && !c.Nonvoter {
		faults = append(faults, errors.New("no data directory and not in memory"))
	}
	if c.Registry == nil {
		faults = append(faults, errors.New("no metrics registry"))
	}
	if c.NodeID != "" {
		faults = append(faults, fleet.CheckNodeID(c.NodeID))
	}
	if c.Heartbeat < 0 || c.Lease < 0 || c.WriteDeadline < 0 || c.ReapAfter < 0 || (c.Heartbeat > 0 && c.Lease > c.Heartbeat) {
		faults = append(faults, errors.New("a timer is negative or the lease outlasts the heartbeat timeout"))
	}
	if c.Port == nil && (c.Nonvoter || len(c.Join) > 0 || c.BootstrapExpect > 1) {
		faults = append(faults, errors.New("no port, and peers to be spoken to"))
	}
	if c.Port != nil && c.NodeID != "" && c.Port.NodeID() != c.NodeID {
		faults = append(faults, fmt.Errorf("node id %q, and the port's certificate is of %q", c.NodeID, c.Port.NodeID()))
	}
	if c.Port != nil && c.Advertise == "" {
		faults = append(faults, errors.New("no address to advertise"))
	}
	if c.BootstrapExpect < 0 || c.BootstrapExpect > maxFounders {
		faults = append(faults, fmt.Errorf("%d founders: at most %d", c.BootstrapExpect, maxFounders))
	}
	return errors.Join(faults...)
}

// maxFounders bounds BootstrapExpect: more voters make a cluster slower, not
// safer.
const maxFounders = 9

func (c Config) withDefaults() Config {
	if c.NodeID == "" && c.Port != nil {
		c.NodeID = c.Port.NodeID()
	}
	if c.NodeID == "" {
		c.NodeID = "planner-0"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxLevel == 0 {
		c.MaxLevel = planner.MaxFeatureLevel
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.ReapAfter == 0 {
		c.ReapAfter = defaultReapAfter
	}
	return c
}
