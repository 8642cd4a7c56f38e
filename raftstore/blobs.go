package raftstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/blob"
	"github.com/yardmaster/yardmaster/raftstore/peer"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

var (
	// ErrNoBlob means that a policy's bytes could not be had: no version names them,
	// or no node that answers has them.
	ErrNoBlob = errors.New("policy's bytes cannot be had")
	// ErrTooFewHold means that the bytes are not on a quorum of voters. The text says
	// what became of each. Putting them again is harmless.
	ErrTooFewHold = errors.New("too few planners hold the policy's bytes")
	// ErrUntrusted means that too many planners do not take an upload with that
	// signature, or without one. The text has their sentences.
	ErrUntrusted = errors.New("the planners do not accept it")
)

const (
	// levelOfPolicies is the feature level at which every member can hold blobs.
	levelOfPolicies = 3
	// maxHolds is how many blobs are taken in for others at once, and maxPuts how
	// many this node puts.
	maxHolds = 4
	maxPuts  = 2
	// The pauses between two rounds of asking everybody for a blob.
	firstAsk, longestAsk = 100 * time.Millisecond, 5 * time.Second
	// blobGrace is for how long a blob is kept that no version names: for an upload, or
	// a state that is being restored, that is about to name it. Bringing it to the last
	// one of a quorum takes holdTime at most.
	blobGrace  = 2 * holdTime
	sweepEvery = 30 * time.Second
	// holdTime is how long a blob may take: to be put, to be held by a voter, to be
	// had from anybody.
	holdTime = time.Minute
)

// blobs is a node's part in holding policies' bytes.
type blobs struct {
	shelf   *blob.Shelf
	holds   chan struct{} // a token for each blob that is taken in
	puts    chan struct{} // a token for each blob that is put
	served  atomic.Pointer[lent]
	missing atomic.Pointer[[]rollout.Digest]

	mu      sync.Mutex
	lent    map[rollout.Digest]*lent   // being put; others fetch it from here
	flights map[rollout.Digest]*flight // being fetched

	bytes, missed measure.Gauge
	fetches       func(outcome string) measure.Counter
}

// lent is bytes in memory that other nodes fetch.
type lent struct {
	digest rollout.Digest
	data   []byte
	users  int
}

func (s *Store) openBlobs() error {
	opts := blob.Options{Named: func(d rollout.Digest) bool {
		_, ok := s.machine.Rollout().Version(d)
		return ok
	}}
	if s.dir != nil {
		opts.Dir = s.dir.join("blobs")
		opts.Free = s.cfg.Tuning.FreeForPolicies
		if opts.Free == nil {
			opts.Free = func() (uint64, error) { return wal.FreeBytes(s.dir.path) }
		}
	}
	shelf, err := blob.Open(opts)
	if err != nil {
		return err
	}
	r := s.cfg.Registry
	s.blobs = &blobs{
		shelf: shelf, holds: make(chan struct{}, maxHolds), puts: make(chan struct{}, maxPuts),
		lent: map[rollout.Digest]*lent{}, flights: map[rollout.Digest]*flight{},
		bytes: r.Gauge(measure.PolicyBytes), missed: r.Gauge(measure.PolicyMissing),
		fetches: func(outcome string) measure.Counter { return r.Counter(measure.PolicyFetches, outcome) },
	}
	return nil
}

// PutBlob brings a policy's bytes to the planners and returns their digest once a
// quorum of voters has them on disk, or in memory where their logs are, too. Then
// a planner.PutPolicy may name them; until one does, they are kept for two minutes.
// Nobody is asked whether the bytes are to be trusted: for uploads there is PutSigned.
// Errors wrap blob.ErrSize, planner.ErrLevel, ErrBusy, ErrNotReady, ErrClosed or
// ErrTooFewHold.
func (s *Store) PutBlob(ctx context.Context, data []byte) (rollout.Digest, error) {
	d, _, err := s.put(ctx, data, nil)
	return d, err
}

// PutSigned is PutBlob for an upload: each voter first judges its detached signature,
// which may be empty, by its own Config.Verify, whatever node was asked to put it.
// signer is what the planners call the key that made it; empty for none. Errors are
// those of PutBlob, or wrap ErrUntrusted.
func (s *Store) PutSigned(ctx context.Context, data, signature []byte) (d rollout.Digest, signer string, err error) {
	return s.put(ctx, data, &upload{signature})
}

// upload is what the bytes of one came with.
type upload struct{ signature []byte }

