package prefix

import (
	"slices"

	"github.com/yardmaster/yardmaster/core/unit"
)

// Cache models the prefix cache of one engine that publishes no KV events: a
// bounded LRU of blocks, fed by the router's own decisions and corrected by the
// cached tokens the engine reports. What it gains and loses is written to an
// [Index] like any worker's events.
//
// A model that remembers more than the engine does is worse than none: it sends
// requests after blocks that are gone. So a report of fewer cached blocks than
// predicted removes the rest of that chain and lowers the capacity; reports that
// bear the prediction out raise it again, slowly, up to what was declared.
//
// A Cache is for one goroutine at a time.
type Cache struct {
	index    *Index
	worker   Worker
	declared int
	capacity int
	nodes    []lruNode // nodes[0] is the list's sentinel
	free     []int32
	byHash   map[Hash]int32
	gained   []Hash // scratch
	lost     []Hash // scratch

	predicted, actual float64 // decaying sums of tokens, for Trust
}

// lruNode is a place in the recency list: next is older.
type lruNode struct {
	hash       Hash
	prev, next int32
}

// NewCache models a cache of capacity blocks for w.
func NewCache(x *Index, w Worker, capacity unit.Blocks) *Cache {
	return &Cache{
		index: x, worker: w, declared: max(int(capacity), 1), capacity: max(int(capacity), 1),
		nodes: make([]lruNode, 1), byHash: map[Hash]int32{},
	}
}

// Len is the number of blocks remembered, Capacity how many it would at most.
func (c *Cache) Len() unit.Blocks { return unit.Blocks(len(c.byHash)) }

// Capacity is the present bound: what was declared, or less after the engine
// proved to hold less.
func (c *Cache) Capacity() unit.Blocks { return unit.Blocks(c.capacity) }

// Touch records that the engine computes chain now: its blocks become the most
// recent, the first block the most of all, so that a chain is forgotten from its
// end. A chain longer than the capacity keeps its beginning.
//
// gained and lost are what was stored and removed; they are valid until the next
// call.
func (c *Cache) Touch(chain []Hash) (gained, lost []Hash) {
	chain = chain[:min(len(chain), c.capacity)]
	gained = c.gained[:0]
	for _, h := range slices.Backward(chain) {
		n, known := c.byHash[h]
		if known {
			c.unlink(n)
		} else {
			n = c.node(h)
			gained = append(gained, h)
		}
		c.linkFirst(n)
	}
	c.index.Store(c.worker, gained)
	c.gained = gained
	return gained, c.shrink()
}

// Known is the number of leading blocks of chain that the model holds.
func (c *Cache) Known(chain []Hash) int {
	for i, h := range chain {
		if _, ok := c.byHash[h]; !ok {
			return i
		}
	}
	return len(chain)
}

// Report corrects the model: the engine served the first cached blocks of chain
// from its cache where predicted were expected before it began. tokens is the
// length of the prompt, the weight of the sample.
func (c *Cache) Report(chain []Hash, predicted, cached unit.Blocks, tokens unit.Tokens) {
	const decay, slack = 0.98, 1 // engines never serve the last block whole
	total := max(len(chain), 1)
	c.predicted = decay*c.predicted + float64(predicted)/float64(total)*float64(tokens)
	c.actual = decay*c.actual + float64(min(cached, predicted))/float64(total)*float64(tokens)
	if cached+slack >= predicted {
		if predicted > 0 && c.capacity < c.declared {
			c.capacity = min(c.declared, c.capacity+max(1, c.declared/256))
		}
		return
	}
	c.capacity = max(c.capacity-max(1, c.capacity/32), c.declared/8, 1)
	c.shrink()
}

// Trust is the share of predicted hits that the engine bore out lately, 0 to 1;
// ok is false before anything was predicted.
func (c *Cache) Trust() (share float64, ok bool) {
	if c.predicted == 0 {
		return 0, false
	}
	return c.actual / c.predicted, true
}

// Clear forgets everything, e.g. because the engine restarted.
func (c *Cache) Clear() {
	c.index.Clear(c.worker)
	clear(c.byHash)
	c.nodes, c.free, c.capacity = c.nodes[:1], c.free[:0], c.declared
	c.nodes[0] = lruNode{}
}

// redeclare replaces what was declared. A capacity that stood at the old
// declaration follows a larger one.
func (c *Cache) redeclare(declared unit.Blocks) {
	follow := c.capacity == c.declared
	c.declared = int(declared)
	if follow || c.capacity > c.declared {
		c.capacity = c.declared
	}
	c.shrink()
}

// depth is the number of blocks used since h, which is remembered, was: its
// place in the order of use, from 1.
func (c *Cache) depth(h Hash) (n unit.Blocks) {
	at := c.byHash[h]
	for i := c.nodes[0].next; i != 0; i = c.nodes[i].next {
		if n++; i == at {
			break
		}
	}
	return n
}

// shrink forgets the oldest blocks over the capacity.
func (c *Cache) shrink() (lost []Hash) {
	lost = c.lost[:0]
	for len(c.byHash) > c.capacity {
		n := c.nodes[0].prev
		h := c.nodes[n].hash
		c.unlink(n)
		delete(c.byHash, h)
		c.free = append(c.free, n)
		lost = append(lost, h)
	}
	c.index.Remove(c.worker, lost)
	c.lost = lost
	return lost
}

func (c *Cache) node(h Hash) int32 {
	var n int32
	if len(c.free) > 0 {
		n = pop(&c.free)
	} else {
		n = int32(len(c.nodes))
		c.nodes = append(c.nodes, lruNode{})
	}
	c.nodes[n].hash = h
	c.byHash[h] = n
	return n
}

func (c *Cache) unlink(n int32) {
	node := c.nodes[n]
	c.nodes[node.prev].next = node.next
	c.nodes[node.next].prev = node.prev
}

func (c *Cache) linkFirst(n int32) {
	first := c.nodes[0].next
	c.nodes[n].prev, c.nodes[n].next = 0, first
	c.nodes[first].prev = n
	c.nodes[0].next = n
}
