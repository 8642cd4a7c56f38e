package prefix

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Worker is an index's name for one incarnation of a worker: a small number,
// an index into [Hits.Blocks]. It is given by [Index.Attach] and may be given to
// another worker some time after [Index.Detach].
type Worker uint16

// MaxWorkers is the most workers an index can hold at once.
const MaxWorkers = 1 << 14

// ErrFull means that every worker number is taken, or still being swept.
var ErrFull = errors.New("prefix: no free worker number")

// Options configure an [Index]. The zero value has the documented defaults.
type Options struct {
	// Budget bounds the index's memory; 0 means 256 MiB. The smallest that works
	// is about 1 MiB. A [State] has up to 1 % more ready for snapshots, and for the
	// time of one a copy of what changes meanwhile.
	Budget unit.Bytes
	// Workers bounds the workers attached at once; 0 means 1024. A block held by
	// more than eight workers costs Workers/8 bytes more.
	Workers int
	// Memory, when set, is asked once for each index for where the memory of its
	// table comes from; nil takes it from the Go heap. Much of a lookup's time is
	// address translation, so memory in huge pages shortens it.
	Memory func(*Index) Memory
}

// Memory is where the memory of one index's table comes from. An index takes more
// as it grows and gives none back while somebody may read it. Whoever made the
// memory, which must not lead back to the index, frees it once the index is no
// longer reachable (runtime.AddCleanup). Whoever has the [Index] or a [Table] may go
// on reading; [Hits] keep the index of their last lookup.
type Memory interface {
	// Words is zeroed memory of n words: 256 KiB, always.
	Words(n int) []uint64
	// Free gives all of it back. The index calls it only where nobody else has seen
	// the index; its maker may call it again, at the same time.
	Free()
}

// Index maps blocks to the workers that hold them. Create it with [New].
// Store, Remove and the like are for one writer at a time, which the index
// enforces by a mutex; Lookup is for any number of readers and takes no lock.
type Index struct {
	// What readers read, and the writer seldom writes.
	dir    atomic.Pointer[directory]
	pages  arena
	rows   rowArena
	owners []atomic.Uint32 // by slot: its Worker plus one; 0 is none, or one that is gone
	slotOf []uint16        // by Worker: its current slot; 0 is none
	turns  atomic.Uint64   // rises after an owner has changed
	wiped  atomic.Uint64   // pages made empty so far
	cells  cellMap
	stamps *stamps

	_ [cacheLine]byte // what the writer writes with each block stays away from readers

	mu     sync.Mutex // held by the writer; the fields down to sink are its own, and the slots of slotOf
	budget int64
	meta   []pageMeta // by page number

	identity    []uint64 // by Worker, from Attach
	slotDigest  []uint64 // by slot: what it adds to digest
	freeWorkers []Worker // a stack
	freeSlots   []uint16 // a stack
	sweeping    sweep
	images      []*image    // under way: see touch
	imaged      bool        // images are taken of it
	spares      []*[]uint64 // pages for the next: see stock
	sink        uint64      // keeps the compiler from dropping warm's reads

	blocks    atomic.Int64
	held      atomic.Int64 // (block, holder) pairs, retired ones until swept
	forgotten atomic.Int64
	bytesUsed atomic.Int64
	digest    atomic.Uint64

	_ [cacheLine]byte
}

// cacheLine is at least the size of a processor's cache lines, and of the pairs
// in which some fetch them.
const cacheLine = 128

const (
	cellBits   = 12
	numShards  = 64
	spareSlots = 64 // slots beyond one a worker, for those not yet swept
)

// directory leads from a hash to a page. Each shard has a run of entries, two to
// the power of its depth, indexed by the hash bits after the cell bits. Which
// runs there are never changes in one directory; the entries, page numbers, do,
// atomically.
type directory struct {
	runs    [numShards]run
	entries []uint32
}

type run struct {
	first uint32
	depth uint8
}

type pageMeta struct {
	depth   uint8 // bits of the hash that all its keys share
	live    uint8
	deleted uint8
	hand    uint8 // where eviction goes on
	inUse   bool
}

// New returns an empty index.
func New(o Options) *Index {
	x := bare(o)
	for s := len(x.owners) - 1; s > 0; s-- {
		x.freeSlots = append(x.freeSlots, uint16(s))
	}
	for w := range slices.Backward(x.slotOf) {
		x.freeWorkers = append(x.freeWorkers, Worker(w))
	}
	d := &directory{}
	for k := range d.runs {
		d.runs[k].first = uint32(k)
		d.entries = append(d.entries, x.newPage(0))
	}
	x.dir.Store(d)
	x.account()
	return x
}

