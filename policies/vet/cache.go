package vet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// cached is one file of compiled code.
type cached struct {
	path string
	size int64
	used time.Time
}

// listCache finds the files under a directory. One that goes away meanwhile is none.
func listCache(dir string) ([]cached, error) {
	var out []cached
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && info.Mode().IsRegular() {
			out = append(out, cached{path, info.Size(), info.ModTime()})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("vet: cache of compiled policies: %w", err)
	}
	return out, nil
}

// prune removes the oldest files until the rest are within the bound. A policy whose
// code is gone is compiled again when it is loaded next.
func prune(dir string, most int64) error {
	if dir == "" {
		return nil
	}
	files, err := listCache(dir)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, f := range files {
		total += f.size
	}
	slices.SortFunc(files, func(a, b cached) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) })
	for _, f := range files {
		if total <= most {
			return nil
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("vet: cache of compiled policies: %w", err)
		}
		total -= f.size
	}
	return nil
}

// cachedBytes is the size of what was written into the cache since a moment. It is
// for people, so an error is nothing.
func cachedBytes(dir string, since time.Time) int64 {
	if dir == "" {
		return 0
	}
	files, err := listCache(dir)
	if err != nil {
		return 0
	}
	total := int64(0)
	for _, f := range files {
		if !f.used.Before(since.Truncate(time.Second)) {
			total += f.size
		}
	}
	return total
}
