package prefix

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

// teller makes the frames of a few workers, valid ones mostly.
type teller struct {
	rng     *rand.Rand
	workers []*told
	next    uint64
	common  uint64 // blocks that all may have
}

// told is one worker's own account of itself.
type told struct {
	id     fleet.WorkerID
	epoch  fleet.Epoch
	last   uint64
	repair uint64
	held   []Hash // oldest first
	has    map[Hash]bool
}

func newTeller(seed uint64, workers int) *teller {
	t := &teller{rng: rand.New(rand.NewPCG(seed, 7)), common: 3000}
	for i := range workers {
		t.workers = append(t.workers, &told{id: fleet.WorkerID(fmt.Sprint("w", i))})
	}
	return t
}

func sumOf(blocks []Hash) (sum uint64) {
	for _, h := range blocks {
		sum += h.Sum()
	}
	return sum
}

// frames are the next step of some worker.
func (t *teller) frames() []Frame {
	w := t.workers[t.rng.IntN(len(t.workers))]
	switch n := t.rng.IntN(100); {
	case w.epoch == 0 || n < 1:
		t.next++
		*w = told{id: w.id, epoch: fleet.Epoch(t.next), has: map[Hash]bool{}}
		return append([]Frame{{Kind: FrameAttach, Worker: w.id, Epoch: w.epoch}}, t.mend(w, w.held)...)
	case n < 2:
		f := Frame{Kind: FrameDetach, Worker: w.id, Epoch: w.epoch}
		w.epoch = 0
		return []Frame{f}
	case n < 6:
		return t.mend(w, w.held)
	case n < 8: // a frame that got lost
		w.last += 5
		return []Frame{t.delta(w)}
	case n < 10:
		return []Frame{{Kind: FrameSweep}}
	default:
		return []Frame{t.delta(w)}
	}
}

func (t *teller) delta(w *told) Frame {
	f := Frame{Kind: FrameDelta, Worker: w.id, Epoch: w.epoch, First: w.last + 1}
	if t.rng.IntN(100) == 0 {
		f.Cleared, w.held = true, nil
		clear(w.has)
		w.last++
	}
	if gone := min(len(w.held), t.rng.IntN(200)); gone > 0 && t.rng.IntN(3) == 0 {
		f.Removes = slices.Clone(w.held[:gone])
		w.held = w.held[gone:]
		for _, h := range f.Removes {
			delete(w.has, h)
		}
	}
	for range 1 + t.rng.IntN(400) {
		t.next++
		h := Hash(t.next * 0x9E3779B97F4A7C15)
		if t.rng.IntN(4) == 0 { // shared with others
			h = Hash(t.rng.Uint64N(t.common) * 0xD1B54A32D192ED03)
		}
		if !w.has[h] {
			f.Stores, w.held, w.has[h] = append(f.Stores, h), append(w.held, h), true
		}
	}
	w.last += uint64(len(f.Removes) + len(f.Stores))
	f.Last, f.Sum = w.last, sumOf(w.held)
	if f.Last < f.First {
		f.Cleared, f.Last, w.last, w.held, f.Sum = true, f.First, f.First, nil, 0
		clear(w.has)
	}
	return f
}

func (t *teller) mend(w *told, blocks []Hash) []Frame {
	w.repair++
	base := Frame{Worker: w.id, Epoch: w.epoch, Repair: w.repair}
	begin := base
	begin.Kind = FrameBegin
	some := t.rng.IntN(2) == 0 // not all buckets
	for b := range NumBuckets {
		if !some || t.rng.IntN(4) > 0 {
			begin.Buckets.Add(uint8(b))
		}
	}
	out := []Frame{begin}
	part := base
	part.Kind = FramePart
	mended := slices.DeleteFunc(slices.Clone(blocks), func(h Hash) bool { return !begin.Buckets.Has(h.Bucket()) })
	for run := range slices.Chunk(mended, MaxFrameBlocks) {
		part.Stores = run
		out = append(out, part)
		part.Part++
	}
	end := part
	end.Kind, end.Stores, end.Last, end.Sum = FrameEnd, nil, w.last, sumOf(blocks)
	return append(out, end)
}