// bare is an index without pages, and without numbers to give.
func bare(o Options) *Index {
	if o.Budget <= 0 {
		o.Budget = 256 << 20
	}
	if o.Workers <= 0 {
		o.Workers = 1024
	}
	workers := min(o.Workers, MaxWorkers)
	slots := 1 + workers + spareSlots // slot 0 is no worker
	x := &Index{
		budget:     int64(o.Budget),
		slotOf:     make([]uint16, workers),
		identity:   make([]uint64, workers),
		slotDigest: make([]uint64, slots),
		owners:     make([]atomic.Uint32, slots),
		stamps:     new(stamps),
	}
	if o.Memory != nil {
		x.pages.memory = o.Memory(x)
	}
	x.rows.words = (slots + 63) / 64
	x.sweeping.retired = make([]bool, slots)
	empty := []*chunk{}
	x.pages.chunks.Store(&empty)
	x.cutShards()
	return x
}

// discard gives the memory of an index back that nobody else has seen.
func (x *Index) discard() {
	if x.pages.memory != nil {
		x.pages.memory.Free()
	}
}

// cutShards gives shard k a width proportional to 2^(k/numShards).
func (x *Index) cutShards() {
	var total float64
	for k := range numShards {
		total += math.Exp2(float64(k) / numShards)
	}
	at, sum := 0, 0.0
	for k := range numShards {
		sum += math.Exp2(float64(k) / numShards)
		for end := int(math.Round(sum / total * (1 << cellBits))); at < end; at++ {
			x.cells[at] = uint8(k)
		}
	}
}

// cellMap is the shard of each cell of hash space.
type cellMap [1 << cellBits]uint8

// place says where a key lives: its shard, and the bits that index the shard's
// run of the directory, left-aligned.
func (c *cellMap) place(key uint64) (shard uint8, runBits uint64) {
	m := key * 0x9E3779B97F4A7C15
	return c[m>>(64-cellBits)] % numShards, m << cellBits
}

func (x *Index) place(key uint64) (shard uint8, runBits uint64) { return x.cells.place(key) }

// entry is the directory entry for a place.
func (d *directory) entry(shard uint8, runBits uint64) *uint32 {
	r := d.runs[shard]
	return &d.entries[uint64(r.first)+runBits>>1>>(63-r.depth&63)] // depth 0 is entry 0
}

// Attach gives a worker incarnation a number. identity names the incarnation in
// digests, the same on every replica; its epoch will do. Errors: [ErrFull].
func (x *Index) Attach(identity uint64) (Worker, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.freeWorkers) == 0 {
		return 0, ErrFull
	}
	w := pop(&x.freeWorkers)
	x.identity[w] = identity
	x.bind(w)
	return w, nil
}

func pop[T any](stack *[]T) T {
	last := len(*stack) - 1
	top := (*stack)[last]
	*stack = (*stack)[:last]
	return top
}

// bind gives w a slot, sweeping retired ones out first if none is left.
func (x *Index) bind(w Worker) {
	for len(x.freeSlots) == 0 {
		x.sweepPages(math.MaxInt)
	}
	s := pop(&x.freeSlots)
	x.slotOf[w] = s
	x.owners[s].Store(uint32(w) + 1)
	x.turns.Add(1)
}

// Detach forgets a worker and all it holds, in constant time: lookups no longer
// see it, [Index.Sweep] frees the memory.
func (x *Index) Detach(w Worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.retire(w) {
		x.freeWorkers = append(x.freeWorkers, w)
	}
}

// Clear forgets all that a worker holds and keeps it attached. It takes constant
// time unless more than 64 workers were lost or cleared since the last whole
// sweep.
func (x *Index) Clear(w Worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.retire(w) {
		x.bind(w)
	}
}

// slot is w's slot, or 0 when w is not attached.
func (x *Index) slot(w Worker) uint16 {
	if int(w) >= len(x.slotOf) {
		return 0
	}
	return x.slotOf[w]
}

func (x *Index) retire(w Worker) bool {
	s := x.slot(w)
	if s == 0 {
		return false
	}
	x.slotOf[w] = 0
	x.owners[s].Store(0)
	x.turns.Add(1)
	x.digest.Add(-x.slotDigest[s])
	x.slotDigest[s] = 0
	x.sweeping.add(s)
	return true
}

// Store records that w holds the blocks. Storing again refreshes their age.
func (x *Index) Store(w Worker, blocks []Hash) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.slot(w); s != 0 {
		for part := range slices.Chunk(blocks, ahead) {
			x.warm(part)
			for _, h := range part {
				x.store(uint64(h), s)
			}
		}
		x.account()
	}
}

