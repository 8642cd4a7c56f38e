package prefix

import "sync/atomic"

// What the blocks of a batch came to is remembered too, so that a chain which
// comes again reads nothing of a batch that has not changed: its slots are as many
// cache lines as it has blocks.
//
// Whether it has changed the stamps tell, counters that stand closely together.
// Each is for one in stampCount of all hashes, and rises after the holders of such
// a block have changed; a batch's sum of them stays as long as none of its blocks
// changes, and seldom rises for another block's sake. As no stamp ever falls, equal
// sums are equal stamps. A memo is of reads that came after the sum was taken: if the
// sum is still the same, whatever changed since has not been finished yet.
type stamps [stampCount]uint32

// stampCount is how many there are: so few that they stay in a processor's own
// cache, so many that at 150,000 writes a second a batch is read anew 70 times a
// second for the sake of others.
const stampCount = 1 << 15

// changed raises the stamp of key. It comes after the change: of the words of its
// slot, of its row, or of whether it has a slot. Only the writer calls it.
func (s *stamps) changed(key uint64) {
	stamp := &s[key%stampCount]
	atomic.StoreUint32(stamp, *stamp+1)
}

// sum is the sum of the stamps of a batch, and what stands for all its hashes.
func (s *stamps) sum(part *[batch]Hash) (sum uint32, name uint64) {
	const odd = 0x9E3779B97F4A7C15
	var a, b, c, d uint64 // several, since a product waits for the one before
	for i := 0; i < batch; i += 4 {
		p, q, r, t := uint64(part[i]), uint64(part[i+1]), uint64(part[i+2]), uint64(part[i+3])
		sum += atomic.LoadUint32(&s[p%stampCount]) + atomic.LoadUint32(&s[q%stampCount]) +
			atomic.LoadUint32(&s[r%stampCount]) + atomic.LoadUint32(&s[t%stampCount])
		a, b, c, d = a*odd+p, b*odd+q, c*odd+r, d*odd+t
	}
	return sum, a + 3*b + 5*c + 7*d
}

// memo is what a batch came to: the holder words of its first block, and of each
// further one that the holders of the block before do not all hold. It fills a
// cache line.
type memo struct {
	name  uint64 // of the batch's hashes
	sum   uint32 // of their stamps, before the slots were read
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

// learn makes m what the batch in slots is, if its sum, which was taken before, is
// the one that it had the last time too: what changes all the time is not worth it.
func (x *Index) learn(m *memo, part *[batch]Hash, slots *slotBatch, sum uint32, name uint64) {
	if m.sum != sum || m.name != name {
		m.sum, m.name, m.state = sum, name, memoUnread
		return
	}
	if m.state != memoUnread {
		return
	}
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
