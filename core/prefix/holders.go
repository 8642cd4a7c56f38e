package prefix

import (
	"math/bits"
	"sync/atomic"
)

// The two holder words of a slot. Up to eight holders stand in them as 16-bit
// lanes in rising order, zeros last, so that equal sets are equal words. More
// are a bitmap in a row of the rowArena, and the first word names the row. The
// top bit of the second word says that the block was stored since eviction last
// came by.
const (
	lanes      = 8
	laneMask   = 0x7FFF
	inRow      = uint64(1) << 63 // in the first word
	referenced = uint64(1) << 63 // in the second word
	shrinkAt   = 6               // a row with so few holders becomes lanes again
)

func rowOf(a uint64) uint32 { return uint32(a) }

func unpack(a, b uint64) (set [lanes]uint16, n int) {
	for n < lanes {
		word := a
		if n >= 4 {
			word = b &^ referenced
		}
		s := uint16(word >> (16 * (n % 4)))
		if s == 0 {
			break
		}
		set[n] = s
		n++
	}
	return set, n
}

func pack(set []uint16) (a, b uint64) {
	for i, s := range set {
		if i < 4 {
			a |= uint64(s) << (16 * i)
		} else {
			b |= uint64(s) << (16 * (i - 4))
		}
	}
	return a, b
}

// hasLane reports whether one of the four lanes of word is s.
func hasLane(word uint64, s uint16) bool {
	const low, high = 0x0001000100010001, 0x8000800080008000
	d := word ^ uint64(s)*low
	return (d-low)&^d&high != 0
}

// addHolder makes slot s a holder of the block at p[at].
func (x *Index) addHolder(p *pageMem, at int, s uint16) {
	key, a, b := p[at], p[at+1], p[at+2]
	switch {
	case a&inRow != 0:
		x.touchRow(rowOf(a))
		if x.rows.set(rowOf(a), s) {
			x.stamps.changed(key)
			x.countPair(key, s, 1)
		}
	case hasLane(a, s) || hasLane(b&^referenced, s):
	default:
		if a, b = x.widen(a, b, s); a == 0 {
			return
		}
		atomic.StoreUint64(&p[at+1], a)
		atomic.StoreUint64(&p[at+2], b|referenced)
		x.stamps.changed(key)
		x.countPair(key, s, 1)
		return
	}
	atomic.StoreUint64(&p[at+2], b|referenced)
}

// widen is the holder words with s added; a is 0 when a row was needed and the
// budget had none.
func (x *Index) widen(a, b uint64, s uint16) (uint64, uint64) {
	set, n := unpack(a, b)
	if n == lanes {
		// An image leaves a free row out, and one that became free since was touched.
		row, ok := x.rows.take(x.budget - x.bytesUsed.Load())
		if !ok {
			x.forgotten.Add(1)
			return 0, 0
		}
		for _, holder := range set {
			x.rows.set(row, holder)
		}
		x.rows.set(row, s)
		return inRow | uint64(row), 0
	}
	i := n
	for ; i > 0 && set[i-1] > s; i-- {
		set[i] = set[i-1]
	}
	set[i] = s
	return pack(set[:n+1])
}

// dropHolder takes s from the block at p[at], and the block out of the index
// when it was the last holder.
func (x *Index) dropHolder(n uint32, p *pageMem, at int, s uint16) {
	if x.removeHolder(p, at, s) {
		x.deleteSlot(n, p, at)
	}
}

// removeHolder takes s from the block at p[at] and reports whether it has no
// holder left. The words are then stale; the caller deletes the slot.
func (x *Index) removeHolder(p *pageMem, at int, s uint16) (empty bool) {
	key, a, b := p[at], p[at+1], p[at+2]
	if a&inRow != 0 {
		x.touchRow(rowOf(a)) // narrow changes it as well
		if !x.rows.unset(rowOf(a), s) {
			return false
		}
		x.countPair(key, s, ^uint64(0))
		empty = x.narrow(p, at)
		x.stamps.changed(key)
		return empty
	}
	set, n := unpack(a, b)
	kept := set[:0]
	for _, holder := range set[:n] {
		if holder != s {
			kept = append(kept, holder)
		}
	}
	if len(kept) == n {
		return false
	}
	x.countPair(key, s, ^uint64(0))
	if len(kept) == 0 {
		return true
	}
	newA, newB := pack(kept)
	atomic.StoreUint64(&p[at+1], newA)
	atomic.StoreUint64(&p[at+2], newB|b&referenced)
	x.stamps.changed(key)
	return false
}

