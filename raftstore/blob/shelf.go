package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/files"
)

// Digest names a blob: the SHA-256 of its bytes.
type Digest = rollout.Digest

const (
	// MaxBlob is how many bytes a blob may have.
	MaxBlob = rollout.MaxModule
	// MaxHeld is how many bytes a shelf holds: all that can be named, twice while one
	// state is being restored in place of another, and some that are about to be.
	MaxHeld = 2*rollout.MaxModules + maxUnnamed

	maxUnnamed = 32 << 20
	// tooYoung is for how long at least a blob that nothing names yet is kept when
	// others want its place.
	tooYoung = time.Minute
	// reserve is what is left free of the disk: the log needs room more than
	// policies do.
	reserve = 64 << 20
	// maxCalls is how many calls may touch the disk at once.
	maxCalls = 4
)

var (
	// ErrMissing means that the blob is not here.
	ErrMissing = errors.New("policy's bytes are not here")
	// ErrSize means that the blob is empty or larger than MaxBlob.
	ErrSize = errors.New("policy is empty or too large")
	// ErrNoRoom means that the disk, or the shelf, has no room for the blob.
	ErrNoRoom = errors.New("no room for the policy's bytes")
	// ErrClosed means that the shelf was closed.
	ErrClosed = errors.New("shelf is closed")
)

// Options say what a shelf is.
type Options struct {
	Dir string // folder, made if absent; empty: keep everything in memory
	// Free tells how many bytes of the folder's disk are free; nil: do not ask.
	Free func() (uint64, error)
	// Named reports whether a version names the blob, which is never removed then.
	// It must not call the shelf. nil: none is.
	Named func(Digest) bool
}

// Shelf holds blobs. It is safe for concurrent use. Open is its constructor.
type Shelf struct {
	opts  Options
	calls chan struct{} // a token for each call that touches the disk
	// files keeps the name of a file and what is held of it in step. It is taken by
	// calls that touch the disk only, before mu, and held while the disk hangs.
	files      sync.Mutex
	removeFile func(string) error

	mu     sync.Mutex
	held   map[Digest]*entry
	bytes  int64
	closed bool
	busy   sync.WaitGroup
}

type entry struct {
	size  int64
	data  []byte    // in memory only
	since time.Time // when it was put, or last seen to be named
}

// Open opens the shelf and removes what was half written. Files are looked into
// only when they are read.
func Open(opts Options) (*Shelf, error) {
	if opts.Named == nil {
		opts.Named = func(Digest) bool { return false }
	}
	s := &Shelf{opts: opts, calls: make(chan struct{}, maxCalls), held: map[Digest]*entry{}, removeFile: os.Remove}
	if opts.Dir == "" {
		return s, nil
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder for policies: %w", err)
	}
	found, err := os.ReadDir(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("folder for policies: %w", err)
	}
	for _, f := range found {
		if strings.HasSuffix(f.Name(), halfWritten) {
			_ = os.Remove(filepath.Join(opts.Dir, f.Name())) // the next start tries again
			continue
		}
		d, err := rollout.ParseDigest(f.Name())
		info, infoErr := f.Info()
		if err != nil || infoErr != nil || !info.Mode().IsRegular() || info.Size() > MaxBlob || info.Size() == 0 {
			continue // not ours
		}
		s.held[d] = &entry{size: info.Size(), since: time.Now()}
		s.bytes += info.Size()
	}
	return s, nil
}

// halfWritten is what the name of a file ends in until it is whole.
const halfWritten = ".new"

func (s *Shelf) path(d Digest) string { return filepath.Join(s.opts.Dir, d.String()) }

// Close waits for calls that touch the disk. Others fail from then on.
func (s *Shelf) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.busy.Wait()
}

// Has reports whether the blob seems to be here; Get may still find it damaged.
func (s *Shelf) Has(d Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[d] != nil
}

// Bytes is how many bytes are held.
func (s *Shelf) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Put holds the bytes, which the shelf takes over, and returns when they are as
// durable as they can be here. Errors wrap ErrSize, ErrNoRoom, ErrClosed, ctx's or
// the file system's.
func (s *Shelf) Put(ctx context.Context, data []byte) (Digest, error) {
	if len(data) == 0 || len(data) > MaxBlob {
		return Digest{}, fmt.Errorf("%w: %d bytes; it may have up to %d", ErrSize, len(data), MaxBlob)
	}
	d := rollout.DigestOf(data)
	s.Touch(d) // first, so that no sweep takes what Get has seen
	if _, err := s.Get(ctx, d); err == nil {
		return d, nil
	} else if !errors.Is(err, ErrMissing) {
		return d, err
	}
	if err := s.makeRoom(ctx, int64(len(data))); err != nil {
		return d, err
	}
	if s.opts.Dir == "" {
		s.note(d, &entry{size: int64(len(data)), since: time.Now(), data: data})
		return d, nil
	}
	return d, s.onDisk(ctx, func() error {
		return s.write(d, data)
	})
}

func (s *Shelf) note(d Digest, e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[d] == nil {
		s.held[d] = e
		s.bytes += e.size
	}
}

// Touch counts the blob as new, so that Sweep spares it for its grace.
func (s *Shelf) Touch(d Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.held[d]; e != nil {
		e.since = time.Now()
	}
}

