package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/raftstore/files"
	"github.com/yardmaster/yardmaster/raftstore/member"
)

var (
	// ErrNoSnapshot means that there is nothing to save yet.
	ErrNoSnapshot = errors.New("group has no snapshot")
	// ErrBadSnapshot means that a snapshot is damaged or not one of this group. It
	// was not restored.
	ErrBadSnapshot = errors.New("snapshot is not usable")
)

// SnapshotMeta says what a snapshot contains.
type SnapshotMeta struct {
	ID      string // of the file; empty for one that came from elsewhere
	Index   uint64 // the last entry in it
	Term    uint64
	Size    int64 // bytes
	Members []member.Member
}

func metaOf(m *raft.SnapshotMeta) SnapshotMeta {
	return SnapshotMeta{ID: m.ID, Index: m.Index, Term: m.Term, Size: m.Size, Members: membersOf(m.Configuration)}
}

// Snapshot writes a snapshot now.
func (g *Group[R]) Snapshot(ctx context.Context) error {
	err := g.do(ctx, func() error {
		if err := g.turns.take(ctx); err != nil {
			return err
		}
		defer g.turns.end()
		return g.raft.Snapshot().Error()
	})
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// SaveSnapshot writes a snapshot and opens it for reading. The caller closes it.
// Any member can; it contains what this member has applied. Errors wrap
// ErrNoSnapshot, ErrBusy or ErrClosed, or are ctx's or the disk's.
func (g *Group[R]) SaveSnapshot(ctx context.Context) (SnapshotMeta, io.ReadCloser, error) {
	if err := g.Snapshot(ctx); err != nil {
		return SnapshotMeta{}, nil, fmt.Errorf("save a snapshot: %w", err)
	}
	list, err := g.snapshots.List()
	if err != nil {
		return SnapshotMeta{}, nil, fmt.Errorf("save a snapshot: %w", err)
	}
	if len(list) == 0 {
		return SnapshotMeta{}, nil, ErrNoSnapshot
	}
	meta, r, err := g.snapshots.Open(list[0].ID)
	if err != nil {
		return SnapshotMeta{}, nil, fmt.Errorf("save a snapshot: %w", err)
	}
	return metaOf(meta), r, nil
}

// Restore replaces the state of the whole group by a saved snapshot, which is
// checked to the end first. Members stay as they are. Only the leader can, and
// what is proposed meanwhile may be lost; on an error after the check the
// outcome is ErrAmbiguous. A second restore beside it is refused with ErrBusy.
// Errors also wrap ErrBadSnapshot, ErrNotLeader or ErrClosed.
func (g *Group[R]) Restore(ctx context.Context, meta SnapshotMeta, r io.Reader) error {
	if g.raft.State() != raft.Leader {
		return fmt.Errorf("restore: %w", ErrNotLeader)
	}
	if !g.forcing.CompareAndSwap(false, true) {
		return errRestoring
	}
	defer g.forcing.Store(false)
	spool, size, err := g.spool(ctx, r)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer func() { _ = errors.Join(spool.Close(), os.Remove(spool.Name())) }()
	if err := g.verify(spool); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := g.acquire(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	// The library reads to the end even when ctx is over; then the file may only
	// be closed afterwards.
	again, err := os.Open(spool.Name())
	if err != nil {
		<-g.slots
		return fmt.Errorf("restore: %w", err)
	}
	wanted := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: meta.Index, Term: meta.Term, Size: size}
	err = g.run(ctx, func() error { return errors.Join(g.force(ctx, wanted, again), again.Close()) })
	if err != nil {
		return fmt.Errorf("restore: %w", g.proposeError(err))
	}
	return nil
}

// force has the library take a snapshot over. From when it has begun to read no
// error means that nothing happened.
func (g *Group[R]) force(ctx context.Context, meta *raft.SnapshotMeta, r io.Reader) error {
	if err := g.turns.take(ctx); err != nil { // nothing has happened
		return err
	}
	defer g.turns.end()
	g.restoring <- struct{}{}
	defer func() { <-g.restoring }()
	if g.ctx.Err() != nil {
		return ErrClosed
	}
	g.adapter.forced.Store(true)
	defer g.adapter.forced.Store(false)
	noted := &notedReader{r: r}
	err := g.raft.Restore(meta, noted, g.enqueue(ctx))
	if err == nil || !noted.begun {
		g.forgetForced()
		return err
	}
	if errors.Is(err, raft.ErrEnqueueTimeout) {
		// One timer of the library is for a place in its queue before the state is
		// replaced and for another afterwards, for an entry that makes the others
		// follow. The state here is replaced; any entry does that.
		err = g.raft.Barrier(g.enqueue(ctx)).Error()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAmbiguous, err)
	}
	g.forgetForced()
	return nil
}

// notedReader tells whether anything was read.
type notedReader struct {
	r     io.Reader
	begun bool // the library reads and returns one after the other
}

func (n *notedReader) Read(p []byte) (int, error) {
	n.begun = true
	return n.r.Read(p)
}

// spool copies r into a file, so that it can be read twice.
func (g *Group[R]) spool(ctx context.Context, r io.Reader) (*os.File, int64, error) {
	f, err := os.CreateTemp(g.cfg.SpoolDir, "restore-*.snapshot")
	if err != nil {
		return nil, 0, err
	}
	n, err := io.Copy(f, files.Until(ctx, r))
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, n, nil
}

func (g *Group[R]) verify(r io.Reader) error {
	v, ok := g.adapter.fsm.(Verifier)
	if !ok {
		return nil
	}
	if err := v.Verify(r); err != nil {
		return fmt.Errorf("%w: %w", ErrBadSnapshot, err)
	}
	return nil
}