// narrow turns a row with few holders back into lanes.
func (x *Index) narrow(p *pageMem, at int) (empty bool) {
	row := rowOf(p[at+1])
	var set [shrinkAt]uint16
	n := 0
	for i, word := range x.rows.row(row) {
		for ; word != 0; word &= word - 1 {
			if n == shrinkAt {
				return false
			}
			set[n] = uint16(64*i + bits.TrailingZeros64(word))
			n++
		}
	}
	if n > 0 {
		a, b := pack(set[:n])
		// b first: a reader of the old a ignores it, a reader of the new a needs it.
		atomic.StoreUint64(&p[at+2], b|p[at+2]&referenced)
		atomic.StoreUint64(&p[at+1], a)
	}
	x.rows.release(row)
	return n == 0
}

func (x *Index) eachHolder(p *pageMem, at int, visit func(s uint16)) {
	if a := p[at+1]; a&inRow != 0 {
		for i, word := range x.rows.row(rowOf(a)) {
			for ; word != 0; word &= word - 1 {
				visit(uint16(64*i + bits.TrailingZeros64(word)))
			}
		}
		return
	}
	set, n := unpack(p[at+1], p[at+2])
	for _, s := range set[:n] {
		visit(s)
	}
}

// rowArena is the memory of the bitmaps of widely held blocks.
type rowArena struct {
	words  int // words a row
	chunks atomic.Pointer[[][]uint64]
	_      [cacheLine]byte // readers need no more than that
	used   uint32
	free   []uint32
}

const chunkRows = 64

// take hands out a zeroed row, if one is free or its chunk fits in left bytes.
func (r *rowArena) take(left int64) (uint32, bool) {
	if n := len(r.free); n > 0 {
		row := r.free[n-1]
		r.free = r.free[:n-1]
		return row, true
	}
	if r.used%chunkRows == 0 {
		if int64(chunkRows*r.words*8) > left {
			return 0, false
		}
		var grown [][]uint64
		if old := r.chunks.Load(); old != nil {
			grown = append(grown, *old...)
		}
		grown = append(grown, make([]uint64, chunkRows*r.words))
		r.chunks.Store(&grown)
	}
	r.used++
	return r.used - 1, true
}

// chunksUsed is how many chunks have rows that were ever taken.
func (r *rowArena) chunksUsed() int { return int(r.used+chunkRows-1) / chunkRows }

func (r *rowArena) row(n uint32) []uint64 {
	return rowIn(*r.chunks.Load(), r.words, n)
}

func rowIn(chunks [][]uint64, words int, n uint32) []uint64 {
	at := int(n%chunkRows) * words
	return chunks[n/chunkRows][at : at+words : at+words]
}

func (r *rowArena) release(n uint32) {
	for i, row := 0, r.row(n); i < len(row); i++ {
		atomic.StoreUint64(&row[i], 0)
	}
	r.free = append(r.free, n)
}

// set puts s into row n and reports whether it was not there.
func (r *rowArena) set(n uint32, s uint16) bool {
	word, bit := &r.row(n)[s/64], uint64(1)<<(s%64)
	if *word&bit != 0 {
		return false
	}
	atomic.StoreUint64(word, *word|bit)
	return true
}

// unset takes s out of row n and reports whether it was there.
func (r *rowArena) unset(n uint32, s uint16) bool {
	word, bit := &r.row(n)[s/64], uint64(1)<<(s%64)
	if *word&bit == 0 {
		return false
	}
	atomic.StoreUint64(word, *word&^bit)
	return true
}

func (r *rowArena) bytes() int64 {
	if c := r.chunks.Load(); c != nil {
		return int64(len(*c)) * int64(chunkRows*r.words*8)
	}
	return 0
}
