package raftstore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/prefixlog"
	"github.com/yardmaster/yardmaster/raftstore/snapshot"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// RecoverConfig says how a data directory is made the beginning of a new
// configuration.
type RecoverConfig struct {
	Dir string
	// Voters are the members from now on, this node among them; empty means that it
	// goes on alone, and others join it with empty directories.
	Voters []Member
	DryRun bool
	// AcceptLoss goes on with a log that has lost its end, or cannot be read there,
	// as far as it can be read.
	AcceptLoss bool
	Logger     *slog.Logger // nil discards
}

// Recovery is what a recovery does, or would do.
type Recovery struct {
	ClusterID string `json:"cluster_id"`
	// NewClusterID is what the cluster is from now on; of a dry run it is empty where
	// chance decides. Nodes of the old one stop when they meet one of the new.
	NewClusterID string        `json:"new_cluster_id,omitempty"`
	NodeID       string        `json:"node_id"`
	Voters       []Member      `json:"voters"` // from now on
	Core         RecoveryGroup `json:"core"`
	Prefix       RecoveryGroup `json:"prefix"`
	Done         bool          `json:"done"` // false for a dry run
}

// RecoveryGroup is what a group's storage holds. Compare Term and Last of the
// nodes that are left: the one with the highest term, and of those the highest
// entry, has the most.
type RecoveryGroup struct {
	Members  []Member `json:"members"`  // as this node last knew them
	Term     uint64   `json:"term"`     // of its last entry
	First    uint64   `json:"first"`    // entry in the log
	Last     uint64   `json:"last"`     // of the log, or in the newest snapshot if that reaches further
	Snapshot uint64   `json:"snapshot"` // last entry in the newest snapshot
}

// Recover makes the state of a node that does not run the state of its cluster,
// when a majority of the voters is gone for good. What only they had is lost,
// and what was not committed comes into force. The cluster goes on under a new id:
// those that were given up can neither lead it nor vote in it, and stop when they
// meet it. Several nodes that are recovered with the same voters come to the same
// id. A dry run changes nothing. Errors
// wrap ErrInUse, ErrDamaged, ErrNewerFormat, ErrRefused or the file system's.
func Recover(c RecoverConfig) (Recovery, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	out, err := recoverDir(c)
	if err != nil {
		return out, fmt.Errorf("recover %s: %w", c.Dir, err)
	}
	return out, nil
}

func recoverDir(c RecoverConfig) (out Recovery, err error) {
	id, err := readNameplate(c.Dir + "/meta.json")
	if err != nil {
		return out, err
	}
	lock, err := lockFile(c.Dir + "/LOCK")
	if err != nil {
		return out, err
	}
	dir := &directory{path: c.Dir, id: id, lock: lock}
	defer func() { err = errors.Join(err, dir.close()) }()
	out = Recovery{ClusterID: id.ClusterID, NodeID: id.NodeID}
	if out.Core, err = c.inspect(dir, "core"); err != nil {
		return out, err
	}
	if out.Prefix, err = c.inspect(dir, "prefix"); err != nil {
		return out, err
	}
	if out.Voters, err = c.voters(id.NodeID, out.Core.Members); err != nil {
		return out, err
	}
	if len(out.Voters) > 1 {
		out.NewClusterID = successor(id.origin(), out.Voters)
	}
	if c.DryRun {
		return out, nil
	}
	// One that goes on alone may have been recovered from the same folder before,
	// and others may have joined it then: those must not be taken for its members.
	out.NewClusterID = cmp.Or(out.NewClusterID, newClusterID())
	return c.recoverGroups(dir, out)
}

// origin is the cluster that a recovery goes out from: one that is run again before
// the node was started goes out from where the first one did.
func (n *nameplate) origin() string {
	if len(n.Recovered) > 0 && !n.Joined {
		return n.Recovered[len(n.Recovered)-1].ClusterID
	}
	return n.ClusterID
}

// recoverGroups gives both groups their new members, and a group that the
// directory does not have yet its founders.
func (c *RecoverConfig) recoverGroups(dir *directory, out Recovery) (Recovery, error) {
	begun := dir.id
	begun.Recovering = true
	if err := writeNameplate(dir.path, begun); err != nil {
		return out, err
	}
	id := dir.id
	id.Format, id.Joined, id.Founders, id.Recovering = format, false, placesOf(out.Voters), false
	before := 0
	for _, m := range out.Core.Members {
		if m.Voter {
			before++
		}
	}
	id.Voters = max(before, id.Voters)
	if out.NewClusterID != id.ClusterID {
		id.Recovered = remember(id.Recovered, recovered{id.ClusterID, time.Now().UTC().Truncate(time.Second)})
	}
	id.ClusterID = out.NewClusterID
	if err := recoverGroup(c, dir, "prefix", out.Voters, prefixlog.New(prefix.NewState(prefix.Options{}))); err != nil {
		return out, err
	}
	if err := recoverGroup(c, dir, "core", out.Voters, renaming{machineFSM{planner.New(), planner.MaxFeatureLevel}, out.NewClusterID}); err != nil {
		return out, err
	}
	if err := writeNameplate(dir.path, id); err != nil {
		return out, err
	}
	out.Done = true
	return out, nil
}