func apply(t *testing.T, s *State, frames []Frame) (outcomes []Outcome) {
	t.Helper()
	for i := range frames {
		if err := frames[i].Validate(); err != nil {
			t.Fatal(err)
		}
		outcomes = append(outcomes, s.Apply(&frames[i]))
	}
	return outcomes
}

func snapshotOf(t testing.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	snap := s.Snapshot()
	defer snap.Release()
	if n, err := snap.WriteTo(&b); err != nil || n != int64(b.Len()) {
		t.Fatalf("WriteTo = %d, %v", n, err)
	}
	return b.Bytes()
}

// TestReplicasStayEqual: whoever has applied the same frames, be it from a
// snapshot taken at any moment, has the same bytes, also when the index is full
// and forgets.
func TestReplicasStayEqual(t *testing.T) {
	for seed := range uint64(fewer(6, 2)) {
		o := Options{Budget: 1 << 20, Workers: 12}
		if seed%2 == 0 {
			o.Budget = 64 << 20
		}
		tell := newTeller(seed, 20)
		first, second := NewState(o), NewState(o)
		third := NewState(Options{}) // has another budget until it restores
		for range fewer(900, 200) {
			frames := tell.frames()
			got, want := apply(t, first, frames), apply(t, second, frames)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: outcomes %v and %v", seed, got, want)
			}
			if tell.rng.IntN(60) == 0 {
				if err := third.Restore(bytes.NewReader(snapshotOf(t, second))); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				second, third = third, second
			}
		}
		if first.Digest() != second.Digest() {
			t.Errorf("seed %d: digests differ", seed)
		}
		if !bytes.Equal(snapshotOf(t, first), snapshotOf(t, second)) {
			t.Errorf("seed %d: snapshots differ", seed)
		}
		if a, b := first.Stats(), second.Stats(); a != b {
			t.Errorf("seed %d: %+v and %+v", seed, a, b)
		}
		if forgot := first.Stats().Forgotten > 0; fewer(1, 0) == 1 && forgot != (seed%2 == 1) {
			t.Errorf("seed %d: forgotten %v", seed, forgot)
		}
	}
}

// TestASnapshotIsOfOneMoment: what is written while frames go on being applied is
// what was there when it was taken.
func TestASnapshotIsOfOneMoment(t *testing.T) {
	for seed := range uint64(fewer(4, 1)) {
		tell := newTeller(seed, 24)
		tell.common = 200
		s := NewState(Options{Budget: 2 << 20, Workers: 20}) // blocks have rows of holders, too
		for range fewer(300, 150) {
			apply(t, s, tell.frames())
		}
		want := snapshotOf(t, s)
		snap := s.Snapshot()
		if snap.image.rowsUsed == 0 {
			t.Fatal("no block has a row; the test proves half")
		}
		var got bytes.Buffer
		if _, err := snap.WriteTo(&applying{&got, func() { apply(t, s, tell.frames()) }}); err != nil {
			t.Fatal(err)
		}
		snap.Release()
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("seed %d: the snapshot mixes moments", seed)
		}
		if len(s.index.images) != 0 {
			t.Error("the writer still copies for a snapshot that is over")
		}
	}
}

