package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
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

// probeDeadline is how long a probe may take before the disk counts as hung.
const probeDeadline = 5 * time.Second

// ProbeSync writes and syncs 4 KiB in dir eight times, or as often as fits in a
// second. Errors wrap ErrStalled if the disk takes more than five seconds, or
// are the file system's.
func ProbeSync(dir string) (SyncTimes, error) {
	return probeWithin(probeDeadline, dir, (*os.File).Sync)
}

func probeWithin(deadline time.Duration, dir string, sync func(*os.File) error) (SyncTimes, error) {
	type outcome struct {
		times SyncTimes
		err   error
	}
	done := make(chan outcome, 1)
	go func() { // outlives the call when the disk hangs: nothing can end a sync
		times, err := probe(dir, sync)
		done <- outcome{times, err}
	}()
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	select {
	case o := <-done:
		if o.err != nil {
			return SyncTimes{}, fmt.Errorf("probe the disk: %w", o.err)
		}
		return o.times, nil
	case <-timer.C:
		return SyncTimes{}, fmt.Errorf("probe the disk: %w: %s was not synced within %v", ErrStalled, dir, deadline)
	}
}

func probe(dir string, sync func(*os.File) error) (SyncTimes, error) {
	path := filepath.Join(dir, ".sync-probe")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return SyncTimes{}, err
	}
	times, err := timeSyncs(f, sync)
	if err := errors.Join(err, f.Close(), os.Remove(path)); err != nil {
		return SyncTimes{}, err
	}
	slices.Sort(times)
	return SyncTimes{Median: times[len(times)/2], Worst: times[len(times)-1]}, nil
}

func timeSyncs(f *os.File, sync func(*os.File) error) ([]time.Duration, error) {
	var times []time.Duration
	block := make([]byte, 4096)
	begin := time.Now()
	for range 8 {
		start := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := sync(f); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
		if time.Since(begin) > time.Second {
			break
		}
	}
	return times, nil
}

// FreeBytes is the space that an unprivileged writer has left on the disk of dir.
func FreeBytes(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return s.Bavail * uint64(s.Bsize), nil
}
