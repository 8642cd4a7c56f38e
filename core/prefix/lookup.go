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

	alive
	seen     opening
	hints    hints
	pipeline pipeline
}

// Of is the number of leading blocks that w holds.
func (h *Hits) Of(w Worker) int {
	if int(w) >= len(h.Blocks) {
		return 0
	}
	return int(h.Blocks[w])
}

func (h *Hits) reset(workers int) {
	if len(h.Workers) > len(h.Blocks)/16 {
		clear(h.Blocks)
	} else {
		for _, w := range h.Workers {
			h.Blocks[w] = 0
		}
	}
	h.Workers = h.Workers[:0]
	if len(h.Blocks) < workers {
		h.Blocks, h.Workers = make([]int32, workers), make([]Worker, 0, workers)
	}
}

// alive are the slots whose hit has not ended yet. While the blocks so far had
// rows of holders they are bits of many, laid out as such a row without its empty
// end; from the first block on that has few holders they are in few.
type alive struct {
	n     int
	wide  bool // they are in many
	few   [lanes]uint16
	many  []uint64
	owner []Worker // by slot, of those that were alive at the beginning; whole words of many

	a, b uint64 // holder words of the last block; none where it had a row
}

// passed notes the holder words of a block that the alive slots hold: the next
// one with the same ends no hit. Rows are not compared by their names.
func (h *Hits) passed(a, b uint64) {
	if h.a, h.b = a, b; a&inRow != 0 {
		h.a, h.b = 0, referenced // no words are
	}
}

// opening is what a beginning with a row of holders came to. Prompts of one kind
// begin alike, so the next one's row is often equal, and whose the slots are need
// not be asked again.
type opening struct {
	index   *Index
	turns   uint64
	row     []uint64
	many    []uint64
	workers []Worker
}

// Lookup finds, for each worker, how many leading blocks of chain it holds. It
// takes no lock and allocates only while h grows. Beside a writer each block is
// answered as of some moment during the call.
func (x *Index) Lookup(chain []Hash, h *Hits) {
	h.reset(len(x.slotOf))
	if len(chain) == 0 {
		return
	}
	_, a, b, ok := x.find(uint64(chain[0]))
	if !ok || !x.begin(h, a, b) {
		return
	}
	h.endAll(x.walk(chain, h, a, b))
}

// begin makes the holders of the first block alive. It reports whether there
// are any.
func (x *Index) begin(h *Hits, a, b uint64) bool {
	if len(h.owner) < len(x.owners) {
		h.owner = make([]Worker, 64*x.rows.words)
	}
	if h.seen.index != x {
		h.seen.index, h.seen.row = nil, h.seen.row[:0]
	}
	h.n, h.wide, h.many = 0, a&inRow != 0, h.many[:0]
	if h.wide {
		x.beginWide(h, x.readRow(a))
		return h.n > 0
	}
	set, n := unpack(a, b)
	for _, s := range set[:n] {
		if x.enliven(h, s) {
			h.few[h.n] = s
			h.n++
		}
	}
	return h.n > 0
}

// beginWide is begin with a row.
func (x *Index) beginWide(h *Hits, row []uint64) {
	turns := x.turns.Load() // before the owners are read
	if seen := &h.seen; seen.index != x || seen.turns != turns || !equalRow(row, seen.row) {
		*seen = opening{x, turns, seen.row[:0], seen.many, seen.workers}
		for i := range row {
			seen.row = append(seen.row, atomic.LoadUint64(&row[i]))
		}
		x.enlivenRow(h)
		seen.many, seen.workers = append(seen.many[:0], h.many...), append(seen.workers[:0], h.Workers...)
	} else {
		h.many, h.Workers = append(h.many, seen.many...), append(h.Workers, seen.workers...)
	}
	h.n = len(h.Workers)
}

func equalRow(row, seen []uint64) bool {
	if len(row) != len(seen) {
		return false
	}
	var differ uint64
	for i := range seen {
		differ |= seen[i] ^ atomic.LoadUint64(&row[i])
	}
	return differ == 0
}

// enlivenRow makes the slots of seen.row alive.
func (x *Index) enlivenRow(h *Hits) {
	for i, word := range h.seen.row {
		for left := word; left != 0; left &= left - 1 {
			if bit := bits.TrailingZeros64(left); !x.enliven(h, uint16(64*i+bit)) {
				word &^= 1 << bit
			}
		}
		h.many = append(h.many, word)
	}
	for len(h.many) > 0 && h.many[len(h.many)-1] == 0 {
		h.many = h.many[:len(h.many)-1]
	}
}