// TestASnapshotIsOfOneMomentOnTwoProcessors: so is what is written at the very
// time at which frames are applied.
func TestASnapshotIsOfOneMomentOnTwoProcessors(t *testing.T) {
	for seed := range uint64(fewer(12, 3)) {
		tell := newTeller(seed, 24)
		tell.common = 200
		s := NewState(Options{Budget: 2 << 20, Workers: 20})
		for range fewer(300, 150) {
			apply(t, s, tell.frames())
		}
		for range fewer(20, 5) {
			want := snapshotOf(t, s)
			var wg sync.WaitGroup
			snap := s.Snapshot()
			begun, over := make(chan struct{}), make(chan struct{})
			wg.Go(func() {
				close(begun)
				for {
					select {
					case <-over:
						return
					default:
						apply(t, s, tell.frames())
					}
				}
			})
			<-begun
			var got bytes.Buffer
			_, err := snap.WriteTo(&got)
			close(over)
			wg.Wait()
			snap.Release()
			if err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Fatalf("seed %d: the snapshot mixes moments, %v", seed, err)
			}
		}
	}
}

// TestSparesComeBack: whatever becomes of a snapshot, the next one's writer finds
// pages to keep copies in.
func TestSparesComeBack(t *testing.T) {
	tell := newTeller(1, 24)
	s := NewState(Options{Budget: 8 << 20, Workers: 20})
	for s.index.sparesWanted() < 3 {
		apply(t, s, tell.frames())
	}
	on := func() { apply(t, s, tell.frames()) }
	for name, write := range map[string]func(*Snapshot){
		"written": func(snap *Snapshot) { _, _ = snap.WriteTo(&applying{new(bytes.Buffer), on}) },
		"cut": func(snap *Snapshot) {
			_, _ = snap.WriteTo(&cutOff{to: &applying{new(bytes.Buffer), on}, left: 100_000})
		},
		"not written": func(*Snapshot) { on() },
	} {
		for range 3 {
			want := s.index.sparesWanted()
			snap := s.Snapshot()
			if got := len(snap.image.pages.own); got != want || len(s.index.spares) != 0 {
				t.Errorf("%s: the snapshot has %d spares, want %d, and the index keeps %d", name, got, want, len(s.index.spares))
			}
			write(snap)
			snap.Release()
			snap.Release()
			if got, want := len(s.index.spares), s.index.sparesWanted(); got != want {
				t.Errorf("%s: %d spares, want %d", name, got, want)
			}
		}
	}
}

// cutOff is a disk that is full after left bytes.
type cutOff struct {
	to   io.Writer
	left int
}

var errFull = errors.New("no space left")

func (c *cutOff) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		return 0, errFull
	}
	return c.to.Write(b)
}

// TestASnapshotThatCannotBeWrittenEnds: wherever the disk is full.
func TestASnapshotThatCannotBeWrittenEnds(t *testing.T) {
	tell := newTeller(1, 24)
	tell.common = 200
	s := NewState(Options{Budget: 2 << 20, Workers: 20}) // blocks have rows of holders, too
	for range 150 {
		apply(t, s, tell.frames())
	}
	whole := len(snapshotOf(t, s))
	for part := range 50 {
		snap := s.Snapshot()
		if _, err := snap.WriteTo(&cutOff{to: io.Discard, left: part * whole / 50}); !errors.Is(err, errFull) {
			t.Errorf("full after %d of 50 parts: %v", part, err)
		}
		snap.Release()
	}
}

// applying is a slow disk: the state goes on between any two writes.
type applying struct {
	*bytes.Buffer
	between func()
}

func (w *applying) Write(b []byte) (int, error) {
	for range 5 {
		w.between()
	}
	return w.Buffer.Write(b)
}

