package raftstore

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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
//	meta.json   format, cluster and node
//	LOCK        held while open
//	core/wal    log of the group core
//	core/       its snapshots, in the Raft library's snapshots folder
const format = 1

// identity is meta.json.
type identity struct {
	Format    int    `json:"format"`
	ClusterID string `json:"cluster_id"`
	NodeID    string `json:"node_id"`
}

// directory is an open data directory.
type directory struct {
	path string
	id   identity
	lock *os.File
}

// openDirectory locks the directory and checks or creates its identity.
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

func (d *directory) identify(nodeID, clusterID string) (identity, error) {
	path := d.join("meta.json")
	id, err := readIdentity(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d.found(nodeID, clusterID)
	case err != nil:
		return identity{}, err
	case id.NodeID != nodeID:
		return identity{}, fmt.Errorf("%w: it is %q, this node is %q", ErrOtherNode, id.NodeID, nodeID)
	case clusterID != "" && id.ClusterID != clusterID:
		return identity{}, fmt.Errorf("%w: it is of %s, this node is of %s", ErrOtherCluster, id.ClusterID, clusterID)
	}
	return id, nil
}

// found makes a new identity. A directory that has a log and no identity lost
// it, and is refused rather than taken for new.
func (d *directory) found(nodeID, clusterID string) (identity, error) {
	if _, err := os.Stat(d.join("core")); err == nil {
		return identity{}, fmt.Errorf("%w: it has a log and no meta.json", ErrDamaged)
	}
	if clusterID == "" {
		clusterID = newClusterID()
	}
	id := identity{Format: format, ClusterID: clusterID, NodeID: nodeID}
	return id, writeIdentity(d.path, id)
}

func newClusterID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func readIdentity(path string) (identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return identity{}, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err := errors.Join(err, f.Close()); err != nil {
		return identity{}, err
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return identity{}, fmt.Errorf("%w: meta.json: %w", ErrDamaged, err)
	}
	switch {
	case id.Format > format:
		return identity{}, fmt.Errorf("%w: format %d, this release knows %d", ErrNewerFormat, id.Format, format)
	case id.Format < 1 || id.ClusterID == "" || id.NodeID == "":
		return identity{}, fmt.Errorf("%w: meta.json is incomplete", ErrDamaged)
	}
	return id, nil
}

// writeIdentity is atomic: after a crash the file is whole or absent.
func writeIdentity(dir string, id identity) error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "meta.json.new")
	if err := writeSynced(tmp, append(b, '\n')); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, "meta.json")); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}