// write makes the file, whole or not at all, and notes it.
func (s *Shelf) write(d Digest, data []byte) error {
	if s.opts.Free != nil {
		if free, err := s.opts.Free(); err == nil && free < uint64(len(data))+reserve {
			return fmt.Errorf("%w: the disk has %d MiB left, of which %d are kept for the log", ErrNoRoom, free>>20, reserve>>20)
		}
	}
	f, err := os.CreateTemp(s.opts.Dir, d.Short()+"-*"+halfWritten) // 0600
	if err != nil {
		return roomy(err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = s.name(d, f.Name(), int64(len(data)))
	}
	if err != nil && !errors.Is(err, errUnsynced) {
		return roomy(errors.Join(err, os.Remove(f.Name())))
	}
	return roomy(err)
}

var errUnsynced = errors.New("the folder is not synced")

// name gives a whole file the name under which it is held.
func (s *Shelf) name(d Digest, from string, size int64) error {
	s.files.Lock()
	defer s.files.Unlock()
	if err := os.Rename(from, s.path(d)); err != nil {
		return err
	}
	if err := files.SyncFolder(s.opts.Dir); err != nil {
		return fmt.Errorf("%w: %w", errUnsynced, err)
	}
	s.note(d, &entry{size: size, since: time.Now()})
	return nil
}

// roomy says ErrNoRoom for a disk that is full.
func roomy(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	return err
}

// makeRoom removes blobs that nothing names, the oldest first, as far as the shelf
// is full.
func (s *Shelf) makeRoom(ctx context.Context, size int64) error {
	gone, err := s.forgetOldest(size)
	return errors.Join(err, s.unlink(ctx, gone))
}

// forgetOldest forgets what makeRoom removes, and lists it.
func (s *Shelf) forgetOldest(size int64) (gone []Digest, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.bytes+size > MaxHeld {
		var oldest Digest
		for d, e := range s.held {
			if s.opts.Named(d) || time.Since(e.since) < tooYoung {
				continue
			}
			if o := s.held[oldest]; o == nil || e.since.Before(o.since) {
				oldest = d
			}
		}
		if oldest.IsZero() {
			return gone, fmt.Errorf("%w: %d MiB are held, of which no version names some yet; try again in a minute", ErrNoRoom, s.bytes>>20)
		}
		s.forget(oldest)
		gone = append(gone, oldest)
	}
	return gone, nil
}

// forget takes a blob off the shelf; its file is to be unlinked, without mu. The
// caller holds mu.
func (s *Shelf) forget(d Digest) {
	s.bytes -= s.held[d].size
	delete(s.held, d)
}

// unlink removes the files of blobs that were forgotten, unless they have been put
// again meanwhile. What stays is found at the next start.
func (s *Shelf) unlink(ctx context.Context, gone []Digest) error {
	if s.opts.Dir == "" || len(gone) == 0 {
		return nil
	}
	return s.onDisk(ctx, func() error {
		s.files.Lock()
		defer s.files.Unlock()
		for _, d := range gone {
			if !s.Has(d) {
				_ = s.removeFile(s.path(d))
			}
		}
		return nil
	})
}

// Get returns the blob; do not modify it. Errors wrap ErrMissing, also where the
// file was damaged, ErrClosed, ctx's or the file system's.
func (s *Shelf) Get(ctx context.Context, d Digest) ([]byte, error) {
	s.mu.Lock()
	e := s.held[d]
	s.mu.Unlock()
	switch {
	case e == nil:
		return nil, fmt.Errorf("%w: %s", ErrMissing, d.Short())
	case e.data != nil:
		return e.data, nil
	}
	var data []byte
	err := s.onDisk(ctx, func() error {
		b, err := files.ReadBounded(s.path(d), MaxBlob)
		data = b
		return err
	})
	switch {
	case err == nil && rollout.DigestOf(data) == d:
		return data, nil
	case err == nil, errors.Is(err, os.ErrNotExist), errors.Is(err, files.ErrTooLong), errors.Is(err, syscall.EIO):
		s.mu.Lock()
		if s.held[d] == e {
			s.forget(d)
		}
		s.mu.Unlock()
		_ = s.unlink(ctx, []Digest{d}) // what is damaged may stay
		return nil, fmt.Errorf("%w: the file of %s is damaged or gone: %w", ErrMissing, d.Short(), orDamaged(err))
	}
	return nil, err
}

var errDamaged = errors.New("its bytes are others")

func orDamaged(err error) error {
	if err == nil {
		return errDamaged
	}
	return err
}

// onDisk runs what may hang, on a goroutine of its own that outlives ctx if it
// does: nothing can end a read or a sync. There are maxCalls at most.
func (s *Shelf) onDisk(ctx context.Context, do func() error) error {
	select {
	case s.calls <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("the disk is busy: %w", ctx.Err())
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.calls
		return ErrClosed
	}
	s.busy.Add(1)
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		defer s.busy.Done()
		defer func() { <-s.calls }()
		done <- do()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the disk does not answer: %w", ctx.Err())
	}
}

// Sweep removes what nothing has named for as long as grace, and lists it. Files that
// the disk does not let go of until ctx ends stay until the next start.
func (s *Shelf) Sweep(ctx context.Context, grace time.Duration) []Digest {
	removed := s.forgetUnnamed(grace)
	_ = s.unlink(ctx, removed) // they are no longer held, whatever the disk says
	return removed
}

func (s *Shelf) forgetUnnamed(grace time.Duration) (removed []Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for d, e := range s.held {
		switch {
		case s.opts.Named(d):
			e.since = now
		case now.Sub(e.since) >= grace:
			removed = append(removed, d)
		}
	}
	for _, d := range removed {
		s.forget(d)
	}
	slices.SortFunc(removed, func(a, b Digest) int { return cmp.Compare(string(a[:]), string(b[:])) })
	return removed
}