// warm reads what storing or removing the blocks will touch. The reads depend on
// nothing but the hashes, so their cache misses overlap.
func (x *Index) warm(part []Hash) {
	var numbers [ahead]uint32
	part = part[:min(len(part), ahead)]
	d := x.dir.Load()
	for i, h := range part {
		numbers[i] = *d.entry(x.place(uint64(h)))
	}
	chunks, sink := *x.pages.chunks.Load(), uint64(0)
	for i, h := range part {
		p, g := page(chunks, numbers[i]), groupOf(uint64(h))
		tags := p[g]
		// Where the key is not in its group it will go to the first slot not live.
		marks := matching(tags, tagOf(uint64(h)))
		if marks == 0 {
			marks = ^tags & topBits
		}
		sink ^= p[slotAt(g, marks|1<<63)&(pageWords-1)]
	}
	x.sink = sink
}

func (x *Index) store(key uint64, s uint16) {
	shard, runBits := x.place(key)
	for {
		n := *x.dir.Load().entry(shard, runBits)
		x.touch(n)
		p := page(*x.pages.chunks.Load(), n)
		at, found := p.locate(key)
		if found {
			x.addHolder(p, at, s)
			return
		}
		m := &x.meta[n]
		switch {
		case at >= 0 && p.tag(at) == tagDeleted:
			m.deleted--
		case m.live+m.deleted >= pageMax:
			x.makeRoom(shard, runBits)
			continue
		}
		m.live++
		p.put(at, key, uint64(s), referenced)
		x.stamps.changed(key)
		x.blocks.Add(1)
		x.countPair(key, s, 1)
		return
	}
}

// countPair enters (key, s) into the digest, or with sign -1 takes it out. A
// retired slot has left the digest already.
func (x *Index) countPair(key uint64, s uint16, sign uint64) {
	x.held.Add(int64(sign))
	w := x.owners[s].Load()
	if w == 0 {
		return
	}
	d := sign * pairDigest(key, x.identity[w-1])
	x.slotDigest[s] += d
	x.digest.Add(d)
}

// Remove records that w no longer holds the blocks. Unknown ones are no error:
// the index may have forgotten them.
func (x *Index) Remove(w Worker, blocks []Hash) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.slot(w)
	if s == 0 {
		return
	}
	chunks := *x.pages.chunks.Load()
	for part := range slices.Chunk(blocks, ahead) {
		x.warm(part)
		for _, h := range part {
			n := x.pageOf(uint64(h))
			p := page(chunks, n)
			if at, found := p.locate(uint64(h)); found {
				x.touch(n)
				x.dropHolder(n, p, at, s)
			}
		}
	}
	x.account()
}

// deleteSlot takes the block at p[at] out of the index.
func (x *Index) deleteSlot(n uint32, p *pageMem, at int) {
	m, key := &x.meta[n], p[at]
	m.live--
	x.blocks.Add(-1)
	if !p.drop(at) {
		m.deleted++
	}
	x.stamps.changed(key)
}

func (x *Index) newPage(depth uint8) uint32 {
	n := x.pages.alloc()
	if int(n) == len(x.meta) {
		x.meta = append(x.meta, pageMeta{})
		x.stock()
	}
	x.touch(n)
	x.meta[n] = pageMeta{depth: depth, inUse: true}
	x.wiped.Add(1) // before the page is wiped: readers may still be in it
	p := page(*x.pages.chunks.Load(), n)
	for g := range pageGroups {
		atomic.StoreUint64(&p[g], 0)
	}
	return n
}

// freePage takes a page, which another stands in for by now, out of use.
func (x *Index) freePage(n uint32) {
	page(*x.pages.chunks.Load(), n).retire()
	x.meta[n].inUse = false
	x.pages.free = append(x.pages.free, n)
}

// makeRoom gives the page of a place at least one empty slot more: by dropping
// deleted slots, by a split, or, at the budget, by forgetting.
func (x *Index) makeRoom(shard uint8, runBits uint64) {
	n := *x.dir.Load().entry(shard, runBits)
	switch m := x.meta[n]; {
	case m.deleted >= pageMax/4:
		x.rebuild(shard, runBits, n)
	case x.affords() && m.depth < 48:
		x.split(shard, runBits, n)
	default:
		x.evict(n)
		x.rebuild(shard, runBits, n)
	}
}

// affords reports whether a split fits the budget. It needs two pages, of which
// one comes back, and perhaps a larger directory.
func (x *Index) affords() bool {
	if len(x.pages.free) >= 2 {
		return true
	}
	return x.bytesUsed.Load()+chunkBytes <= x.budget
}

// rebuild copies page n without its deleted slots and puts the copy in its place.
func (x *Index) rebuild(shard uint8, runBits uint64, n uint32) {
	depth := x.meta[n].depth
	fresh := x.newPage(depth)
	x.copySlots(n, func(uint64) uint32 { return fresh })
	x.meta[fresh].hand = x.meta[n].hand
	x.dir.Load().point(shard, runBits, depth, fresh)
	x.freePage(n)
}

