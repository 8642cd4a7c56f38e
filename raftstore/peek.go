package raftstore

import (
	"errors"
	"os"
	"path/filepath"
)

// Peek says which node's data directory this is, and of which cluster, without
// opening it; both are empty when it is of none yet. Errors wrap ErrDamaged,
// ErrNewerFormat or the file system's.
func Peek(dir string) (nodeID, clusterID string, err error) {
	id, err := readNameplate(filepath.Join(dir, "meta.json"))
	if errors.Is(err, os.ErrNotExist) {
		return "", "", nil
	}
	return id.NodeID, id.ClusterID, err
}