// enliven notes whose slot s is, if it is anybody's.
func (x *Index) enliven(h *Hits, s uint16) bool {
	owner := x.owners[s].Load()
	if owner == 0 {
		return false
	}
	w := Worker(owner - 1)
	h.owner[s] = w
	h.Workers = append(h.Workers, w)
	return true
}

// narrowHits ends the hits, at blocks blocks, of alive slots that do not hold
// the block with the holder words a and b.
func (x *Index) narrowHits(h *Hits, a, b uint64, blocks int) {
	switch {
	case a&inRow == 0 && h.wide:
		h.keepLanes(a, b, blocks)
	case h.wide:
		h.keepRow(x.readRow(a), blocks)
	case a&inRow != 0:
		row := x.readRow(a)
		for k := h.n - 1; k >= 0; k-- {
			if s := h.few[k]; atomic.LoadUint64(&row[s/64])>>(s%64)&1 == 0 {
				h.end(k, blocks)
			}
		}
	default:
		for k := h.n - 1; k >= 0; k-- {
			if s := h.few[k]; !hasLane(a, s) && !hasLane(b, s) {
				h.end(k, blocks)
			}
		}
	}
}

// end closes the hit of the alive slot few[k].
func (h *Hits) end(k, blocks int) {
	h.Blocks[h.owner[h.few[k]]] = int32(blocks)
	h.n--
	h.few[k] = h.few[h.n]
}

// keepRow closes the hits of the slots in many that are not in row.
func (h *Hits) keepRow(row []uint64, blocks int) {
	row = row[:len(h.many)]
	var missing uint64
	for i, live := range h.many {
		missing |= live &^ atomic.LoadUint64(&row[i])
	}
	if missing == 0 {
		return // so is most
	}
	for i, live := range h.many {
		if gone := live &^ atomic.LoadUint64(&row[i]); gone != 0 {
			h.endBits(i, gone, blocks)
		}
	}
}

// keepLanes closes the hits of the slots in many that the holder words do not
// name, and moves the others to few.
func (h *Hits) keepLanes(a, b uint64, blocks int) {
	set, n := unpack(a, b)
	kept := 0
	for _, s := range set[:n] {
		if i, bit := int(s/64), uint64(1)<<(s%64); i < len(h.many) && h.many[i]&bit != 0 {
			h.many[i] &^= bit
			h.few[kept] = s
			kept++
		}
	}
	for i, live := range h.many {
		h.endBits(i, live, blocks)
	}
	h.n, h.wide = kept, false
}

// endBits closes the hits of the slots that are gone from word i of many.
func (h *Hits) endBits(i int, gone uint64, blocks int) {
	h.many[i] &^= gone
	h.n -= bits.OnesCount64(gone)
	owner, out := (*[64]Worker)(h.owner[64*i:]), h.Blocks
	for ; gone != 0; gone &= gone - 1 {
		out[owner[bits.TrailingZeros64(gone)&63]] = int32(blocks)
	}
}

func (h *Hits) endAll(blocks int) {
	for i := range h.many {
		h.endBits(i, h.many[i], blocks)
	}
	if !h.wide {
		for h.n > 0 {
			h.end(h.n-1, blocks)
		}
	}
}

func (x *Index) readRow(a uint64) []uint64 {
	return rowIn(*x.rows.chunks.Load(), x.rows.words, rowOf(a))
}

// pageOf is the page that may hold key.
func (x *Index) pageOf(key uint64) uint32 {
	return atomic.LoadUint32(x.dir.Load().entry(x.place(key)))
}

// find reads a block's holder words, without the referenced bit, and says where
// they stand. A page can be replaced under a reader, and even wiped and put back in its old place, so a
// miss counts only if no page was wiped meanwhile and the directory still names
// the page that was searched.
func (x *Index) find(key uint64) (s *slotMem, a, b uint64, ok bool) {
	for {
		wiped, n := x.wiped.Load(), x.pageOf(key)
		if s, a, b, ok = page(*x.pages.chunks.Load(), n).search(key); ok {
			return s, a, b &^ referenced, true
		}
		if x.wiped.Load() == wiped && x.pageOf(key) == n {
			return nil, 0, 0, false
		}
	}
}
