package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// worker is a model of a worker's side: a cache that changes, and frames that
// tell of it. Frames get lost now and then, and the worker sees to it that the
// index learns the truth all the same.
type worker struct {
	yard  *yard
	id    fleet.WorkerID
	rng   *rand.Rand
	told  *atomic.Uint64 // frames applied
	epoch fleet.Epoch
	runs  int // incarnations

	cache  []prefix.Hash // in no order
	sums   prefix.Sums
	last   uint64 // changes so far
	repair uint64
	owes   bool // the index is to be repaired
}

const (
	heldBlocks = 400
	frameTime  = 3 * time.Second
)

// run changes the cache and tells of it until ctx ends. Afterwards settle.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		if w.epoch == 0 || w.rng.IntN(300) == 0 {
			w.register(ctx)
			continue
		}
		w.step(ctx)
		pause(ctx, time.Duration(2+w.rng.IntN(15))*time.Millisecond)
	}
}

// register begins a new life: a worker that was started anew, with nothing in
// its cache.
func (w *worker) register(ctx context.Context) {
	s := w.yard.any(w.rng)
	if s == nil {
		pause(ctx, 10*time.Millisecond)
		return
	}
	w.runs++
	try, cancel := context.WithTimeout(ctx, frameTime)
	defer cancel()
	res, err := s.Propose(try, planner.RegisterWorker{Worker: fleet.Worker{
		ID: w.id, Incarnation: strconv.Itoa(w.runs), Role: fleet.RoleBoth, Engine: "scripted", Models: []string{"m"}, URL: "http://127.0.0.1:1",
	}})
	if err != nil || res.Err() != nil {
		return // whether it came into force or not: the next is another
	}
	w.epoch, w.cache, w.sums, w.last, w.owes = res.Epoch, nil, prefix.Sums{}, 0, true
}

// step changes the cache and tells.
func (w *worker) step(ctx context.Context) {
	f := w.change()
	switch {
	case w.owes:
		w.mend(ctx)
	case w.rng.IntN(100) == 0: // the frame is lost
	default:
		w.owes = !w.tell(ctx, &f)
	}
}

func (w *worker) change() prefix.Frame {
	f := prefix.Frame{Kind: prefix.FrameDelta, First: w.last + 1}
	if w.rng.IntN(200) == 0 {
		f.Cleared = true
		w.cache, w.sums = w.cache[:0], prefix.Sums{}
		w.last++
	}
	if !f.Cleared { // a delta's removes come before its stores
		for range w.rng.IntN(8) {
			if len(w.cache) == 0 || (len(w.cache) < heldBlocks && w.rng.IntN(3) > 0) {
				break
			}
			i := w.rng.IntN(len(w.cache))
			f.Removes = append(f.Removes, w.cache[i])
			w.sums.Drop(w.cache[i])
			w.cache[i] = w.cache[len(w.cache)-1]
			w.cache = w.cache[:len(w.cache)-1]
			w.last++
		}
	}
	for range 1 + w.rng.IntN(8) {
		h := w.block()
		if slices.Contains(w.cache, h) || slices.Contains(f.Removes, h) {
			h = prefix.Hash(w.rng.Uint64())
		}
		f.Stores = append(f.Stores, h)
		w.cache = append(w.cache, h)
		w.sums.Add(h)
		w.last++
	}
	f.Last, f.Sum = w.last, w.sums.Total()
	return f
}

// block is one that other workers hold too, or not.
func (w *worker) block() prefix.Hash {
	if w.rng.IntN(2) == 0 {
		return prefix.Hash(uint64(1+w.rng.IntN(2000)) * 0x9E3779B97F4A7C15)
	}
	return prefix.Hash(w.rng.Uint64())
}

// tell brings a frame into force and reports whether that is sure. Telling it
// again does no harm.
func (w *worker) tell(ctx context.Context, f *prefix.Frame) bool {
	f.Worker, f.Epoch = w.id, w.epoch
	for range 4 {
		s := w.yard.any(w.rng)
		if s == nil {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		try, cancel := context.WithTimeout(ctx, frameTime)
		out, err := s.ProposeFrame(try, f)
		cancel()
		switch {
		case err != nil:
			continue
		case out == prefix.Applied, out == prefix.Old:
			w.told.Add(1)
			return true
		default:
			return false
		}
	}
	return false
}

// mend tells the index all that the cache holds, or only the buckets that differ
// from what some node believes. It owes no more when the index has it.
func (w *worker) mend(ctx context.Context) {
	w.repair++
	var buckets prefix.Buckets
	if p, ok := w.position(); ok && w.rng.IntN(2) == 0 {
		buckets = p.Sums.Diff(&w.sums)
		w.repair = max(w.repair, p.Repair+1)
	} else {
		for b := range prefix.NumBuckets {
			buckets.Add(uint8(b))
		}
	}
	frames := []prefix.Frame{{Kind: prefix.FrameAttach}, {Kind: prefix.FrameBegin, Repair: w.repair, Buckets: buckets}}
	var part prefix.Frame
	parts := uint32(0)
	flush := func() {
		if len(part.Stores) > 0 {
			part.Kind, part.Repair, part.Part = prefix.FramePart, w.repair, parts
			frames, part = append(frames, part), prefix.Frame{}
			parts++
		}
	}
	for _, h := range w.cache {
		if !buckets.Has(h.Bucket()) {
			continue
		}
		if part.Stores = append(part.Stores, h); len(part.Stores) == 100 {
			flush()
		}
	}
	flush()
	frames = append(frames, prefix.Frame{Kind: prefix.FrameEnd, Repair: w.repair, Part: parts, Last: w.last, Sum: w.sums.Total()})
	for i := range frames {
		if !w.tell(ctx, &frames[i]) {
			return
		}
	}
	w.owes = false
}

func (w *worker) position() (prefix.Position, bool) {
	s := w.yard.any(w.rng)
	if s == nil {
		return prefix.Position{}, false
	}
	return s.Prefix().Position(w.id, w.epoch)
}

// settle tells until the leader knows the truth. A frame that was in doubt may
// come late and spoil it, so it is looked at again.
func (w *worker) settle(ctx context.Context) bool {
	quiet := 0
	return until(ctx, patience, func() bool {
		if w.epoch == 0 {
			w.register(ctx)
			return false
		}
		if !w.right() {
			quiet = 0
			w.mend(ctx)
			return false
		}
		quiet++
		return quiet > 30
	})
}

// right reports whether the leader of group prefix believes the truth.
func (w *worker) right() bool {
	for _, n := range w.yard.planners() {
		if s := n.store.Load(); s != nil && s.LeadingPrefix() {
			p, ok := s.Prefix().Position(w.id, w.epoch)
			return ok && p.Exact && p.Last == w.last && p.Sums == w.sums
		}
	}
	return false
}

func workerID(i int) fleet.WorkerID { return fleet.WorkerID(fmt.Sprintf("w%d", i)) }