// split replaces page n by two, one for each value of the next hash bit.
func (x *Index) split(shard uint8, runBits uint64, n uint32) {
	depth := x.meta[n].depth
	d := x.dir.Load()
	if depth == d.runs[shard].depth {
		d = d.doubled(shard)
		x.dir.Store(d)
	}
	zero, one := x.newPage(depth+1), x.newPage(depth+1)
	x.copySlots(n, func(key uint64) uint32 {
		if _, b := x.place(key); b>>(63-depth)&1 == 1 {
			return one
		}
		return zero
	})
	bit := uint64(1) << (63 - depth)
	d.point(shard, runBits&^bit, depth+1, zero)
	d.point(shard, runBits|bit, depth+1, one)
	x.freePage(n)
	x.account()
}

// doubled is d with twice the entries for shard.
func (d *directory) doubled(shard uint8) *directory {
	out := &directory{entries: make([]uint32, 0, len(d.entries)+1<<d.runs[shard].depth)}
	for k, r := range d.runs {
		out.runs[k] = run{first: uint32(len(out.entries)), depth: r.depth}
		old := d.entries[r.first:][:1<<r.depth]
		if k != int(shard) {
			out.entries = append(out.entries, old...)
			continue
		}
		out.runs[k].depth++
		for _, n := range old {
			out.entries = append(out.entries, n, n)
		}
	}
	return out
}

// point makes every entry of a shard whose leading depth bits are those of
// runBits name page n.
func (d *directory) point(shard uint8, runBits uint64, depth uint8, n uint32) {
	r := d.runs[shard]
	span := uint64(1) << (r.depth - depth)
	first := runBits >> 1 >> (63 - r.depth) &^ (span - 1)
	for i := range span {
		atomic.StoreUint32(&d.entries[uint64(r.first)+first+i], n)
	}
}

// copySlots copies the live slots of page n to the pages that to names, leaving
// out retired holders. A slot's row of holders moves along.
func (x *Index) copySlots(n uint32, to func(key uint64) uint32) {
	x.touch(n) // it leaves retired holders out there too
	chunks := *x.pages.chunks.Load()
	from := page(chunks, n)
	from.eachLive(func(at int) {
		if x.sweeping.busy() && !x.scrub(n, from, at) {
			return
		}
		key := from[at]
		dst := to(key)
		p := page(chunks, dst)
		spot, _ := p.locate(key)
		p.put(spot, key, from[at+1], from[at+2])
		x.meta[dst].live++
	})
}

// evict forgets up to an eighth of a page: the hand passes over slots, sparing
// once those stored since it last came by.
func (x *Index) evict(n uint32) {
	x.touch(n)
	p := page(*x.pages.chunks.Load(), n)
	m := &x.meta[n]
	for goal, steps := pageSlots/8, 0; goal > 0 && steps < 2*pageSlots; steps++ {
		at := slotsAt + int(m.hand)*slotWords
		m.hand = (m.hand + 1) % pageSlots
		if p.tag(at) < tagLive {
			continue
		}
		if b := p[at+2]; b&referenced != 0 {
			atomic.StoreUint64(&p[at+2], b&^referenced)
			continue
		}
		x.forget(n, p, at)
		goal--
	}
}

func (x *Index) forget(n uint32, p *pageMem, at int) {
	key := p[at]
	x.eachHolder(p, at, func(s uint16) {
		x.forgotten.Add(1)
		x.countPair(key, s, ^uint64(0))
	})
	if p[at+1]&inRow != 0 {
		x.touchRow(rowOf(p[at+1]))
		x.rows.release(rowOf(p[at+1]))
	}
	x.deleteSlot(n, p, at)
}

func (x *Index) account() {
	side := 4*len(x.dir.Load().entries) + 5*len(x.meta) + int(unsafe.Sizeof(*x.stamps))
	x.bytesUsed.Store(x.pages.bytes() + x.rows.bytes() + int64(side))
}

// Stats is what an index holds.
type Stats struct {
	Blocks    unit.Blocks // distinct blocks
	Held      int64       // (block, worker) pairs
	Bytes     unit.Bytes  // memory really used by tables
	Forgotten int64       // pairs given up for the budget since the start
}

// Stats reads the gauges. It may be called beside a writer.
func (x *Index) Stats() Stats {
	return Stats{
		Blocks: unit.Blocks(x.blocks.Load()), Held: x.held.Load(),
		Bytes: unit.Bytes(x.bytesUsed.Load()), Forgotten: x.forgotten.Load(),
	}
}

// Digest is a checksum of the set of (block, worker) pairs, independent of
// their order, with attached workers named by their identity: equal on all
// replicas that applied the same log.
func (x *Index) Digest() uint64 { return x.digest.Load() }

func pairDigest(key, identity uint64) uint64 {
	hi, lo := bits.Mul64(key^0xA0761D6478BD642F, identity*0xE7037ED1A0B428DB^0x8EBC6AF09C88C6E3)
	return hi ^ lo
}
