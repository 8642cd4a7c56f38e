package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// SyncTimes is what a disk needs to make 4 KiB durable.
type SyncTimes struct {
	Median, Worst time.Duration
}

// Slow reports whether elections and commits will suffer: a commit waits for a
// sync, and a sync of the order of the election timeout unseats leaders.
func (s SyncTimes) Slow() bool {
	return s.Median > 20*time.Millisecond || s.Worst > 150*time.Millisecond
}

// ProbeSync writes and syncs 4 KiB in dir eight times, or as often as fits in a
// second.
func ProbeSync(dir string) (SyncTimes, error) {
	path := filepath.Join(dir, ".sync-probe")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return SyncTimes{}, fmt.Errorf("probe the disk: %w", err)
	}
	times, err := probe(f)
	if err := errors.Join(err, f.Close(), os.Remove(path)); err != nil {
		return SyncTimes{}, fmt.Errorf("probe the disk: %w", err)
	}
	slices.Sort(times)
	return SyncTimes{Median: times[len(times)/2], Worst: times[len(times)-1]}, nil
}

func probe(f *os.File) ([]time.Duration, error) {
	var times []time.Duration
	block := make([]byte, 4096)
	begin := time.Now()
	for range 8 {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := f.Sync(); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
		if time.Since(begin) > time.Second {
			break
		}
	}
	return times, nil
}
