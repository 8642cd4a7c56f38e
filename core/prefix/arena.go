package prefix

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// The table's memory. Hash space is cut into shards of unequal width; each shard
// is an extendible hash: a directory of pages of pageSlots slots. A page that
// fills splits in two, so memory grows a page at a time, nothing is ever
// rehashed as a whole, and no garbage is made. Were all shards equally wide,
// they would split all at once and the fill would swing between 42 and 85 %;
// widths spread over one octave keep it near 60 % at any size.
//
// A page is 4 KiB: first the tags, then the slots. A slot is three words: key, and
// eight 16-bit holders in two words. Its tag is a byte: empty, deleted, or seven
// bits of the key with the top bit set. Tags stand in groups of eight, a word. A
// key's probe starts at its own group and ends at a group with an empty slot, so
// that one word tells, without a branch that guesses, which slot must be the
// key's; and the tags are few enough to stay in the processor's caches.
//
// Every word is read and written atomically. A slot is filled before its tag is
// set and the tag is cleared before the key, and a reader believes the holders
// only if the key is the same before and after it read them.
const (
	groupSlots = 8
	slotWords  = 3
	pageGroups = 20
	pageSlots  = pageGroups * groupSlots
	slotsAt    = 32 // word offset of the first slot
	pageWords  = slotsAt + pageSlots*slotWords
	pageMax    = pageSlots * 7 / 8 // live and deleted slots that make a page full
	chunkPages = 64
	chunkBytes = chunkPages * pageWords * 8

	tagEmpty   = 0x00
	tagDeleted = 0x01
	tagLive    = 0x80

	everyTag = 0x0101010101010101
	topBits  = 0x8080808080808080
)

// pageMem is the memory of one page.
type pageMem [pageWords]uint64

// chunk is the memory of chunkPages pages.
type chunk [chunkPages]pageMem

// arena hands out pages. Only the writer allocates and frees; readers follow
// page numbers through an immutable slice of chunks.
type arena struct {
	chunks atomic.Pointer[[]*chunk]
	_      [cacheLine]byte // readers need no more than that
	memory Memory
	used   uint32   // pages handed out so far
	free   []uint32 // pages given back
}

func (a *arena) alloc() uint32 {
	if n := len(a.free); n > 0 {
		p := a.free[n-1]
		a.free = a.free[:n-1]
		return p
	}
	if a.used%chunkPages == 0 {
		var grown []*chunk
		if old := a.chunks.Load(); old != nil {
			grown = append(grown, *old...)
		}
		grown = append(grown, a.newChunk())
		a.chunks.Store(&grown)
	}
	a.used++
	return a.used - 1
}

func (a *arena) newChunk() *chunk {
	if a.memory == nil {
		return new(chunk)
	}
	return (*chunk)(unsafe.Pointer(unsafe.SliceData(a.memory.Words(chunkBytes / 8))))
}

func (a *arena) bytes() int64 {
	if c := a.chunks.Load(); c != nil {
		return int64(len(*c)) * chunkBytes
	}
	return 0
}

// page is the memory of page n.
func page(chunks []*chunk, n uint32) *pageMem { return &chunks[n/chunkPages][n%chunkPages] }

// tagOf is the byte that stands for key; groupOf says where it stands.
func tagOf(key uint64) uint64 { return tagLive | key>>57 }

// matching marks, by the top bit of its byte, each slot of a group that may hold
// a key with that tag. The lowest mark is never false; a higher one can be.
func matching(tags, tag uint64) uint64 {
	x := tags ^ tag*everyTag
	return (x - everyTag) &^ x & topBits
}

// hasEmpty is not zero if a slot of the group is empty: no tag, not even deleted.
func hasEmpty(tags uint64) uint64 {
	return ^(tags | tags<<7) & topBits
}

// groupOf is where key's probe starts, below pageGroups.
func groupOf(key uint64) uint64 { return key & 0xFFFF * pageGroups >> 16 }

// following is the group after g.
func following(g uint64) uint64 {
	if g++; g == pageGroups {
		return 0
	}
	return g
}

