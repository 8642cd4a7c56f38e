package prefix

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
)

// State is the replicated side of the index: which incarnations of workers are
// known, how far each one's frames have been applied, and the [Index] itself.
//
// It changes by Apply alone and is a function of the sequence of frames: no
// clock, no randomness, no map order. Whoever applies the same frames has the
// same [State.Digest]. Apply, Snapshot and the like are safe for concurrent
// use; readers of the index take a [Table] and no lock.
type State struct {
	options Options

	mu       sync.Mutex
	index    *Index
	workers  []*attached                  // by ID
	named    map[fleet.WorkerID]*attached // the same; each frame asks for one
	version  uint64                       // of the table; each node's own
	applied  uint64                       // frames so far
	captures uint64                       // snapshots so far

	table atomic.Pointer[Table]
}

// attached is one incarnation. One that a snapshot has seen is not changed any more:
// see [State.own].
type attached struct {
	seen   uint64 // captures when it was made
	id     fleet.WorkerID
	epoch  fleet.Epoch
	worker Worker
	exact  bool
	last   uint64 // last change applied
	sums   Sums   // of what it says it holds
	counts [NumBuckets]int32

	repair   uint64 // the number of its last repair
	parts    uint32 // parts of it applied
	underway bool
}

// Table says which number of an index means which incarnation. It is immutable;
// a change publishes a new one.
type Table struct {
	// Index is the one that the numbers belong to.
	Index *Index
	// Version grows with every change of the rest.
	Version uint64
	// Stride is how many blocks of a prompt are one block of the index: see
	// [AppendStride].
	Stride int
	rows   []Row // by worker
}

// Row is one incarnation in a [Table].
type Row struct {
	ID     fleet.WorkerID
	Epoch  fleet.Epoch
	Worker Worker
	// Exact is whether the index knows all that the worker holds, but for what the
	// budget forgot. A worker that has not told yet, or of which a frame was lost,
	// is not exact: it is degraded.
	Exact bool
}

// Find is the row of an incarnation.
func (t *Table) Find(id fleet.WorkerID, epoch fleet.Epoch) (Row, bool) {
	i, ok := slices.BinarySearchFunc(t.rows, id, func(r Row, id fleet.WorkerID) int { return cmp.Compare(r.ID, id) })
	if !ok || t.rows[i].Epoch != epoch {
		return Row{}, false
	}
	return t.rows[i], true
}

// Rows lists all incarnations by worker id. Do not modify it.
func (t *Table) Rows() []Row { return t.rows }

// Outcome is what became of a frame.
type Outcome uint8

// The outcomes.
const (
	// Applied frames took effect.
	Applied Outcome = iota + 1
	// Old frames had been applied before, or belong to a repair that is over.
	Old
	// Gap means that changes between the state and the frame are missing. The
	// worker is degraded and to be repaired.
	Gap
	// Mismatch means that the frame was applied and what the worker says it holds
	// is not what its frames add up to. The worker is degraded and to be repaired.
	Mismatch
	// Unattached means that the incarnation is not known, or no longer.
	Unattached
	// NoRoom means that as many workers are attached as the index has numbers for.
	NoRoom
	// Inexact means that the frame took effect, or had before, and that the worker is to
	// be repaired all the same: the repair it began with, or that was asked for, has not
	// ended. Frames of it may have been lost, so the worker must not take this for an
	// acknowledgement of all before.
	Inexact
)

// String is the outcome's name in metrics.
func (o Outcome) String() string {
	names := [...]string{Applied: "applied", Old: "old", Gap: "gap", Mismatch: "mismatch", Unattached: "unattached", NoRoom: "no_room", Inexact: "inexact"}
	if int(o) >= len(names) || o == 0 {
		return "unknown"
	}
	return names[o]
}

// Position is how far a worker's frames have been applied: what it compares
// with its own memory to know what to send.
type Position struct {
	Last  uint64
	Exact bool
	// Blocks is how many the worker says it holds.
	Blocks unit.Blocks
	// Repair is the number of the worker's last repair.
	Repair uint64
	Sums   Sums
}

