package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// The library's names: its snapshots, and those that are being written.
const (
	snapshotsFolder  = "snapshots"
	quarantineFolder = "quarantine"
	unfinished       = ".tmp"
)

// ErrReadOnly means that a store opened by OpenReadOnly was to be changed.
var ErrReadOnly = errors.New("snapshots were opened for reading only")

// Store is a raft.SnapshotStore in a directory. It is safe for concurrent use.
type Store struct {
	dir      string
	retain   int
	files    *raft.FileSnapshotStore // nil: read only
	mu       sync.Mutex              // one moves damaged snapshots away
	onDamage func(id string, err error)
}

// Open opens or creates the snapshots in dir, of which retain are kept, and
// removes what a crash left unfinished. One process may have it open. onDamage is
// called for each snapshot that is put into quarantine; it may be nil.
func Open(dir string, retain int, log hclog.Logger, onDamage func(id string, err error)) (*Store, error) {
	files, err := raft.NewFileSnapshotStoreWithLogger(dir, retain, log)
	if err != nil {
		return nil, fmt.Errorf("snapshots in %s: %w", dir, err)
	}
	s := &Store{dir: dir, retain: retain, files: files, onDamage: onDamage}
	return s, s.tidy()
}

// OpenReadOnly looks at the snapshots in dir, which need not exist, and changes
// nothing there: all that are kept are listed, those that are damaged are left out
// and stay where they are, and Create wraps ErrReadOnly.
func OpenReadOnly(dir string) *Store {
	return &Store{dir: dir, retain: 1 << 20}
}

func (s *Store) folder(id string) string { return filepath.Join(s.dir, snapshotsFolder, id) }

// tidy removes what a crash left unfinished.
func (s *Store) tidy() error {
	entries, err := os.ReadDir(s.folder(""))
	if err != nil {
		return fmt.Errorf("snapshots: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), unfinished) {
			if err := os.RemoveAll(s.folder(e.Name())); err != nil {
				return fmt.Errorf("snapshots: %w", err)
			}
		}
	}
	return nil
}

// Create begins a snapshot. Its Close seals it.
func (s *Store) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if s.files == nil {
		return nil, ErrReadOnly
	}
	inner, err := s.files.Create(version, index, term, c, cIndex, trans)
	if err != nil {
		return nil, fmt.Errorf("write a snapshot: %w", err)
	}
	return &sink{SnapshotSink: inner, folder: s.folder(inner.ID())}, nil
}

type sink struct {
	raft.SnapshotSink
	folder string
	closed bool
}

// Close finishes and seals the snapshot. Closing again does nothing.
func (s *sink) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	if err := s.SnapshotSink.Close(); err != nil {
		return fmt.Errorf("write a snapshot: %w", err)
	}
	if err := seal(s.folder); err != nil {
		return fmt.Errorf("seal a snapshot: %w", err)
	}
	return nil
}

// Cancel drops the snapshot.
func (s *sink) Cancel() error {
	s.closed = true
	return s.SnapshotSink.Cancel()
}

// List lists the snapshots, newest first. Those whose description is damaged go
// into quarantine.
func (s *Store) List() ([]*raft.SnapshotMeta, error) {
	var out []*raft.SnapshotMeta
	err := s.each(func(id string, meta *raft.SnapshotMeta, err error) error {
		switch {
		case errors.Is(err, ErrDamaged):
			return s.quarantine(id, err)
		case err != nil:
			return err
		}
		out = append(out, meta)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	slices.SortFunc(out, func(a, b *raft.SnapshotMeta) int {
		return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Index, a.Index), strings.Compare(b.ID, a.ID))
	})
	return out[:min(len(out), s.retain)], nil
}

// each calls f for each snapshot with its description, or with what is wrong.
func (s *Store) each(f func(id string, meta *raft.SnapshotMeta, err error) error) error {
	entries, err := os.ReadDir(s.folder(""))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		id := e.Name()
		if !e.IsDir() || strings.HasSuffix(id, unfinished) {
			continue
		}
		meta, err := describe(s.folder(id), id)
		if err != nil && !errors.Is(err, ErrDamaged) {
			if _, gone := os.Stat(s.folder(id)); errors.Is(gone, os.ErrNotExist) {
				continue // reaped meanwhile
			}
		}
		if err := f(id, meta, err); err != nil {
			return err
		}
	}
	return nil
}

// Open opens a snapshot after checking all of it. One that is damaged goes into
// quarantine, and the error wraps ErrDamaged.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.open(id)
	if errors.Is(err, ErrDamaged) {
		err = errors.Join(err, s.quarantine(id, err))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open snapshot %s: %w", id, err)
	}
	return meta, r, nil
}

func (s *Store) open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if id != filepath.Base(id) {
		return nil, nil, os.ErrInvalid
	}
	want, err := describe(s.folder(id), id)
	if err != nil {
		return nil, nil, err
	}
	if s.files == nil {
		return openContents(s.folder(id), want)
	}
	// The library reads all of it and checks the sum in its description.
	_, r, err := s.files.Open(id)
	var cannot *os.PathError
	if err != nil && !errors.As(err, &cannot) {
		return nil, nil, fmt.Errorf("%w: its contents: %w", ErrDamaged, err)
	}
	return want, r, err
}

// openContents opens the contents of a snapshot that is not to be changed.
func openContents(folder string, meta *raft.SnapshotMeta) (*raft.SnapshotMeta, io.ReadCloser, error) {
	f, err := os.Open(filepath.Join(folder, "state.bin"))
	if err != nil {
		return nil, nil, err
	}
	return meta, f, nil
}

// Discard puts a snapshot into quarantine that is whole and of no use.
func (s *Store) Discard(id string, why error) error { return s.quarantine(id, why) }

// quarantine moves a damaged snapshot away, for somebody to look at.
func (s *Store) quarantine(id string, why error) error {
	if s.files == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	to := filepath.Join(s.dir, quarantineFolder)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	to = filepath.Join(to, id)
	err := os.Rename(s.folder(id), to)
	if errors.Is(err, os.ErrNotExist) { // moved, or reaped, by another call
		return nil
	}
	if err != nil {
		return err
	}
	if s.onDamage != nil {
		s.onDamage(id, fmt.Errorf("moved to %s: %w", to, why))
	}
	return nil
}
