package prefix

import (
	"math/bits"
	"sync/atomic"
)

// Hits is the answer to a lookup, in columns, and the scratch space that makes
// the next lookup free of allocation. The zero value is ready to use. One Hits
// serves one goroutine at a time.
type Hits struct {
	// Blocks is the number of leading blocks of the chain that a worker holds, by
	// Worker. It may be shorter than the workers attached: those beyond hold none.
	Blocks []int32
	// Workers lists the workers with Blocks > 0, in no particular order.
	Workers []Worker

	alive []aliveSlot
	sink  uint64 // keeps the compiler from dropping the reads ahead
	// live has the bits of the alive slots, laid out as a row of holders, when there
	// were many to begin with; else it is empty.
	live []uint64
}

// aliveSlot is a worker whose hit has not ended yet.
type aliveSlot struct {
	slot   uint16
	worker Worker
}

// Of is the number of leading blocks that w holds.
func (h *Hits) Of(w Worker) int {
	if int(w) >= len(h.Blocks) {
		return 0
	}
	return int(h.Blocks[w])
}

func (h *Hits) reset(workers int) {
	for _, w := range h.Workers {
		h.Blocks[w] = 0
	}
	h.Workers, h.alive, h.live = h.Workers[:0], h.alive[:0], h.live[:0]
	if len(h.Blocks) < workers {
		h.Blocks = make([]int32, workers)
	}
}

// end closes the hit of the alive worker i at blocks blocks.
func (h *Hits) end(i, blocks int) {
	h.Blocks[h.alive[i].worker] = int32(blocks)
	if s := h.alive[i].slot; len(h.live) > 0 {
		h.live[s/64] &^= 1 << (s % 64)
	}
	h.alive[i] = h.alive[len(h.alive)-1]
	h.alive = h.alive[:len(h.alive)-1]
}

// Lookup finds, for each worker, how many leading blocks of chain it holds. It
// takes no lock and allocates only while h grows. Beside a writer each block is
// answered as of some moment during the call.
func (x *Index) Lookup(chain []Hash, h *Hits) {
	h.reset(len(x.slotOf))
	if len(chain) == 0 {
		return
	}
	a, b, ok := x.find(uint64(chain[0]))
	if !ok || !x.begin(h, a, b) {
		return
	}
	done := 1
	for done < len(chain) && len(h.alive) > 0 {
		part := chain[done:min(done+ahead, len(chain))]
		n := x.walk(part, h, done, &a, &b)
		done += n
		if n < len(part) {
			break
		}
	}
	for len(h.alive) > 0 {
		h.end(len(h.alive)-1, done)
	}
}

// ahead is how many blocks of a chain are read at once. Their cache misses
// overlap, which is most of a long lookup's time.
const ahead = 32

// walk goes on with at most ahead blocks, the first of which is block base of
// the chain. It returns how many of them were found before the first missing
// one. a and b are the holder words of the block before, and become those of
// the last one found.
func (x *Index) walk(part []Hash, h *Hits, base int, a, b *uint64) int {
	var numbers [ahead]uint32
	var slots [ahead]*slotMem
	part = part[:min(len(part), ahead)]
	d := x.dir.Load()
	for i, hash := range part {
		numbers[i] = atomic.LoadUint32(d.entry(x.place(uint64(hash))))
	}
	chunks := *x.pages.chunks.Load() // after the numbers: it has them all
	for i, hash := range part {
		p, g := page(chunks, numbers[i]), groupOf(uint64(hash))
		marks := matching(atomic.LoadUint64(&p[g]), tagOf(uint64(hash)))
		slots[i] = p.slot(slotAt(g, marks|1<<63)) // the last slot will do where there is no mark
	}
	var touched uint64
	for _, s := range slots[:len(part)] {
		touched |= atomic.LoadUint64(&s[0]) | atomic.LoadUint64(&s[2]) // a slot may lie across two cache lines
	}
	h.sink = touched
	for i, hash := range part {
		s := slots[i]
		found := atomic.LoadUint64(&s[0]) == uint64(hash)
		nextA, nextB, ok := atomic.LoadUint64(&s[1]), atomic.LoadUint64(&s[2])&^referenced, true
		if !found || atomic.LoadUint64(&s[0]) != uint64(hash) {
			nextA, nextB, ok = x.find(uint64(hash))
		}
		if !ok {
			return i
		}
		if nextA == *a && nextB == *b && nextA&inRow == 0 {
			continue
		}
		*a, *b = nextA, nextB
		if x.narrowHits(h, nextA, nextB, base+i); len(h.alive) == 0 {
			return i
		}
	}
	return len(part)
}