// NewState is an empty state whose index has these options.
func NewState(o Options) *State {
	s := &State{options: o, index: New(o), named: map[fleet.WorkerID]*attached{}}
	s.index.imaged = true
	s.publish()
	return s
}

// Table is the present table.
func (s *State) Table() *Table { return s.table.Load() }

// Position is how far an incarnation's frames have been applied; ok is false
// when it is not attached.
func (s *State) Position(id fleet.WorkerID, epoch fleet.Epoch) (p Position, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.current(id, epoch)
	if a == nil {
		return Position{}, false
	}
	return Position{Last: a.last, Exact: a.exact, Blocks: unit.Blocks(a.blocks()), Repair: a.repair, Sums: a.sums}, true
}

// sweepEach is how many pages each frame sweeps while there is anything to
// sweep: four times as many blocks as a frame can store.
const sweepEach = 64

// sweepAlone is how many pages a FrameSweep visits.
const sweepAlone = 512

// Apply applies a valid frame. It keeps none of the frame's memory.
func (s *State) Apply(f *Frame) Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied++
	sweep := sweepEach
	if f.Kind == FrameSweep {
		sweep = sweepAlone
	}
	out := s.apply(f)
	s.index.Sweep(sweep)
	return out
}

func (s *State) apply(f *Frame) Outcome {
	switch f.Kind {
	case FrameAttach:
		return s.attach(f)
	case FrameSweep:
		return Applied
	case FrameDetach, FrameDelta, FrameBegin, FramePart, FrameEnd:
		if a := s.current(f.Worker, f.Epoch); a != nil {
			return s.applyTo(s.own(a), f)
		}
	}
	return Unattached
}

func (s *State) applyTo(a *attached, f *Frame) Outcome {
	switch f.Kind {
	case FrameDetach:
		s.detach(a)
		return Applied
	case FrameDelta:
		return a.settled(s.delta(a, f))
	case FrameBegin:
		return s.begin(a, f)
	case FramePart:
		return s.part(a, f)
	case FrameEnd:
		return a.settled(s.end(a, f))
	case FrameAttach, FrameSweep: // not of an attached worker
	}
	return Unattached
}

// settled is the outcome of a frame that is answered, given what is known of the
// worker after it.
func (a *attached) settled(out Outcome) Outcome {
	if (out == Applied || out == Old) && !a.exact {
		return Inexact
	}
	return out
}

func (s *State) find(id fleet.WorkerID) (int, bool) {
	return slices.BinarySearchFunc(s.workers, id, func(a *attached, id fleet.WorkerID) int { return cmp.Compare(a.id, id) })
}

func (s *State) current(id fleet.WorkerID, epoch fleet.Epoch) *attached {
	if a := s.named[id]; a != nil && a.epoch == epoch {
		return a
	}
	return nil
}

// own is a itself, or what takes its place because a snapshot has it.
func (s *State) own(a *attached) *attached {
	if a.seen == s.captures {
		return a
	}
	fresh := *a
	fresh.seen = s.captures
	i, _ := s.find(a.id)
	s.workers[i], s.named[a.id] = &fresh, &fresh
	return &fresh
}

// attach makes room for an incarnation. An older one of the worker is over; a
// newer one stays.
func (s *State) attach(f *Frame) Outcome {
	i, found := s.find(f.Worker)
	if found {
		switch old := s.workers[i]; {
		case old.epoch == f.Epoch:
			return Old
		case old.epoch > f.Epoch:
			return Unattached
		default:
			s.detach(old)
		}
	}
	w, err := s.index.Attach(uint64(f.Epoch))
	if err != nil {
		return NoRoom
	}
	a := &attached{seen: s.captures, id: f.Worker, epoch: f.Epoch, worker: w}
	s.workers = slices.Insert(s.workers, i, a)
	s.named[a.id] = a
	s.publish()
	return Applied
}

func (s *State) detach(a *attached) {
	s.index.Detach(a.worker)
	i, _ := s.find(a.id)
	s.workers = slices.Delete(s.workers, i, i+1)
	delete(s.named, a.id)
	s.publish()
}

