package prefix

import (
	"sync/atomic"
	"unsafe"
)

// The walk over a chain. Each block costs three reads that depend on one
// another: directory, tags, slot, and in a large index the last two miss the
// processor's caches. So blocks pass through in batches, in three stages: while
// the slots of one batch are compared, those of the next are on their way, and
// the tags of the one after that.
const (
	batch = 16
	// ahead is how many blocks a writer reads at once.
	ahead = 32
)

// pipeline is what the stages hand on.
type pipeline struct {
	tags  [2]tagBatch
	slots [2]slotBatch
}

// tagBatch is where the tags of a batch's groups stand, slotBatch where its
// slots do.
type (
	tagBatch  [batch]*uint64
	slotBatch [batch]*slotMem
)

// walk goes on along chain behind its first block, whose holder words are a and
// b, until no slot is alive. It returns the number of leading blocks that the
// slots still alive hold. Where the blocks stood is remembered for the next chain.
func (x *Index) walk(chain []Hash, h *Hits, a, b uint64) int {
	h.follow(x)
	h.passed(a, b)
	for at := 1; at < len(chain); {
		var found [2]hint
		k := 0
		for some := h.hints.look(chain, at, &found[0]); some; at += batch {
			some = h.hints.look(chain, at+batch, &found[k^1])
			if n, more := x.remembered(&found[k], (*[batch]Hash)(chain[at:]), h, at); !more {
				return n
			}
			k ^= 1
		}
		if at == len(chain) {
			break
		}
		end := h.hints.stretch(chain, at)
		if n, more := x.search(chain[:end], at, h); !more {
			return n
		}
		at = end
	}
	return len(chain)
}

// remembered is compare for a batch of which something is remembered.
func (x *Index) remembered(found *hint, part *[batch]Hash, h *Hits, base int) (n int, more bool) {
	if found.slots == nil {
		return x.recall(found.memo, h, base)
	}
	n, more = x.compare(part[:], found.slots, h, base)
	x.learn(found.memo, part, found.slots, found.sum, found.name)
	return n, more
}

// search is walk for the blocks of chain from at on, of which nothing is
// remembered. more is false where no slot is alive after n blocks.
func (x *Index) search(chain []Hash, at int, h *Hits) (n int, more bool) {
	p, rest := &h.pipeline, chain[at:]
	x.seekTags(rest, &p.tags[0])
	if len(rest) > batch {
		x.seekTags(rest[batch:], &p.tags[1])
	}
	seekSlots(rest, &p.tags[0], &p.slots[0])
	for k := 0; len(rest) > 0; k ^= 1 {
		if len(rest) > batch {
			seekSlots(rest[batch:], &p.tags[k^1], &p.slots[k^1])
			if len(rest) > 2*batch {
				x.seekTags(rest[2*batch:], &p.tags[k])
			}
		}
		slots, base := &p.slots[k&1], len(chain)-len(rest)
		part := rest[:min(len(rest), batch)]
		n, more := x.compare(part, slots, h, base)
		if h.hints.keep(chain, base, slots); !more {
			return n, false
		}
		rest = rest[len(part):]
	}
	return len(chain), true
}

// compare ends the hits of alive slots that lack a block of part, whose blocks
// should stand in slots; base blocks come before it. more is false where no slot
// is alive after n blocks. A slot that was the wrong one is replaced.
func (x *Index) compare(part []Hash, slots *slotBatch, h *Hits, base int) (n int, more bool) {
	a, b := h.a, h.b
	for i, hash := range part {
		s := slots[i&(batch-1)]
		if atomic.LoadUint64(&s[0]) == uint64(hash) && atomic.LoadUint64(&s[1]) == a &&
			atomic.LoadUint64(&s[2])&^referenced == b && atomic.LoadUint64(&s[0]) == uint64(hash) {
			continue // so are most: they have the holders of the one before
		}
		s, nextA, nextB, ok := x.read(s, uint64(hash))
		if !ok {
			return base + i, false
		}
		slots[i&(batch-1)] = s
		if x.narrowHits(h, nextA, nextB, base+i); h.n == 0 {
			return base + i, false
		}
		h.passed(nextA, nextB)
		a, b = h.a, h.b
	}
	return 0, true
}

// read reads the holder words of a block that should stand in s, and where it
// does stand.
func (x *Index) read(s *slotMem, key uint64) (at *slotMem, a, b uint64, ok bool) {
	if a, b, ok = s.read(key); ok {
		return s, a, b &^ referenced, true
	}
	return x.find(key)
}

// seekTags is the first stage, of the first batch of chain.
func (x *Index) seekTags(chain []Hash, tags *tagBatch) {
	if len(chain) > 0 {
		findTags(&chain[0], min(len(chain), batch), x.dir.Load(), &x.cells, &x.pages.chunks, tags)
	}
}

// seekSlots is the second stage, of the first batch of chain.
func seekSlots(chain []Hash, tags *tagBatch, slots *slotBatch) {
	if len(chain) > 0 {
		findSlots(&chain[0], min(len(chain), batch), tags, slots)
	}
}

// plainTags is findTags in Go: it finds where the tags of up to a batch of keys
// stand. The assembly does the same and asks for their memory.
func plainTags(keys *Hash, n int, d *directory, cells *cellMap, chunks *atomic.Pointer[[]*chunk], tags *tagBatch) {
	var numbers [batch]uint32
	part := unsafe.Slice(keys, min(n, batch))
	for i, key := range part {
		shard, runBits := cells.place(uint64(key))
		numbers[i] = atomic.LoadUint32(d.entry(shard, runBits))
	}
	all := *chunks.Load() // after the numbers: it has them all
	for i, key := range part {
		tags[i] = &page(all, numbers[i])[groupOf(uint64(key))]
	}
}

// plainSlots is findSlots in Go: of each key it finds the slot that must be its
// own if it is in its own group. Where there is none the group's last one will do.
func plainSlots(keys *Hash, n int, tags *tagBatch, slots *slotBatch) {
	for i, key := range unsafe.Slice(keys, min(n, batch)) {
		g := groupOf(uint64(key))
		marks := matching(atomic.LoadUint64(tags[i]), tagOf(uint64(key)))
		ofPage := slotAt(g, marks|1<<63) - int(g)
		slots[i] = (*slotMem)(unsafe.Add(unsafe.Pointer(tags[i]), 8*ofPage))
	}
}
