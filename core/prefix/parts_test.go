package prefix

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestPartsAreReadAsTheyWere: a writer changes each part at the time at which it is
// read, always the one that is next, and all that the reader gets is what was there.
func TestPartsAreReadAsTheyWere(t *testing.T) {
	const n, words = 200, 4096
	live := make([][]uint64, n)
	for i := range live {
		live[i] = make([]uint64, words)
	}
	p := newParts(n, words, nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			at := p.read.Load()
			if at == n {
				return
			}
			p.keep(at, live[at])
			for i := range live[at] {
				atomic.AddUint64(&live[at][i], 1)
			}
		}
	})
	r, got := reader{parts: p}, make([]uint64, words)
	for at := range uint32(n) {
		r.handOver()
		r.copy(at, live[at], got)
		for i, v := range got {
			if v != 0 {
				t.Errorf("part %d, word %d: %d", at, i, v)
				break // the writer ends with the reader
			}
		}
	}
	wg.Wait()
}

// TestPartsKeepNoMore: of a part that has been read, that came later, or that is
// kept already, nothing is copied, and copies that were read are used again.
func TestPartsKeepNoMore(t *testing.T) {
	const words = 8
	live, got := make([]uint64, words), make([]uint64, words)
	p := newParts(3, words, nil)
	r := reader{parts: p}
	p.keep(1, live)
	first := p.copyOf(1)
	p.keep(1, live)
	p.keep(3, live)
	p.keep(keptRunParts+3, live)
	if p.copyOf(1) != first || p.copyOf(3) != nil {
		t.Error("a part is kept twice, or one that is none")
	}
	r.copy(0, live, got)
	r.copy(1, live, got)
	if p.keep(0, live); p.copyOf(0) != nil {
		t.Error("a part is kept that has been read")
	}
	r.handOver()
	p.own = nil
	if p.spare() != first {
		t.Error("the copy that was read is not used again")
	}
}