func (s *Store) put(ctx context.Context, data []byte, up *upload) (d rollout.Digest, signer string, err error) {
	d = rollout.DigestOf(data)
	g := s.groups.Load()
	switch {
	case len(data) == 0 || len(data) > blob.MaxBlob:
		return d, "", fmt.Errorf("%w: %d bytes; it may have up to %d", blob.ErrSize, len(data), blob.MaxBlob)
	case g == nil:
		return d, "", s.notInCluster()
	case s.ended():
		return d, "", errors.Join(ErrClosed, s.Fault())
	case s.machine.FeatureLevel() == 0: // no cluster stays there
		return d, "", fmt.Errorf("%w: this node has not caught up with the cluster yet", ErrNotReady)
	case s.machine.FeatureLevel() < levelOfPolicies:
		return d, "", fmt.Errorf("policies need feature level %d, the cluster is at %d: %w", levelOfPolicies, s.machine.FeatureLevel(), planner.ErrLevel)
	}
	select {
	case s.blobs.puts <- struct{}{}:
		defer func() { <-s.blobs.puts }()
	default:
		return d, "", fmt.Errorf("%w: %d policies are being put here", ErrBusy, maxPuts)
	}
	signer, err = s.spread(ctx, g, d, data, up)
	return d, signer, err
}

// within is ctx that ends with the store, too, and after holdTime at the latest.
func (s *Store) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, holdTime)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// held is what became of a blob at one voter.
type held struct {
	id, signer string
	err        error
}

// spread has every voter hold the blob, and returns when a quorum does. up is nil for
// bytes that are trusted already.
func (s *Store) spread(ctx context.Context, g *groups, d rollout.Digest, data []byte, up *upload) (signer string, err error) {
	ctx, cancel := s.within(ctx)
	s.blobs.lend(d, data)
	defer s.blobs.takeBack(d)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	asked := votersOf(g)
	outcomes := make(chan held, len(asked))
	for _, m := range asked {
		all.Go(func() {
			by, err := s.hold(ctx, m, d, data, up)
			outcomes <- held{m.ID, by, err}
		})
	}
	has, failed := map[string]bool{}, map[string]error{}
	for range asked {
		o := <-outcomes
		if has[o.id] = o.err == nil; o.err != nil {
			failed[o.id] = o.err
		} else {
			signer = cmp.Or(signer, o.signer)
		}
		if now := votersOf(g); among(now, has) > len(now)/2 {
			return signer, nil
		}
	}
	err = fmt.Errorf("%w: %d of %d", ErrTooFewHold, among(asked, has), len(asked))
	if no := refusals(failed); len(asked)-no <= len(asked)/2 {
		err = fmt.Errorf("%w: %d of %d refuse it", ErrUntrusted, no, len(asked))
	}
	for _, m := range asked {
		if failed[m.ID] != nil {
			err = fmt.Errorf("%w; %s: %w", err, m.ID, failed[m.ID])
		}
	}
	return "", err
}

// refusal is why a planner does not trust an upload.
type refusal string

// Error is its sentence.
func (r refusal) Error() string { return string(r) }

func refusals(failed map[string]error) (n int) {
	for _, err := range failed {
		if _, ok := errors.AsType[refusal](err); ok {
			n++
		}
	}
	return n
}

func votersOf(g *groups) []Member {
	return slices.DeleteFunc(slices.Clone(membersOf(g.core)), func(m Member) bool { return !m.Voter })
}

func among(members []Member, has map[string]bool) (n int) {
	for _, m := range members {
		if has[m.ID] {
			n++
		}
	}
	return n
}

// verify judges an upload by this planner's own trust.
func (s *Store) verify(d rollout.Digest, up *upload) (signer string, err error) {
	if up == nil || s.cfg.Verify == nil {
		return "", nil
	}
	return s.cfg.Verify(d, up.signature)
}

// hold has one voter hold the blob. It tries again while that may help.
func (s *Store) hold(ctx context.Context, m Member, d rollout.Digest, data []byte, up *upload) (signer string, err error) {
	if m.ID == s.cfg.NodeID {
		if signer, err = s.verify(d, up); err != nil {
			return "", refusal(err.Error())
		}
		_, err = s.blobs.shelf.Put(ctx, data)
		return signer, err
	}
	if s.net == nil {
		return "", fmt.Errorf("%w: this node has no port", peer.ErrUnreachable)
	}
	begin := time.Now()
	for pause := firstAsk; ; pause = min(2*pause, longestAsk) {
		signer, err = s.askToHold(ctx, m, d, int64(len(data)), up)
		switch code := status.Code(err); {
		case err == nil:
			return signer, nil
		case errors.Is(err, peer.ErrUnreachable) && time.Since(begin) > longestCall:
			return "", err
		case code == codes.PermissionDenied && up != nil:
			return "", refusal(status.Convert(err).Message())
		case slices.Contains(finalCodes, code):
			return "", errors.New(status.Convert(err).Message())
		}
		if !s.sleep(ctx, pause/2+rand.N(pause)) {
			return "", err
		}
	}
}

