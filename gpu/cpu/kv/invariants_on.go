//go:build invariants

package kv

import "fmt"

// check walks the whole cache and panics on the first broken invariant.
func (c *Cache) check() {
	bad := func(format string, args ...any) { panic("kv: invariant: " + fmt.Sprintf(format, args...)) }
	where := make([]int, len(c.blocks))
	for _, b := range c.free {
		where[b]++
		if c.blocks[b].refs != 0 || c.blocks[b].node != none {
			bad("free block %d is in use: %+v", b, c.blocks[b])
		}
	}
	cached := 0
	for b, prev := c.lru.next, BlockID(none); b != none; b, prev = c.blocks[b].next, b {
		where[b]++
		cached++
		if c.blocks[b].refs != 0 || c.blocks[b].node == none || c.blocks[b].prev != prev {
			bad("cached block %d: %+v", b, c.blocks[b])
		}
	}
	held := 0
	for i := range c.blocks {
		if c.blocks[i].refs > 0 {
			where[i]++
			held++
		}
		if where[i] != 1 {
			bad("block %d is in %d places", i, where[i])
		}
	}
	if cached != c.cachedBlocks || held != c.heldBlocks {
		bad("%d cached, %d held; counted %d, %d", cached, held, c.cachedBlocks, c.heldBlocks)
	}
	c.checkNodes(bad)
}

func (c *Cache) checkNodes(bad func(string, ...any)) {
	live, copies := 0, 0
	for i := range c.nodes {
		nd := &c.nodes[i]
		if nd.serial == 0 {
			continue
		}
		live++
		if nd.copies == none {
			bad("node %d has no copy", i)
		}
		for b := nd.copies; b != none; b = c.blocks[b].copy {
			copies++
			if c.blocks[b].node != int32(i) {
				bad("block %d is listed under node %d: %+v", b, i, c.blocks[b])
			}
		}
		if n, ok := c.find(nd.parent, nd.salt, nd.hash, c.tokensOf(int32(i))); !ok || n != int32(i) {
			bad("node %d is not found by its own key", i)
		}
	}
	if live+len(c.freeNodes) != len(c.nodes) {
		bad("%d nodes live, %d free of %d", live, len(c.freeNodes), len(c.nodes))
	}
	for i := range c.blocks {
		if c.blocks[i].node != none {
			copies--
		}
	}
	if copies != 0 {
		bad("copies differ by %d", copies)
	}
}
