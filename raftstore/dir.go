package raftstore

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/wal"

	"github.com/yardmaster/yardmaster/raftstore/files"
)

var (
	// ErrInUse means that another process has the data directory open.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrOtherNode means that the data directory belongs to another node id.
	ErrOtherNode = errors.New("data directory belongs to another node")
	// ErrOtherCluster means that the data directory belongs to another cluster.
	ErrOtherCluster = errors.New("data directory belongs to another cluster")
	// ErrNewerFormat means that a newer release wrote the data directory. There
	// is no downgrade.
	ErrNewerFormat = errors.New("data directory was written by a newer release")
	// ErrDamaged means that the data directory does not make sense.
	ErrDamaged = errors.New("data directory is damaged")
)

// format is the layout of the data directory:
//
//	meta.json     format, cluster and node
//	peers.json    where the other nodes were last
//	LOCK          held while open
//	core/wal      log of the group core
//	core/         its snapshots, in the Raft library's snapshots folder
//	prefix/       the same of the group prefix
//	blobs/        policies' bytes, by digest
//
// Format 1 had no group prefix and no peers; it is taken over.
const format = 2

// nameplate is meta.json.
type nameplate struct {
	Format    int    `json:"format"`
	ClusterID string `json:"cluster_id"` // empty while the node is in none
	NodeID    string `json:"node_id"`
	// Founders are the nodes that founded the cluster, if this is one of them.
	Founders []group.Server `json:"founders,omitempty"`
	// Joined is set once the node has been a member in its role: if it is none
	// later, it was removed.
	Joined bool `json:"joined,omitempty"`
	// Recovered are the clusters that this one was recovered from.
	Recovered []recovered `json:"recovered_from,omitempty"`
	// Voters is how many there were before the last recovery.
	Voters int `json:"voters,omitempty"`
	// Recovering is set while a recovery is under way: the groups may be of two
	// clusters.
	Recovering bool `json:"recovering,omitempty"`
}

// founders is how many planners the cluster began with, as far as this node was
// there.
func (n *nameplate) founders() int { return max(len(n.Founders), n.Voters) }

// directory is an open data directory.
type directory struct {
	path string
	id   nameplate
	lock *os.File
}

// openDirectory locks the directory and checks its identity. A new directory has
// an identity without a cluster, which is not written yet: see [directory.found].
func openDirectory(path, nodeID, clusterID string) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, "LOCK"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d := &directory{path: path, lock: lock}
	if d.id, err = d.identify(nodeID, clusterID); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), lock.Close())
	}
	return d, nil
}

func (d *directory) join(names ...string) string {
	return filepath.Join(append([]string{d.path}, names...)...)
}

func (d *directory) close() error {
	if d == nil {
		return nil
	}
	return d.lock.Close()
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (d *directory) identify(nodeID, clusterID string) (nameplate, error) {
	id, err := readNameplate(d.join("meta.json"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d.blank(nodeID)
	case err != nil:
		return nameplate{}, err
	case id.NodeID != nodeID:
		return nameplate{}, fmt.Errorf("%w: it is %q, this node is %q", ErrOtherNode, id.NodeID, nodeID)
	case id.Recovering:
		return nameplate{}, fmt.Errorf("%w: a recovery was begun and not finished; run `yardmaster cluster recover` again as before", ErrDamaged)
	case clusterID != "" && id.ClusterID != clusterID:
		return nameplate{}, fmt.Errorf("%w: it is of %s, this node is of %s", ErrOtherCluster, id.ClusterID, clusterID)
	case id.Format < format:
		id.Format = format
		return id, writeNameplate(d.path, id)
	}
	return id, nil
}

// blank is the identity of a new directory. One that has a log and no identity
// lost it, and is refused rather than taken for new.
func (d *directory) blank(nodeID string) (nameplate, error) {
	if _, err := os.Stat(d.join("core")); err == nil {
		return nameplate{}, fmt.Errorf("%w: it has a log and no meta.json", ErrDamaged)
	}
	return nameplate{Format: format, NodeID: nodeID}, nil
}

// found gives the directory its cluster, and what is known of the cluster's past.
func (d *directory) found(clusterID string, founders []group.Server, past []recovered) error {
	id := d.id
	id.ClusterID, id.Founders, id.Recovered = clusterID, founders, past
	if err := writeNameplate(d.path, id); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	d.id = id
	return nil
}

// complete is an error when a node that was a member has lost the log of a group:
// what it voted for and acknowledged is gone, and it must not go on as the same
// voter.
func (d *directory) complete() error {
	if d == nil || !d.id.Joined {
		return nil
	}
	for _, group := range []string{"core", "prefix"} {
		if entries, err := os.ReadDir(d.join(group, "wal")); err != nil || len(entries) == 0 {
			return fmt.Errorf("%w: the log of group %s is gone; start with an empty directory to join again", ErrDamaged, group)
		}
	}
	return nil
}

// damaged adds to an error of a group's storage, if it is of damage, in which folder
// that is, and makes it ErrDamaged.
func (d *directory) damaged(name string, err error) error {
	of := func(target error) bool { return errors.Is(err, target) }
	// The library has no error of its own for snapshots none of which can be read.
	unread := err != nil && strings.Contains(err.Error(), "failed to load any existing snapshots")
	if d == nil || !unread && !slices.ContainsFunc([]error{wal.ErrDamaged, wal.ErrChecksum, group.ErrLogGap}, of) {
		return err
	}
	if strings.Contains(err.Error(), d.join(name)) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, d.join(name), err)
}

// markJoined notes that the node has become a member.
func (d *directory) markJoined() error {
	if d.id.Joined {
		return nil
	}
	id := d.id
	id.Joined = true
	if err := writeNameplate(d.path, id); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	d.id = id
	return nil
}

func newClusterID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func readNameplate(path string) (nameplate, error) {
	var id nameplate
	if err := readJSON(path, &id); err != nil {
		return nameplate{}, err
	}
	switch {
	case id.Format > format:
		return nameplate{}, fmt.Errorf("%w: format %d, this release knows %d", ErrNewerFormat, id.Format, format)
	case id.Format < 1 || id.ClusterID == "" || id.NodeID == "":
		return nameplate{}, fmt.Errorf("%w: meta.json is incomplete", ErrDamaged)
	}
	return id, nil
}

// readJSON reads a small file. Errors wrap ErrDamaged or the file system's.
func readJSON(path string, v any) error {
	b, err := files.ReadBounded(path, 1<<20)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, filepath.Base(path), err)
	}
	return nil
}

func writeNameplate(dir string, id nameplate) error { return writeJSON(dir, "meta.json", id) }

// writeJSON is atomic: after a crash the file is whole, as before, or absent.
func writeJSON(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	if err := files.WriteSynced(path+".new", append(b, '\n')); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return files.SyncFolder(dir)
}
