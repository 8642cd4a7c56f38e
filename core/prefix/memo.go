package prefix

import "sync/atomic"

// What the blocks of a batch came to is remembered too, so that a chain which
// comes again reads nothing of a batch that has not changed: its slots are as many
// cache lines as it has blocks.
//
// Whether it has changed the stamps tell, counters that stand closely together.
// Each is for one in stampCount of all hashes, and rises after the holders of such
// a block have changed, if the block is watched. As no stamp ever falls, a batch's
// sum of them stays as long as none rises.
//
// Most writes are of blocks that nobody remembers. So there is a bit for one in
// watchBits of all hashes, which whoever is about to remember the block sets, and
// the writer, who finds it set, takes away before it raises the stamp. A memo is
// of what was read after its blocks were watched and their sum taken, and counts only
// if they were still watched then. So either the writer sees the bit and the sum
// no longer fits, or the bit went before, or the reader has read what was written.
type stamps struct {
	counts  [stampCount]uint32
	watched [watchBits / 64]uint64
}

const (
	// stampCount is so low that the stamps stay in a processor's own cache.
	stampCount = 1 << 15
	// watchBits is so high that even where every batch of the hints is remembered,
	// seven in eight of the writes of other blocks raise nothing.
	watchBits = 1 << 20
)

// watchOf is where the bit of key stands. The hashes of one bit are all of one stamp:
// whoever is no longer watched since another block was written must see that too.
func watchOf(key uint64) (word, bit uint64) {
	return key % watchBits / 64, 1 << (key % 64)
}

// changed raises the stamp of key if that is watched. It comes after the change: of
// the words of its slot, of its row, or of whether it has a slot. Only the writer
// calls it.
func (s *stamps) changed(key uint64) {
	word, bit := watchOf(key)
	if atomic.LoadUint64(&s.watched[word])&bit == 0 {
		return
	}
	atomic.AndUint64(&s.watched[word], ^bit)
	stamp := &s.counts[key%stampCount]
	atomic.StoreUint32(stamp, *stamp+1)
}

// watch has the blocks of a batch watched.
func (s *stamps) watch(part *[batch]Hash) {
	for _, hash := range part {
		word, bit := watchOf(uint64(hash))
		if w := &s.watched[word]; atomic.LoadUint64(w)&bit == 0 {
			atomic.OrUint64(w, bit)
		}
	}
}

// watches reports whether they still are.
func (s *stamps) watches(part *[batch]Hash) bool {
	for _, hash := range part {
		word, bit := watchOf(uint64(hash))
		if atomic.LoadUint64(&s.watched[word])&bit == 0 {
			return false
		}
	}
	return true
}

// sum is the sum of the stamps of a batch, and what stands for all its hashes.
func (s *stamps) sum(part *[batch]Hash) (sum uint32, name uint64) {
	const odd = 0x9E3779B97F4A7C15
	var a, b, c, d uint64 // several, since a product waits for the one before
	for i := 0; i < batch; i += 4 {
		p, q, r, t := uint64(part[i]), uint64(part[i+1]), uint64(part[i+2]), uint64(part[i+3])
		sum += atomic.LoadUint32(&s.counts[p%stampCount]) + atomic.LoadUint32(&s.counts[q%stampCount]) +
			atomic.LoadUint32(&s.counts[r%stampCount]) + atomic.LoadUint32(&s.counts[t%stampCount])
		a, b, c, d = a*odd+p, b*odd+q, c*odd+r, d*odd+t
	}
	return sum, a + 3*b + 5*c + 7*d
}

// memo is what a batch came to: the holder words of its first block, and of each
// further one that the holders of the block before do not all hold. It fills a
// cache line.
type memo struct {
	name  uint64 // of the batch's hashes
	sum   uint32 // of their stamps, when they were watched and before the slots were read
	state memoState
	at    [memoParts - 1]uint8 // which block of the batch words[1] and so on are of
	_     uint8
	words [memoParts]holderWords
}

// holderWords are a slot's two, without the referenced bit; zeros where no slot is.
type holderWords struct{ a, b uint64 }

const memoParts = 3

// memoState is how many words a memo has, or one of the following.
type memoState uint8

const (
	memoUnread memoState = 0             // it was not read since the sum is what it is
	memoVaried memoState = memoParts + 1 // more words than there is room for
)

// recalls reports whether m knows the batch as it is now.
func (m *memo) recalls(sum uint32, name uint64) bool {
	return m.sum == sum && m.name == name && m.state-1 < memoParts
}

// recall is compare for a batch of which m knows all.
func (x *Index) recall(m *memo, h *Hits, base int) (n int, more bool) {
	for k := range m.words[:m.state] {
		w := &m.words[k]
		if w.a == h.a && w.b == h.b {
			continue
		}
		n := base
		if k > 0 {
			n += int(m.at[k-1])
		}
		if w.a == 0 {
			return n, false
		}
		if x.narrowHits(h, w.a, w.b, n); h.n == 0 {
			return n, false
		}
		h.passed(w.a, w.b)
	}
	return 0, true
}

// learn makes m what the batch in slots is, if its sum is the one that it had the
// last time too: what changes all the time is not worth it.
func (x *Index) learn(m *memo, part *[batch]Hash, slots *slotBatch, sum uint32, name uint64) {
	if m.sum != sum || m.name != name {
		m.sum, m.name, m.state = sum, name, memoUnread
		return
	}
	if m.state != memoUnread {
		return
	}
	x.stamps.watch(part)
	m.sum, _ = x.stamps.sum(part)
	x.memorize(m, part, slots)
	if !x.stamps.watches(part) {
		m.state = memoUnread
	}
}

// memorize reads the slots of a batch into m.
func (x *Index) memorize(m *memo, part *[batch]Hash, slots *slotBatch) {
	for i, hash := range part {
		_, a, b, _ := x.read(slots[i], uint64(hash))
		if i > 0 && x.same(m.words[m.state-1], a, b) {
			continue
		}
		if m.state == memoParts {
			m.state = memoVaried
			return
		}
		if i > 0 {
			m.at[m.state-1] = uint8(i)
		}
		m.words[m.state] = holderWords{a, b}
		if m.state++; a == 0 {
			return // no hit gets any further
		}
	}
}

// same reports whether a block with the words before and one with a and b are
// held by the same.
func (x *Index) same(before holderWords, a, b uint64) bool {
	if before.a&a&inRow != 0 {
		return equalRow(x.readRow(a), x.readRow(before.a))
	}
	return before == holderWords{a, b}
}