func TestApplyByTheBook(t *testing.T) {
	s := NewState(Options{Workers: 2})
	h := []Hash{1 << 60, 2 << 60, 3 << 60, 4 << 60}
	delta := func(first uint64, sum uint64, stores, removes []Hash) Frame {
		return Frame{
			Kind: FrameDelta, Worker: "w", Epoch: 5, First: first, Last: first + uint64(len(stores)+len(removes)) - 1,
			Stores: stores, Removes: removes, Sum: sum,
		}
	}
	attach := func(id string, e fleet.Epoch) Frame {
		return Frame{Kind: FrameAttach, Worker: fleet.WorkerID(id), Epoch: e}
	}
	begin := func(n uint64, buckets ...uint8) Frame {
		f := Frame{Kind: FrameBegin, Worker: "w", Epoch: 5, Repair: n}
		for _, b := range buckets {
			f.Buckets.Add(b)
		}
		return f
	}
	part := func(n uint64, i uint32, blocks ...Hash) Frame {
		return Frame{Kind: FramePart, Worker: "w", Epoch: 5, Repair: n, Part: i, Stores: blocks}
	}
	end := func(n uint64, parts uint32, last, sum uint64) Frame {
		return Frame{Kind: FrameEnd, Worker: "w", Epoch: 5, Repair: n, Part: parts, Last: last, Sum: sum}
	}
	for i, step := range []struct {
		frame Frame
		want  Outcome
		exact bool
		holds []Hash
	}{
		{delta(1, h[0].Sum(), h[:1], nil), Unattached, false, nil},
		{attach("w", 4), Applied, false, nil},
		{attach("w", 5), Applied, false, nil},
		{attach("w", 5), Old, false, nil},
		{attach("w", 4), Unattached, false, nil},
		{attach("x", 6), Applied, false, nil},
		{attach("y", 7), NoRoom, false, nil},
		{end(1, 0, 0, 0), Inexact, false, nil}, // its beginning was lost
		{begin(1), Applied, false, nil},
		{end(1, 0, 0, 0), Applied, true, nil},
		{delta(1, sumOf(h[:2]), h[:2], nil), Applied, true, h[:2]},
		{delta(1, sumOf(h[:2]), h[:2], nil), Old, true, h[:2]},
		{delta(3, sumOf(h[1:3]), h[2:3], h[:1]), Applied, true, h[1:3]},
		{delta(9, 0, h[3:], nil), Gap, false, h[1:3]},
		{begin(2, h[1].Bucket()), Applied, false, h[2:3]},
		{begin(2, h[2].Bucket()), Old, false, h[2:3]},
		{part(2, 1, h[0]), Gap, false, h[2:3]},
		{end(2, 1, 9, 0), Inexact, false, h[2:3]},
		{delta(3, 0, h[2:3], h[:1]), Inexact, false, h[2:3]},
		{begin(3), Applied, false, h[2:3]},
		{part(3, 0, h[1]), Applied, false, h[1:3]},
		{part(3, 0, h[1]), Old, false, h[1:3]},
		{delta(5, 0, h[3:], nil), Gap, false, h[1:3]},
		{end(3, 2, 9, sumOf(h[1:3])), Gap, false, h[1:3]},
		{begin(4), Applied, false, h[1:3]},
		{end(4, 0, 9, 12345), Mismatch, false, h[1:3]},
		{begin(5), Applied, false, h[1:3]},
		{end(5, 0, 9, sumOf(h[1:3])), Applied, true, h[1:3]},
		{delta(10, sumOf(h[1:]), h[3:], nil), Applied, true, h[1:]},
		{Frame{Kind: FrameDelta, Worker: "w", Epoch: 5, First: 11, Last: 12, Cleared: true, Stores: h[:1], Sum: h[0].Sum()}, Applied, true, h[:1]},
		{delta(13, 1, h[1:2], nil), Mismatch, false, h[:2]},
		{Frame{Kind: FrameDetach, Worker: "w", Epoch: 4}, Unattached, false, h[:2]},
		{Frame{Kind: FrameDetach, Worker: "w", Epoch: 5}, Applied, false, nil},
		{attach("y", 7), Applied, false, nil},
		{Frame{Kind: FrameSweep}, Applied, false, nil},
	} {
		if got := apply(t, s, []Frame{step.frame})[0]; got != step.want {
			t.Fatalf("step %d: %v, want %v", i, got, step.want)
		}
		row, _ := s.Table().Find("w", 5)
		var holds []Hash
		if row.Epoch != 0 {
			s.Table().Index.Each(row.Worker, func(h Hash) { holds = append(holds, h) })
			slices.Sort(holds)
		}
		if row.Exact != step.exact || !slices.Equal(holds, step.holds) {
			t.Fatalf("step %d: exact %v and %x, want %v and %x", i, row.Exact, holds, step.exact, step.holds)
		}
	}
	if s.Sweeping() {
		t.Error("a sweep is left to do")
	}
}