// slotAt is the word offset of the slot of the lowest mark in group g.
func slotAt(g, marks uint64) int {
	return slotsAt + (int(g)*groupSlots+bits.TrailingZeros64(marks)/8)*slotWords
}

// slotOf splits a slot's word offset into the group of its tag and the bits by
// which the tag is shifted in the group's word.
func slotOf(at int) (g, shift int) {
	slot := (at - slotsAt) / slotWords
	return slot / groupSlots, slot % groupSlots * 8
}

func (p *pageMem) tag(at int) uint64 {
	g, shift := slotOf(at)
	return p[g] >> shift & 0xFF
}

func (p *pageMem) setTag(at int, tag uint64) {
	g, shift := slotOf(at)
	atomic.StoreUint64(&p[g], p[g]&^(0xFF<<shift)|tag<<shift)
}

// eachLive visits the word offsets of the live slots.
func (p *pageMem) eachLive(visit func(at int)) {
	for g := range uint64(pageGroups) {
		for marks := p[g] & topBits; marks != 0; marks &= marks - 1 {
			visit(slotAt(g, marks))
		}
	}
}

// slotMem is one slot: key and holder words.
type slotMem [slotWords]uint64

// locate finds key's slot, or else where to put it: the first slot of its probe
// sequence that is not live.
func (p *pageMem) locate(key uint64) (at int, found bool) {
	tag, hole := tagOf(key), -1
	g := groupOf(key)
	for range pageGroups {
		word := p[g]
		for marks := matching(word, tag); marks != 0; marks &= marks - 1 {
			if at = slotAt(g, marks); p[at] == key && p.tag(at) == tag {
				return at, true
			}
		}
		if open := ^word & topBits; hole < 0 && open != 0 {
			hole = slotAt(g, open)
		}
		if hasEmpty(word) != 0 {
			break
		}
		g = following(g)
	}
	return hole, false
}

// put fills a slot that is not live: holders, key, and the tag last. The key that
// stood there before goes first: a reader that still takes it for live must not
// read it twice round the new holders.
func (p *pageMem) put(at int, key, a, b uint64) {
	atomic.StoreUint64(&p[at], ^key)
	atomic.StoreUint64(&p[at+1], a)
	atomic.StoreUint64(&p[at+2], b)
	atomic.StoreUint64(&p[at], key)
	p.setTag(at, tagOf(key))
}

// drop makes a live slot dead, and reports whether it became empty rather than
// deleted: in a group with an empty slot no probe goes further anyway.
func (p *pageMem) drop(at int) (empty bool) {
	g, _ := slotOf(at)
	tag := uint64(tagDeleted)
	if hasEmpty(p[g]) != 0 {
		tag = tagEmpty
	}
	p.setTag(at, tag)
	atomic.StoreUint64(&p[at], ^p[at])
	return tag == tagEmpty
}

// search is locate for readers: it reads the holder words of key.
func (p *pageMem) search(key uint64) (s *slotMem, a, b uint64, ok bool) {
	tag := tagOf(key)
	g := groupOf(key)
	for range pageGroups {
		word := atomic.LoadUint64(&p[g])
		for marks := matching(word, tag); marks != 0; marks &= marks - 1 {
			s = (*slotMem)(p[slotAt(g, marks):])
			if a, b, ok = s.read(key); ok {
				return s, a, b, true
			}
		}
		if hasEmpty(word) != 0 {
			break
		}
		g = following(g)
	}
	return nil, 0, 0, false
}

// read takes the holder words if the slot's key is and remains key. The first of
// them is 0 only where nothing ever stood; such a slot is not that of key 0.
func (s *slotMem) read(key uint64) (a, b uint64, ok bool) {
	if atomic.LoadUint64(&s[0]) != key {
		return 0, 0, false
	}
	a, b = atomic.LoadUint64(&s[1]), atomic.LoadUint64(&s[2])
	return a, b, a != 0 && atomic.LoadUint64(&s[0]) == key
}

// retire makes readers that still have a slot of the page see that it is out of
// use. The slots were copied before.
func (p *pageMem) retire() {
	p.eachLive(func(at int) { atomic.StoreUint64(&p[at], ^p[at]) })
}