func (s *State) delta(a *attached, f *Frame) Outcome {
	switch {
	case f.Last <= a.last:
		return Old
	case a.underway, f.First != a.last+1:
		s.setExact(a, false)
		return Gap
	}
	if f.Cleared {
		s.index.Clear(a.worker)
		a.forget()
	}
	s.index.Remove(a.worker, f.Removes)
	for _, h := range f.Removes {
		a.sums.Drop(h)
		a.counts[h.Bucket()]--
	}
	s.store(a, f.Stores)
	a.last = f.Last
	return s.compare(a, f)
}

func (s *State) store(a *attached, blocks []Hash) {
	s.index.Store(a.worker, blocks)
	for _, h := range blocks {
		a.sums.Add(h)
		a.counts[h.Bucket()]++
	}
}

func (a *attached) forget() { a.sums, a.counts = Sums{}, [NumBuckets]int32{} }

func (a *attached) blocks() (n int64) {
	for _, c := range a.counts {
		n += int64(c)
	}
	return n
}

// compare degrades a worker that does not hold what its frames add up to.
func (s *State) compare(a *attached, f *Frame) Outcome {
	if a.sums.Total() == f.Sum {
		return Applied
	}
	s.setExact(a, false)
	return Mismatch
}

func (s *State) begin(a *attached, f *Frame) Outcome {
	if f.Repair <= a.repair {
		return Old
	}
	a.repair, a.parts, a.underway = f.Repair, 0, true
	s.setExact(a, false)
	if f.Buckets.Len() == NumBuckets {
		s.index.Clear(a.worker)
		a.forget()
		return Applied
	}
	if f.Buckets.Len() > 0 {
		s.index.removeBuckets(a.worker, f.Buckets)
	}
	for b := range a.sums {
		if f.Buckets.Has(uint8(b)) {
			a.sums[b], a.counts[b] = 0, 0
		}
	}
	return Applied
}

func (s *State) part(a *attached, f *Frame) Outcome {
	switch {
	case !a.underway || f.Repair != a.repair || f.Part < a.parts:
		return Old
	case f.Part > a.parts:
		a.underway = false
		return Gap
	}
	a.parts++
	s.store(a, f.Stores)
	return Applied
}

func (s *State) end(a *attached, f *Frame) Outcome {
	switch {
	case !a.underway || f.Repair != a.repair:
		return Old
	case f.Part != a.parts:
		a.underway = false
		return Gap
	}
	a.underway, a.last = false, f.Last
	if out := s.compare(a, f); out != Applied {
		return out
	}
	s.setExact(a, true)
	return Applied
}

func (s *State) setExact(a *attached, exact bool) {
	if a.exact != exact {
		a.exact = exact
		s.publish()
	}
}

// publish makes a new table.
func (s *State) publish() {
	s.version++
	t := &Table{Index: s.index, Stride: 1, Version: s.version, rows: make([]Row, 0, len(s.workers))}
	for _, a := range s.workers {
		t.rows = append(t.rows, Row{ID: a.id, Epoch: a.epoch, Worker: a.worker, Exact: a.exact})
	}
	s.table.Store(t)
}

// Stale lists the frames that make the state follow a fleet: detach what the
// view no longer has. The leader proposes them; a worker is attached when it
// first speaks.
func (s *State) Stale(view *fleet.View) []Frame {
	var out []Frame
	for _, r := range s.Table().rows {
		// An epoch beyond the view is of a worker that registered since.
		if uint64(r.Epoch) <= view.Index && view.Current(r.ID, r.Epoch) < 0 {
			out = append(out, Frame{Kind: FrameDetach, Worker: r.ID, Epoch: r.Epoch})
		}
	}
	return out
}

// Sweeping reports whether memory of workers that are gone waits to be freed:
// every frame frees some, and when there are no others a FrameSweep does.
func (s *State) Sweeping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.sweeping.busy()
}

// StateStats is what a state holds.
type StateStats struct {
	Stats           // of the index
	Workers  int    // attached
	Degraded int    // of them not exact
	Frames   uint64 // given to Apply since the start
}

// Stats reads the gauges.
func (s *State) Stats() StateStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := StateStats{Stats: s.index.Stats(), Workers: len(s.workers), Frames: s.applied}
	for _, a := range s.workers {
		if !a.exact {
			out.Degraded++
		}
	}
	return out
}