func TestStaleFollowsTheFleet(t *testing.T) {
	s := NewState(Options{})
	for i, id := range []string{"a", "b", "c"} {
		apply(t, s, []Frame{{Kind: FrameAttach, Worker: fleet.WorkerID(id), Epoch: fleet.Epoch(i + 1)}})
	}
	// a is there, b is another incarnation, c registered after the view.
	view := fleet.NewView(2, []fleet.Worker{{ID: "a", Epoch: 1}, {ID: "b", Epoch: 9}})
	stale := s.Stale(view)
	if len(stale) != 1 || stale[0].Worker != "b" || stale[0].Epoch != 2 || stale[0].Kind != FrameDetach {
		t.Errorf("stale: %v", stale)
	}
}

func TestFrameValidate(t *testing.T) {
	good := Frame{Kind: FrameDelta, Worker: "w", Epoch: 1, First: 1, Last: 1, Stores: []Hash{1}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]func(*Frame){
		"no kind":        func(f *Frame) { f.Kind = 0 },
		"unknown kind":   func(f *Frame) { f.Kind = 99 },
		"nobody":         func(f *Frame) { f.Worker = "" },
		"no epoch":       func(f *Frame) { f.Epoch = 0 },
		"no change":      func(f *Frame) { f.Stores = nil },
		"wrong count":    func(f *Frame) { f.Last = 7 },
		"backwards":      func(f *Frame) { f.First = 7 },
		"from zero":      func(f *Frame) { f.First, f.Last = 0, 0 },
		"too many":       func(f *Frame) { f.Stores = make([]Hash, MaxFrameBlocks+1); f.Last = MaxFrameBlocks + 1 },
		"wraps":          func(f *Frame) { f.First, f.Last = 1<<64-1, 0; f.Stores = []Hash{1, 2} },
		"end of blocks":  func(f *Frame) { f.Kind = FrameEnd },
		"part that took": func(f *Frame) { f.Kind, f.Removes = FramePart, []Hash{2} },
	} {
		f := good
		bad(&f)
		if err := f.Validate(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMemoryStaysAtTheBudget is case 18: a million unique chains, half of them
// removed again, and the memory is that of the budget, neither more nor much
// less.
func TestMemoryStaysAtTheBudget(t *testing.T) {
	const chains, length = 1_000_000, 4
	n, budget := fewer(chains, chains/20), unit.Bytes(fewer(16, 3)<<20)
	s := NewState(Options{Budget: budget, Workers: 64})
	rng := rand.New(rand.NewPCG(1, 1))
	apply(t, s, []Frame{{Kind: FrameAttach, Worker: "w", Epoch: 1}, {Kind: FrameBegin, Worker: "w", Epoch: 1, Repair: 1}, {Kind: FrameEnd, Worker: "w", Epoch: 1, Repair: 1}})
	f := Frame{Kind: FrameDelta, Worker: "w", Epoch: 1}
	var half []Hash // of the last frame
	for range n * length / 1024 {
		f.First, f.Removes, f.Stores = f.Last+1, half, f.Stores[:0]
		for range 1024 {
			f.Stores = append(f.Stores, Hash(rng.Uint64()))
		}
		f.Sum += sumOf(f.Stores) - sumOf(f.Removes)
		f.Last += uint64(len(f.Stores) + len(f.Removes))
		if out := s.Apply(&f); out != Applied {
			t.Fatal(out)
		}
		half = slices.Clone(f.Stores[:512])
		if b := s.Stats().Bytes; b > budget*11/10 {
			t.Fatalf("%d bytes over a budget of %d", b, budget)
		}
	}
	if st := s.Stats(); st.Bytes < budget*9/10 || st.Forgotten == 0 || st.Degraded != 0 {
		t.Errorf("%+v with a budget of %d", st, budget)
	}
}

// reseal makes every section's checksum right again, as far as sections can be
// told.
func reseal(b []byte) {
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := len(snapshotMagic); at+6 <= len(b); {
		size := int(binary.LittleEndian.Uint32(b[at+2:]))
		end := at + 6 + size
		if size > section.Max || end+4 > len(b) {
			return
		}
		binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[at:end], table))
		at = end + 4
	}
}

// tryRestore restores b and, if that goes well, uses the state.
func tryRestore(t *testing.T, b []byte) {
	s := NewState(Options{Workers: 4})
	apply(t, s, []Frame{{Kind: FrameAttach, Worker: "before", Epoch: 1}})
	digest := s.Digest()
	if err := s.Restore(bytes.NewReader(b)); err != nil {
		if !errors.Is(err, ErrMalformed) && !errors.Is(err, section.ErrMalformed) {
			t.Fatalf("an error of no kind: %v", err)
		}
		if s.Digest() != digest {
			t.Fatal("a failed restore changed the state")
		}
		return
	}
	// What was accepted is sound: it survives a round trip and further frames.
	again := snapshotOf(t, s)
	if err := NewState(Options{}).Restore(bytes.NewReader(again)); err != nil {
		t.Fatalf("its own snapshot is refused: %v", err)
	}
	tell := newTeller(1, 6)
	tell.next = 1 << 40
	for range 40 {
		apply(t, s, tell.frames())
	}
	var hits Hits
	s.Table().Index.Lookup([]Hash{1, 2, 3}, &hits)
}

func smallSnapshot(t testing.TB) []byte {
	s := NewState(Options{Budget: 1 << 20, Workers: 16})
	tell := newTeller(3, 14)
	for range 60 {
		for _, f := range tell.frames() {
			s.Apply(&f)
		}
	}
	// Rows: blocks that more than eight hold.
	for i := range 14 {
		f := Frame{Kind: FrameAttach, Worker: fleet.WorkerID(fmt.Sprint("r", i)), Epoch: fleet.Epoch(1000 + i)}
		s.Apply(&f)
		f.Kind, f.Repair = FrameBegin, 1
		s.Apply(&f)
		f.Kind, f.Stores = FramePart, []Hash{1 << 61, 2 << 61, 3 << 61}
		s.Apply(&f)
	}
	return snapshotOf(t, s)
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	good := smallSnapshot(t)
	rng := rand.New(rand.NewPCG(1, 1))
	for range fewer(300, 20) {
		b := slices.Clone(good)
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		if err := NewState(Options{}).Restore(bytes.NewReader(b)); err == nil {
			t.Fatal("a flipped bit went unnoticed")
		}
		if err := NewState(Options{}).Restore(bytes.NewReader(good[:rng.IntN(len(good))])); err == nil {
			t.Fatal("a cut snapshot went unnoticed")
		}
		// One whose checksums are right is refused, or sound.
		for range 1 + rng.IntN(3) {
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
		reseal(b)
		tryRestore(t, b)
	}
	if err := NewState(Options{}).Restore(bytes.NewReader(append(slices.Clone(good), 0))); err == nil {
		t.Error("bytes after the end went unnoticed")
	}
}

func FuzzRestore(f *testing.F) {
	good := smallSnapshot(f)
	f.Add(uint32(9), byte(1), uint32(100), byte(255), uint32(0))
	f.Fuzz(func(t *testing.T, at1 uint32, v1 byte, at2 uint32, v2 byte, cut uint32) {
		b := slices.Clone(good)
		b[at1%uint32(len(b))] = v1
		b[at2%uint32(len(b))] = v2
		b = b[:len(b)-int(cut%uint32(len(b)))]
		reseal(b)
		tryRestore(t, b)
	})
}
