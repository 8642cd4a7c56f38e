package quorum

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// Events is what replicating KV events cost.
type Events struct {
	Seconds     float64 `json:"seconds"`
	Workers     int     `json:"workers"`
	PerS        float64 `json:"events_per_s"` // committed, all workers together
	CommitP50MS float64 `json:"commit_p50_ms"`
	CommitP99MS float64 `json:"commit_p99_ms"`
	// Cores is the processor time of the three planners together, over the time.
	Cores   float64 `json:"planner_cores"`
	Blocks  int64   `json:"blocks"`           // in the index at the end
	Samples int     `json:"digests_compared"` // between nodes, at the same index
	Unequal int     `json:"digests_unequal"`
}

const (
	// frameEvents is how many events a worker's frame tells: what a step of an
	// engine stores and evicts.
	frameEvents = 15
	// heldBlocks is how many blocks a worker holds before it evicts.
	heldBlocks = 1000
)

// source is one worker's events.
type source struct {
	id    fleet.WorkerID
	epoch fleet.Epoch
	seed  uint64
	last  uint64 // change told
	next  uint64 // block to be stored
	old   uint64 // oldest block held
	sums  prefix.Sums
}

// events replicates the events of many workers for a while.
func (r *run) events(ctx context.Context) error {
	r.say(fmt.Sprintf("registering %d workers", r.Workers))
	sources, err := r.registered(ctx)
	if err != nil {
		return err
	}
	r.say(fmt.Sprintf("replicating %d events a second for %d s", r.Workers*r.EventsPerS, r.EventSeconds))
	before, err := processorTime(r.cluster)
	if err != nil {
		return err
	}
	begin := time.Now()
	times, told, err := r.tell(ctx, sources)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := processorTime(r.cluster)
	if err != nil {
		return err
	}
	e := &Events{
		Seconds: took.Seconds(), Workers: r.Workers, PerS: float64(told) / took.Seconds(),
		CommitP50MS: times.median(), CommitP99MS: times.quantile(0.99), Cores: (after - before).Seconds() / took.Seconds(),
	}
	r.result.Events = e
	return r.compare(ctx, e)
}

func (r *run) registered(ctx context.Context) ([]*source, error) {
	sources := make([]*source, r.Workers)
	var mu sync.Mutex
	var faults error
	var task sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range sources {
		slots <- struct{}{}
		task.Go(func() {
			defer func() { <-slots }()
			s, err := r.register(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			sources[i], faults = s, cmp.Or(faults, err)
		})
	}
	task.Wait()
	return sources, faults
}

func (r *run) register(ctx context.Context, i int) (*source, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	id := fleet.WorkerID(fmt.Sprintf("bench-%d", i))
	res, err := r.gateway.Propose(ctx, planner.RegisterWorker{Worker: fleet.Worker{
		ID: id, Incarnation: "bench", Role: fleet.RoleBoth, Engine: "scripted", Models: []string{"bench"}, URL: "http://127.0.0.1:1",
	}})
	if err := errors.Join(err, res.Err()); err != nil {
		return nil, err
	}
	s := &source{id: id, epoch: res.Epoch, seed: uint64(i) << 40}
	for _, f := range []prefix.Frame{
		{Kind: prefix.FrameAttach}, {Kind: prefix.FrameBegin, Repair: 1, Buckets: all()}, {Kind: prefix.FrameEnd, Repair: 1},
	} {
		f.Worker, f.Epoch = id, res.Epoch
		if err := r.gateway.tell(ctx, &f); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// all is every bucket: a worker tells all it holds.
func all() (b prefix.Buckets) {
	for i := range prefix.NumBuckets {
		b.Add(uint8(i))
	}
	return b
}

// tell brings a frame into force.
func (g gateway) tell(ctx context.Context, f *prefix.Frame) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	out, err := g.ProposeFrame(ctx, f)
	if err == nil && out != prefix.Applied {
		err = fmt.Errorf("quorum: %v became %v", f, out)
	}
	return err
}

// tell lets every worker tell its events at its rate until the time is over.
func (r *run) tell(ctx context.Context, sources []*source) (times durations, told int64, err error) {
	end := time.Now().Add(time.Duration(r.EventSeconds) * time.Second)
	every := time.Second * frameEvents / time.Duration(r.EventsPerS)
	var mu sync.Mutex
	var events atomic.Int64
	var task sync.WaitGroup
	for _, s := range sources {
		task.Go(func() {
			own, fault := s.run(ctx, r.gateway, every, end, &events)
			mu.Lock()
			defer mu.Unlock()
			times, err = append(times, own...), cmp.Or(err, fault) // a thousand say the same
		})
	}
	task.Wait()
	return times, events.Load(), err
}

// run tells a frame every so often, and takes the time from when it was due.
func (s *source) run(ctx context.Context, g gateway, every time.Duration, end time.Time, events *atomic.Int64) (times durations, err error) {
	due := time.Now().Add(rand.N(every)) //nolint:gosec // spreads them over the interval
	for ; due.Before(end) && ctx.Err() == nil; due = due.Add(every) {
		time.Sleep(time.Until(due))
		f := s.frame()
		if err := g.tell(ctx, &f); err != nil {
			return times, err
		}
		events.Add(frameEvents)
		times = append(times, time.Since(due))
	}
	return times, ctx.Err()
}

// frame is the next events: blocks come, and beyond what the worker can hold the
// oldest go.
func (s *source) frame() prefix.Frame {
	f := prefix.Frame{Kind: prefix.FrameDelta, Worker: s.id, Epoch: s.epoch, First: s.last + 1, Last: s.last + frameEvents}
	for range frameEvents {
		if s.next-s.old >= heldBlocks && len(f.Removes) < frameEvents/2 {
			h := s.block(s.old)
			f.Removes = append(f.Removes, h)
			s.sums.Drop(h)
			s.old++
			continue
		}
		h := s.block(s.next)
		f.Stores = append(f.Stores, h)
		s.sums.Add(h)
		s.next++
	}
	s.last, f.Sum = f.Last, s.sums.Total()
	return f
}

// block is the hash of the worker's n-th block.
func (s *source) block(n uint64) prefix.Hash {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], s.seed+n)
	return prefix.Hash(xxhash.Sum64(b[:]))
}

// compare holds the digests of the nodes against one another, at every index at
// which several of them took one.
func (r *run) compare(ctx context.Context, e *Events) error {
	if err := r.pause(ctx, 2*time.Second); err != nil { // for those that are behind
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	e.Blocks = int64(r.gateway.Prefix().Stats().Blocks)
	seen := map[uint64]string{}
	for _, m := range r.gateway.ClusterStatus(ctx).Members {
		for _, s := range m.Node.Prefix.Samples {
			first, ok := seen[s.Index]
			if !ok {
				seen[s.Index] = s.Digest
				continue
			}
			e.Samples++
			if first != s.Digest {
				e.Unequal++
			}
		}
	}
	return nil
}
