package raftstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// spool is a gateway's folder: its snapshots need not outlive it and may be
// large, so they are in the system's folder for temporary files. A process that
// was killed leaves it behind; the next one removes it.
type spool struct {
	path string
	lock *os.File
}

const (
	spoolPattern = "yardmaster-gateway-*"
	// spoolYoung is how long a folder without a lock may be about to get one.
	spoolYoung = time.Minute
)

func newSpool() (*spool, error) {
	sweepSpools(filepath.Join(os.TempDir(), spoolPattern))
	path, err := os.MkdirTemp("", spoolPattern)
	if err != nil {
		return nil, fmt.Errorf("folder for snapshots: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, "LOCK"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("folder for snapshots: %w", err), os.RemoveAll(path))
	}
	return &spool{path: path, lock: lock}, nil
}

// sweepSpools removes the folders of gateways that are gone. What it cannot
// remove, another user's perhaps, stays.
func sweepSpools(pattern string) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return
	}
	for _, path := range found {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < spoolYoung {
			continue
		}
		lock, err := lockFile(filepath.Join(path, "LOCK"))
		if err != nil {
			continue // it lives
		}
		_ = os.RemoveAll(path)
		_ = lock.Close()
	}
}

func (p *spool) drop() error {
	if p == nil {
		return nil
	}
	return errors.Join(os.RemoveAll(p.path), p.lock.Close())
}

// spoolDir is where large files may stand for a while; empty is the system's.
func (s *Store) spoolDir() string {
	switch {
	case s.spool != nil:
		return s.spool.path
	case s.dir != nil:
		return s.dir.path
	}
	return ""
}

// sweep removes what an interrupted restore left behind.
func (d *directory) sweep() {
	found, _ := filepath.Glob(d.join("restore-*")) // the pattern is good
	for _, path := range found {
		_ = os.RemoveAll(path)
	}
}
