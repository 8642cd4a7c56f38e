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
// slots still alive hold.
func (x *Index) walk(chain []Hash, h *Hits, a, b uint64) int {
	var p pipeline
	rest := chain[1:]
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
		part := rest[:min(len(rest), batch)]
		base := len(chain) - len(rest)
		slots := &p.slots[k&1]
		for i, hash := range part {
			s := slots[i&(batch-1)]
			found := atomic.LoadUint64(&s[0]) == uint64(hash)
			nextA, nextB := atomic.LoadUint64(&s[1]), atomic.LoadUint64(&s[2])&^referenced
			if !found || atomic.LoadUint64(&s[0]) != uint64(hash) {
				var ok bool
				if nextA, nextB, ok = x.find(uint64(hash)); !ok {
					return base + i
				}
			}
			if nextA == a && nextB == b && nextA&inRow == 0 {
				continue
			}
			a, b = nextA, nextB
			if x.narrowHits(h, a, b, base+i); h.n == 0 {
				return base + i
			}
		}
		rest = rest[len(part):]
	}
	return len(chain)
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