// begin makes the holders of the first block alive. It reports whether there
// are any.
func (x *Index) begin(h *Hits, a, b uint64) bool {
	if a&inRow == 0 {
		set, n := unpack(a, b)
		for _, s := range set[:n] {
			x.enliven(h, s)
		}
		return len(h.alive) > 0
	}
	row := x.readRow(a)
	for i := range row {
		for word := atomic.LoadUint64(&row[i]); word != 0; word &= word - 1 {
			x.enliven(h, uint16(64*i+bits.TrailingZeros64(word)))
		}
	}
	if len(h.alive) > len(row) {
		h.live = append(h.live, make([]uint64, len(row))...)
		for _, a := range h.alive {
			h.live[a.slot/64] |= 1 << (a.slot % 64)
		}
	}
	return len(h.alive) > 0
}

func (x *Index) enliven(h *Hits, s uint16) {
	if owner := x.owners[s].Load(); owner != 0 {
		w := Worker(owner - 1)
		h.alive = append(h.alive, aliveSlot{s, w})
		h.Workers = append(h.Workers, w)
	}
}

// narrowHits ends the hits of alive workers that do not hold block i.
func (x *Index) narrowHits(h *Hits, a, b uint64, i int) {
	if a&inRow != 0 {
		row := x.readRow(a)
		if len(h.live) > 0 && len(h.alive) > len(row) && holdsAll(row, h.live) {
			return
		}
		for k := len(h.alive) - 1; k >= 0; k-- { //nolint:modernize // an iterator here makes lookups half as slow again
			if s := h.alive[k].slot; atomic.LoadUint64(&row[s/64])>>(s%64)&1 == 0 {
				h.end(k, i)
			}
		}
		return
	}
	for k := len(h.alive) - 1; k >= 0; k-- { //nolint:modernize // an iterator here makes lookups half as slow again
		if s := h.alive[k].slot; !hasLane(a, s) && !hasLane(b, s) {
			h.end(k, i)
		}
	}
}

// holdsAll reports whether a row has all of the slots.
func holdsAll(row, slots []uint64) bool {
	var missing uint64
	for i := range min(len(row), len(slots)) {
		missing |= slots[i] &^ atomic.LoadUint64(&row[i])
	}
	return missing == 0
}

func (x *Index) readRow(a uint64) []uint64 {
	return rowIn(*x.rows.chunks.Load(), x.rows.words, rowOf(a))
}

// pageOf is the page that may hold key.
func (x *Index) pageOf(key uint64) uint32 {
	return atomic.LoadUint32(x.dir.Load().entry(x.place(key)))
}

// find reads a block's holder words, without the referenced bit. A page can be
// replaced under a reader, and even wiped and put back in its old place, so a
// miss counts only if no page was wiped meanwhile and the directory still names
// the page that was searched.
func (x *Index) find(key uint64) (a, b uint64, ok bool) {
	for {
		wiped, n := x.wiped.Load(), x.pageOf(key)
		if a, b, ok = page(*x.pages.chunks.Load(), n).search(key); ok {
			return a, b &^ referenced, true
		}
		if x.wiped.Load() == wiped && x.pageOf(key) == n {
			return 0, 0, false
		}
	}
}
