package collect

import (
	"sync"

	"github.com/yardmaster/yardmaster/core/prefix"
)

// Mirror is the set of blocks that a worker holds, by the index's names, and how
// it differs from what has been cut into frames so far. Several translators may
// write to one: a block is held while one of them says so. It is safe for
// concurrent use.
type Mirror struct {
	limit int
	wake  chan struct{} // room for one: there are changes

	mu      sync.Mutex
	held    map[prefix.Hash]uint32 // how many translators say so
	sums    prefix.Sums            // of held
	pending map[prefix.Hash]bool   // net change since the last cut: true came, false went
	cut     uint64                 // the last change in a frame
	cutSum  uint64                 // of the set as the frames tell it
	refused uint64                 // blocks not followed, beyond a bound
}

// defaultMaxBlocks bounds a mirror and a translator unless told otherwise. At
// 16 tokens a block it is 67 million tokens.
const defaultMaxBlocks = 1 << 22

// NewMirror is an empty mirror of at most limit blocks; 0 means 4 million. More
// are refused, which costs hits.
func NewMirror(limit int) *Mirror {
	if limit <= 0 {
		limit = defaultMaxBlocks
	}
	return &Mirror{
		limit: limit, wake: make(chan struct{}, 1),
		held: map[prefix.Hash]uint32{}, pending: map[prefix.Hash]bool{},
	}
}

// update runs f under the mirror's lock, so that no frame is cut in the middle.
func (m *Mirror) update(f func()) {
	m.mu.Lock()
	f()
	changed := len(m.pending) > 0
	m.mu.Unlock()
	if changed {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// add enters a block. It reports whether it did; the caller holds the lock.
func (m *Mirror) add(h prefix.Hash) bool {
	n := m.held[h]
	if n == 0 {
		if len(m.held) >= m.limit {
			m.refused++
			return false
		}
		m.sums.Add(h)
		m.toggle(h, true)
	}
	m.held[h] = n + 1
	return true
}

// drop takes a block out that add entered; the caller holds the lock.
func (m *Mirror) drop(h prefix.Hash) {
	switch n := m.held[h]; n {
	case 0:
	case 1:
		delete(m.held, h)
		m.sums.Drop(h)
		m.toggle(h, false)
	default:
		m.held[h] = n - 1
	}
}

// toggle notes that a block came or went. A block that goes as it came since the
// last cut is no change.
func (m *Mirror) toggle(h prefix.Hash, came bool) {
	if _, ok := m.pending[h]; ok {
		delete(m.pending, h)
		return
	}
	m.pending[h] = came
}

// next cuts the next frame; ok is false when nothing has changed. The frame
// names no worker yet.
func (m *Mirror) next() (f prefix.Frame, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending) == 0 {
		return f, false
	}
	f.Kind, f.First = prefix.FrameDelta, m.cut+1
	if len(m.held) == 0 {
		clear(m.pending)
		f.Cleared = true
		m.cut, m.cutSum = m.cut+1, 0
	} else {
		m.take(&f)
	}
	f.Last, f.Sum = m.cut, m.cutSum
	return f, true
}

// take moves pending changes into f.
func (m *Mirror) take(f *prefix.Frame) {
	n := min(len(m.pending), prefix.MaxFrameBlocks)
	blocks := make([]prefix.Hash, n) // stores from the front, removes from the back
	front, back := 0, n
	for h, came := range m.pending {
		if front == back {
			break
		}
		if came {
			blocks[front] = h
			front++
			m.cutSum += h.Sum()
		} else {
			back--
			blocks[back] = h
			m.cutSum -= h.Sum()
		}
		delete(m.pending, h)
	}
	f.Stores, f.Removes = blocks[:front:front], blocks[front:]
	m.cut += uint64(n)
}

// at reports whether a planner that has applied all changes up to last, and
// nothing else, needs only what next cuts.
func (m *Mirror) at(last uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cut == last
}

// repair is what a planner with these sums lacks: the buckets that differ and
// the blocks in them. What was pending counts as cut.
type repair struct {
	last    uint64
	sum     uint64
	buckets prefix.Buckets
	blocks  []prefix.Hash
}

func (m *Mirror) repair(theirs *prefix.Sums) repair {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut += uint64(len(m.pending))
	clear(m.pending)
	m.cutSum = m.sums.Total()
	r := repair{last: m.cut, sum: m.cutSum, buckets: m.sums.Diff(theirs)}
	if n := r.buckets.Len(); n > 0 {
		r.blocks = make([]prefix.Hash, 0, len(m.held)*n/prefix.NumBuckets)
		for h := range m.held {
			if r.buckets.Has(h.Bucket()) {
				r.blocks = append(r.blocks, h)
			}
		}
	}
	return r
}

// MirrorStats is what a mirror holds.
type MirrorStats struct {
	Held    int    // blocks
	Pending int    // changes not yet cut
	Refused uint64 // blocks not followed so far, for a bound
}

// Stats reads the counts.
func (m *Mirror) Stats() MirrorStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return MirrorStats{Held: len(m.held), Pending: len(m.pending), Refused: m.refused}
}

// Each visits every block held, in no order, with the mirror locked.
func (m *Mirror) Each(visit func(prefix.Hash)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for h := range m.held {
		visit(h)
	}
}
