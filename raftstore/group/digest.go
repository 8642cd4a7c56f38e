package group

import (
	"slices"
	"sync"
)

// Sample is the digest of a member's state after it applied an entry. Members
// take samples at the same entries, so equal indices must have equal digests.
type Sample struct {
	Index  uint64
	Digest uint64
}

// keptSamples is how many samples a member remembers: members that lag can still
// be compared.
const keptSamples = 16

// sampler takes a sample at the first entry at or beyond each multiple of every.
// Which entries these are depends on the log alone, not on where a member began.
type sampler struct {
	every  uint64
	digest func() uint64 // nil: no samples

	mu   sync.Mutex
	ring []Sample // oldest first
}

// step is told that the state went from one entry to the next.
func (s *sampler) step(before, now uint64) {
	if s.digest == nil || before/s.every == now/s.every {
		return
	}
	d := s.digest()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ring) == keptSamples {
		s.ring = slices.Delete(s.ring, 0, 1)
	}
	s.ring = append(s.ring, Sample{now, d})
}

func (s *sampler) all() []Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ring)
}

// Samples are the digests of the state that this member took last, oldest first;
// none if the FSM is no [Digester]. Another member's sample of the same index
// has the same digest, or one of the two states is damaged.
func (g *Group[R]) Samples() []Sample { return g.adapter.samples.all() }
