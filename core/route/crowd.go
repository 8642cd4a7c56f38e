package route

import (
	"math/bits"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// crowd counts this gateway's requests in flight by worker and prefix, so that
// it shows when one prefix alone crowds a worker. A request counts at each of its
// depths, the powers of two of blocks.
//
// Counts are kept in two rows of cells; the smaller of the two is at least the
// truth, and more only where both cells are shared by chance.
type crowd struct{ rows [2][crowdCells]atomic.Int32 }

const (
	crowdCells = 1 << 15
	// maxDepths bounds the depths: a prompt counts down to its 8,192nd block.
	maxDepths = 14
)

// Presence is what a request counts for in a crowd, from [Router.Commit] to
// [Presence.Leave].
type Presence struct {
	crowd *crowd
	cells [maxDepths]uint64
	n     int
}

// Leave ends it. Leaving again, and leaving the zero Presence, does nothing. It
// may be called beside decisions.
func (p *Presence) Leave() {
	for _, cell := range p.cells[:p.n] {
		p.crowd.add(cell, -1)
	}
	p.n = 0
}

func (c *crowd) enter(chain []prefix.Hash, worker uint64) (p Presence) {
	p.crowd = c
	for depth := 1; depth <= len(chain) && p.n < maxDepths; depth *= 2 {
		cell := cellOf(chain[depth-1], worker)
		c.add(cell, 1)
		p.cells[p.n] = cell
		p.n++
	}
	return p
}

// leading is what requests that share the leading blocks of chain, or at least
// the first half of them, count at; ok is false where there are none.
func leading(chain []prefix.Hash, blocks int) (h prefix.Hash, ok bool) {
	if blocks <= 0 || len(chain) == 0 {
		return 0, false
	}
	depth := 1 << min(bits.Len(uint(min(blocks, len(chain))))-1, maxDepths-1)
	return chain[depth-1], true
}

// of is how many requests on the worker count at h, which is of leading.
func (c *crowd) of(h prefix.Hash, worker uint64) int {
	cell := cellOf(h, worker)
	a := c.rows[0][cell%crowdCells].Load()
	if a <= 0 { // so are most
		return 0
	}
	return int(max(min(a, c.rows[1][cell>>32%crowdCells].Load()), 0))
}

func (c *crowd) add(cell uint64, by int32) {
	c.rows[0][cell%crowdCells].Add(by)
	c.rows[1][cell>>32%crowdCells].Add(by)
}

func cellOf(h prefix.Hash, worker uint64) uint64 { return mix.Bits(uint64(h) ^ worker) }