// finalCodes are those after which asking the same node again does not help.
var finalCodes = []codes.Code{codes.FailedPrecondition, codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied}

func (s *Store) askToHold(ctx context.Context, m Member, d rollout.Digest, size int64, up *upload) (signer string, err error) {
	client, err := s.net.pool.Client(ctx, m.ID, s.whereIs(m.ID, m.Addr))
	if err != nil {
		return "", err
	}
	req := &peer.HoldBlobRequest{Digest: d[:], Size: size, Addr: s.cfg.Advertise}
	if up != nil {
		req.Signature = &peer.Signature{Bytes: up.signature}
	}
	resp, err := client.HoldBlob(ctx, req)
	return resp.GetSigner(), err
}

// HoldBlob takes a blob in from the caller.
func (v service) HoldBlob(ctx context.Context, req *peer.HoldBlobRequest) (*peer.HoldBlobResponse, error) {
	s := v.store
	caller, _ := transport.PeerID(ctx)
	d, err := digestOf(req.GetDigest())
	switch {
	case err != nil:
		return nil, err
	case s.cfg.Nonvoter || s.groups.Load() == nil:
		return nil, status.Errorf(codes.Unavailable, "%s is no voter of the cluster, or not yet", s.cfg.NodeID)
	case s.Fault() != nil:
		return nil, status.Errorf(codes.Unavailable, "%s has stopped: %v", s.cfg.NodeID, s.Fault())
	}
	var up *upload
	if sig := req.GetSignature(); sig != nil {
		up = &upload{sig.GetBytes()}
	}
	signer, err := s.verify(d, up)
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	select {
	case s.blobs.holds <- struct{}{}:
		defer func() { <-s.blobs.holds }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%s takes in %d policies already", s.cfg.NodeID, maxHolds)
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	s.blobs.shelf.Touch(d) // first, so that no sweep takes what Get has seen
	if _, err := s.blobs.shelf.Get(ctx, d); err == nil {
		return &peer.HoldBlobResponse{Signer: signer}, nil
	}
	data, err := s.fetchFrom(ctx, Member{ID: caller, Addr: req.GetAddr()}, d, req.GetSize())
	if err == nil {
		_, err = s.blobs.shelf.Put(ctx, data)
	}
	s.blobs.count()
	if err != nil {
		return nil, status.Error(codeOf(err), err.Error())
	}
	return &peer.HoldBlobResponse{Signer: signer}, nil
}

// codeOf tells the caller of HoldBlob whether asking again may help.
func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, blob.ErrNoRoom), errors.Is(err, blob.ErrSize), errors.Is(err, blob.ErrFalse):
		return codes.FailedPrecondition
	default:
		return codes.Unavailable
	}
}

func digestOf(b []byte) (d rollout.Digest, err error) {
	if len(b) != len(d) {
		return d, status.Errorf(codes.InvalidArgument, "digest of %d bytes", len(b))
	}
	return rollout.Digest(b), nil
}

// FetchBlob gives a piece of a blob.
func (v service) FetchBlob(ctx context.Context, req *peer.FetchBlobRequest) (*peer.FetchBlobResponse, error) {
	d, err := digestOf(req.GetDigest())
	if err != nil {
		return nil, err
	}
	data, err := v.store.blobs.serve(ctx, d)
	switch {
	case errors.Is(err, blob.ErrMissing):
		return nil, status.Error(codes.NotFound, err.Error())
	case err != nil:
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &peer.FetchBlobResponse{Size: int64(len(data)), Data: blob.PieceOf(data, req.GetOffset())}, nil
}

// serve is a blob for another node. The one that was served last stays in memory,
// since its next piece is likely to be next.
func (b *blobs) serve(ctx context.Context, d rollout.Digest) ([]byte, error) {
	b.mu.Lock()
	l := b.lent[d]
	b.mu.Unlock()
	if l != nil {
		return l.data, nil
	}
	if l := b.served.Load(); l != nil && l.digest == d {
		return l.data, nil
	}
	data, err := b.shelf.Get(ctx, d)
	if err == nil {
		b.served.Store(&lent{digest: d, data: data})
	}
	return data, err
}

func (b *blobs) lend(d rollout.Digest, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lent[d] == nil {
		b.lent[d] = &lent{digest: d, data: data}
	}
	b.lent[d].users++
}

func (b *blobs) takeBack(d rollout.Digest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lent[d].users--; b.lent[d].users == 0 {
		delete(b.lent, d)
	}
}

func (b *blobs) count() { b.bytes.Set(float64(b.shelf.Bytes())) }