// renaming is the machine of a group that is to be another cluster's.
type renaming struct {
	machineFSM
	clusterID string
}

func (r renaming) Snapshot() io.WriterTo { return r.Machine.Snapshot().Renamed(r.clusterID) }

// voters are those of the new configuration: as asked, or this node alone.
func (c *RecoverConfig) voters(self string, known []Member) ([]Member, error) {
	is := func(m Member) bool { return m.ID == self }
	if len(c.Voters) == 0 {
		i := slices.IndexFunc(known, is)
		if i < 0 {
			return nil, fmt.Errorf("%w: %s is no member in its own log: name the voters with their addresses", ErrRefused, self)
		}
		return []Member{{ID: self, Addr: known[i].Addr, Voter: true}}, nil
	}
	if !slices.ContainsFunc(c.Voters, is) {
		return nil, fmt.Errorf("%w: %s itself is not among the voters", ErrRefused, self)
	}
	out := slices.Clone(c.Voters)
	for i := range out {
		if err := checkVoter(out[i]); err != nil {
			return nil, err
		}
		out[i].Voter = true
	}
	slices.SortFunc(out, func(a, b Member) int { return compare(a.ID, b.ID) })
	for i := range out[1:] {
		if out[i].ID == out[i+1].ID {
			return nil, fmt.Errorf("%w: voter %s is named twice", ErrRefused, out[i].ID)
		}
	}
	return out, nil
}

func checkVoter(m Member) error {
	host, port, err := net.SplitHostPort(m.Addr)
	if n, perr := strconv.ParseUint(port, 10, 16); err == nil && (host == "" || perr != nil || n == 0) {
		err = errors.New("a host and a port between 1 and 65535 are needed")
	}
	switch {
	case fleet.CheckNodeID(m.ID) != nil:
		return fmt.Errorf("%w: voter %q is no node id", ErrRefused, m.ID)
	case err != nil:
		return fmt.Errorf("%w: voter %s at %q is not HOST:PORT of its peer port: %w", ErrRefused, m.ID, m.Addr, err)
	}
	return nil
}

// logOptions are how logs are opened.
func (c *RecoverConfig) logOptions() []wal.Option {
	if c.AcceptLoss {
		return []wal.Option{wal.AcceptLoss}
	}
	return nil
}

// storage opens a group's log and snapshots.
func (d *directory) storage(name string, log *slog.Logger, opts ...wal.Option) (wal.Store, raft.SnapshotStore, error) {
	hlog := group.NewHCLog(log.With("group", name))
	store, err := wal.Open(d.join(name, "wal"), hlog, opts...)
	if err != nil {
		return nil, nil, err
	}
	snapshots, err := snapshot.Open(d.join(name), keptSnapshots, hlog, func(id string, err error) {
		log.Error("damaged snapshot put into quarantine", "group", name, "snapshot", id, "error", err)
	})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return store, snapshots, nil
}

// keptSnapshots is how many snapshots of a group stay on disk.
const keptSnapshots = 2

func (c *RecoverConfig) inspect(d *directory, name string) (out RecoveryGroup, err error) {
	if _, err := os.Stat(d.join(name)); errors.Is(err, os.ErrNotExist) {
		return RecoveryGroup{}, nil // of an earlier release
	}
	hlog := group.NewHCLog(c.Logger.With("group", name))
	store, err := wal.OpenReadOnly(d.join(name, "wal"), hlog, c.logOptions()...)
	if err != nil {
		return out, d.damaged(name, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	in, err := group.Inspect(store, snapshot.OpenReadOnly(d.join(name)))
	if err != nil {
		return out, d.damaged(name, fmt.Errorf("group %s: %w", name, err))
	}
	out = RecoveryGroup{Members: in.Members, Term: in.LastTerm, First: in.First, Last: in.Last}
	if len(in.Snapshots) > 0 {
		out.Snapshot = in.Snapshots[0].Index
		out.Last = max(out.Last, out.Snapshot) // right after a recovery the log is empty
	}
	return out, nil
}

// recoverGroup gives one group its new members. A group without a log gets them
// when the node starts.
func recoverGroup[R any](c *RecoverConfig, d *directory, name string, voters []Member, fsm group.FSM[R]) (err error) {
	if _, err := os.Stat(d.join(name)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	store, snapshots, err := d.storage(name, c.Logger, c.logOptions()...)
	if err != nil {
		return d.damaged(name, err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := group.Recover(group.RecoverConfig{NodeID: d.id.NodeID, Servers: placesOf(voters), Store: store, Snapshots: snapshots, Logger: c.Logger}, fsm); err != nil {
		return d.damaged(name, fmt.Errorf("group %s: %w", name, err))
	}
	return nil
}

// placesOf is where the members are.
func placesOf(members []Member) (out []group.Server) {
	for _, m := range members {
		out = append(out, group.Server{ID: m.ID, Addr: m.Addr})
	}
	return out
}
