package raftstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/blob"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// Blob returns the bytes of a version in State().Rollout(), from this node or, if
// it lacks them, from any other that has them, until ctx ends. Do not modify them.
// Errors wrap ErrNoBlob, ErrClosed or ctx's.
func (s *Store) Blob(ctx context.Context, d rollout.Digest) ([]byte, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	var why error // of the last round that came to its end
	for pause := firstAsk; ; pause = min(2*pause, longestAsk) {
		data, err := s.blobOnce(ctx, d)
		switch {
		case err == nil:
			return data, nil
		case s.ctx.Err() != nil:
			return nil, ErrClosed
		case errors.Is(err, rollout.ErrUnknown), s.net == nil:
			return nil, fmt.Errorf("%w: %w", ErrNoBlob, err)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w: %w", ErrNoBlob, cmp.Or(why, err), ctx.Err())
		}
		why = err
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select { // also after a fault: reads go on then
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// MissingBlobs lists the versions whose bytes this node lacked when it last looked.
// It goes on looking for them by itself.
func (s *Store) MissingBlobs() []rollout.Digest {
	if list := s.blobs.missing.Load(); list != nil {
		return *list
	}
	return nil
}

// blobOnce takes a blob from the shelf, or asks each member once.
func (s *Store) blobOnce(ctx context.Context, d rollout.Digest) ([]byte, error) {
	data, err := s.blobs.shelf.Get(ctx, d)
	if err == nil {
		return data, nil
	}
	v, named := s.machine.Rollout().Version(d)
	if !named {
		return nil, fmt.Errorf("%w: no version has digest %s", rollout.ErrUnknown, d.Short())
	}
	if s.net == nil || s.groups.Load() == nil {
		return nil, fmt.Errorf("%s: %w, and there is no other node to ask; push it again", v.Ref(), err)
	}
	f, ours := s.blobs.takeOff(d)
	if !ours { // somebody fetches it already
		select {
		case <-f.landed:
			return f.data, f.err
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: being fetched: %w", v.Ref(), ctx.Err())
		}
	}
	f.data, f.err = s.fetch(ctx, &v)
	s.blobs.land(d, f)
	return f.data, f.err
}

// fetch takes a version's bytes from another node and keeps them.
func (s *Store) fetch(ctx context.Context, v *rollout.Version) ([]byte, error) {
	d := v.Digest
	data, err := s.askEverybody(ctx, d, v.Size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.Ref(), err)
	}
	if _, err := s.blobs.shelf.Put(ctx, data); err != nil {
		// It can be used all the same; the keeper tries again to keep it.
		s.log.Warn("a policy's bytes could not be kept", "policy", v.Ref(), "digest", d.Short(), "error", err)
	}
	s.blobs.count()
	return data, nil
}

// flight is a fetch under way. Others share what comes of it.
type flight struct {
	landed chan struct{} // closed at the end
	data   []byte        // written before that
	err    error
}

// takeOff begins a fetch, which land ends, or returns the one under way.
func (b *blobs) takeOff(d rollout.Digest) (f *flight, ours bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f, ok := b.flights[d]; ok {
		return f, false
	}
	f = &flight{landed: make(chan struct{})}
	b.flights[d] = f
	return f, true
}

func (b *blobs) land(d rollout.Digest, f *flight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.flights, d)
	close(f.landed)
}

// askEverybody asks one member after the other, voters first, in an order of chance
// so that not all nodes ask the same one.
func (s *Store) askEverybody(ctx context.Context, d rollout.Digest, size int64) ([]byte, error) {
	members := membersOf(s.groups.Load().core)
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	err := blob.ErrMissing
	for _, voters := range []bool{true, false} {
		for _, m := range members {
			if m.Voter != voters || m.ID == s.cfg.NodeID || ctx.Err() != nil {
				continue
			}
			data, fault := s.fetchFrom(ctx, m, d, size)
			if fault == nil {
				return data, nil
			}
			err = fmt.Errorf("%w; %s: %w", err, m.ID, fault)
		}
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("%w; %w", err, ctx.Err())
	}
	return nil, err
}

// fetchFrom takes a blob from one node.
func (s *Store) fetchFrom(ctx context.Context, m Member, d rollout.Digest, size int64) ([]byte, error) {
	data, err := blob.Fetch(ctx, holder{s, m}, d, size)
	outcome := "failed"
	switch {
	case err == nil:
		outcome = "ok"
	case errors.Is(err, blob.ErrMissing):
		outcome = "missing"
	case errors.Is(err, blob.ErrFalse):
		outcome = "false"
		s.log.Warn("another node gave other bytes than a policy's; its disk or memory may be damaged", "node", m.ID, "digest", d.Short(), "error", err)
	}
	s.blobs.fetches(outcome).Inc()
	return data, err
}

// holder is another node as a source of blobs.
type holder struct {
	store *Store
	Member
}

// Piece implements blob.Source.
func (m holder) Piece(ctx context.Context, d rollout.Digest, offset int64) (int64, []byte, error) {
	client, err := m.store.net.pool.Client(ctx, m.ID, m.store.whereIs(m.ID, m.Addr))
	if err != nil {
		return 0, nil, err
	}
	resp, err := client.FetchBlob(ctx, &peer.FetchBlobRequest{Digest: d[:], Offset: offset})
	if status.Code(err) == codes.NotFound {
		return 0, nil, fmt.Errorf("%w: at %s", blob.ErrMissing, m.ID)
	}
	return resp.GetSize(), resp.GetData(), err
}

// keepBlobs has this node hold what versions name, and drop what none does.
func (s *Store) keepBlobs() {
	told := map[rollout.Digest]bool{} // of whose lack the log tells
	checked := map[rollout.Digest]bool{}
	for pause := firstAsk; ; {
		changed, table := s.Changed(), s.machine.Rollout()
		missing := s.fetchMissing(table, checked, told)
		s.blobs.missing.Store(&missing)
		s.blobs.missed.Set(float64(len(missing)))
		wait := sweepEvery
		if pause = min(2*pause, longestAsk); len(missing) > 0 {
			wait = pause/2 + rand.N(pause)
		} else {
			pause = firstAsk
		}
		if s.Ready() == nil { // one that has not caught up does not know what is named
			ctx, cancel := s.within(s.ctx)
			s.blobs.shelf.Sweep(ctx, blobGrace)
			cancel()
		}
		s.blobs.served.Store(nil)
		s.blobs.count()
		if !s.awaitVersions(table, changed, wait) {
			return
		}
	}
}

// awaitVersions returns when versions or bindings have changed since table, or
// after d; false at the end of the store. That a policy's state has changed is no
// reason to look.
func (s *Store) awaitVersions(table *rollout.Table, changed <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case <-s.ctx.Done():
			return false
		case <-changed:
		}
		if changed = s.Changed(); !s.machine.Rollout().Same(table) {
			return true
		}
	}
}

// fetchMissing asks for each blob that is named and not here, once, and returns
// those that still are not. What is here is read once, to see that it is whole.
func (s *Store) fetchMissing(table *rollout.Table, checked, told map[rollout.Digest]bool) (missing []rollout.Digest) {
	for _, v := range table.Versions() {
		if s.blobs.shelf.Has(v.Digest) && checked[v.Digest] || s.ctx.Err() != nil {
			continue
		}
		ctx, cancel := s.within(s.ctx)
		_, err := s.blobOnce(ctx, v.Digest)
		cancel()
		if checked[v.Digest] = err == nil; err == nil {
			continue
		}
		missing = append(missing, v.Digest)
		if !told[v.Digest] {
			told[v.Digest] = true
			s.log.Warn("a policy's bytes are missing here; this node goes on asking for them", "policy", v.Ref(), "digest", v.Digest.Short(), "error", err)
		}
	}
	for d := range checked {
		if _, named := table.Version(d); !named {
			delete(checked, d)
			delete(told, d)
		}
	}
	return missing
}
