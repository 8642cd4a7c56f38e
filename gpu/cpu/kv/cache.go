package kv

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// none is the absent index of blocks and nodes.
const none = -1

// Cache keeps account of a pool's blocks: who holds which, and which hold
// tokens that another sequence can reuse. It is safe for concurrent use, and
// every call is short: a transfer reserves blocks while a step is computed.
//
// A block is free, held (by one sequence or several), or cached: held by
// nobody, but kept because its tokens may come again. Cached blocks are taken,
// the least recently held first, when the free ones run out.
//
// What can be found again is a node: the tokens of one full block and, through
// its parent, all before them. Two sequences that compute the same tokens at
// the same time hold two copies of one node; the node lives while a copy does.
type Cache struct {
	blockTokens int
	seed        uint64
	hash        func(parent Hash, tokens []int32) Hash

	mu     sync.Mutex
	blocks []block
	free   []BlockID // a stack: the last freed is the warmest
	// lru.next is the block to evict first, lru.prev the last released.
	lru struct{ next, prev BlockID }
	cachedBlocks,
	heldBlocks int
	nodes      []node
	freeNodes  []int32
	tokens     []int32 // of node i at [i*blockTokens:]
	index      map[Hash]int32
	lastSerial uint64
	events     log
}

type block struct {
	refs       int32
	gen        uint32
	node       int32   // the node this block is a copy of, or none
	copy       BlockID // the next copy of the same node, or none
	prev, next BlockID // in the lru list while cached
}

type node struct {
	// serial names the node for ever; a node that takes this slot later has
	// another. Zero marks a free slot.
	serial uint64
	parent uint64 // serial of the preceding node, 0 for a first block
	salt   string // of a first block
	hash   Hash
	before Hash    // the parent's hash, for events
	copies BlockID // head of the list of copies
	same   int32   // next node of the same hash, or none
}

// ErrBadCache means that a cache cannot have the wished shape.
var ErrBadCache = errors.New("kv: bad cache size")

// NewCache keeps account of blocks blocks of blockTokens tokens. Block hashes
// start from seed; workers that share a seed agree on them.
func NewCache(blocks, blockTokens int, seed uint64) (*Cache, error) {
	if blocks <= 0 || blockTokens <= 0 || blocks > 1<<30 {
		return nil, fmt.Errorf("%w: %d blocks of %d tokens", ErrBadCache, blocks, blockTokens)
	}
	c := &Cache{
		blockTokens: blockTokens, seed: seed, hash: Next,
		blocks:    make([]block, blocks),
		free:      make([]BlockID, 0, blocks),
		nodes:     make([]node, blocks),
		freeNodes: make([]int32, 0, blocks),
		tokens:    make([]int32, blocks*blockTokens),
		index:     make(map[Hash]int32, blocks),
	}
	c.lru.next, c.lru.prev = none, none
	for i := blocks - 1; i >= 0; i-- { // so that block 0 is taken first
		c.blocks[i] = block{node: none, copy: none, prev: none, next: none}
		c.free = append(c.free, BlockID(i))
		c.freeNodes = append(c.freeNodes, int32(i))
	}
	c.events.init()
	return c, nil
}

// BlockTokens is the number of tokens of a block.
func (c *Cache) BlockTokens() int { return c.blockTokens }

// Root is the parent hash of first blocks under salt.
func (c *Cache) Root(salt string) Hash { return Root(c.seed, salt) }

// Counts says how many blocks are in which state.
type Counts struct {
	Total  int
	Held   int // by sequences
	Cached int // by nobody, kept for reuse
	Free   int // what Acquire and Extend can hand out: Total - Held, cached ones included
}

// Counts returns the present counts.
func (c *Cache) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts()
}

func (c *Cache) counts() Counts {
	return Counts{Total: len(c.blocks), Held: c.heldBlocks, Cached: c.cachedBlocks, Free: len(c.free) + c.cachedBlocks}
}

// Lookup is the number of leading tokens that Acquire would find.
func (c *Cache) Lookup(salt string, tokens []int32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.match(salt, tokens)) * c.blockTokens
}

// Acquire takes the blocks for a sequence of tokens: those of its longest
// cached prefix, shared and never to be written, and new ones for the rest. It
// takes all or nothing, and nothing (ok false) if fewer than headroom blocks
// would stay free.
//
// cached, a multiple of the block size, is how many leading tokens need no
// computing. It is always less than len(tokens): the last token is computed
// anew, since only that gives the logits to go on from.
func (c *Cache) Acquire(salt string, tokens []int32, headroom int) (blocks []BlockID, cached int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.check()
	hits := c.match(salt, tokens)
	total := (len(tokens) + c.blockTokens - 1) / c.blockTokens
	take := total - len(hits)
	for _, b := range hits {
		if c.blocks[b].refs == 0 {
			take++ // it leaves the cached ones
		}
	}
	if take+headroom > len(c.free)+c.cachedBlocks {
		return nil, 0, false
	}
	blocks = make([]BlockID, 0, total)
	for _, b := range hits {
		c.hold(b)
		blocks = append(blocks, b)
	}
	for len(blocks) < total {
		blocks = append(blocks, c.take())
	}
	return blocks, len(hits) * c.blockTokens, true
}

// Extend appends n new blocks to a sequence's table, or returns it unchanged
// and false when fewer are free.
func (c *Cache) Extend(blocks []BlockID, n int) ([]BlockID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.check()
	if n > len(c.free)+c.cachedBlocks {
		return blocks, false
	}
	for range n {
		blocks = append(blocks, c.take())
	}
	return blocks, true
}

// Release gives up a sequence's hold on its blocks. It panics on a block that
// is not held: whoever releases twice frees somebody else's memory.
func (c *Cache) Release(blocks []BlockID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.check()
	// Backwards, so that a chain is evicted from its end: a block whose
	// predecessor is gone cannot be found and only takes up room.
	for _, b := range slices.Backward(blocks) {
		c.drop(b)
	}
}

// Commit makes the full blocks of a sequence findable, from block index done
// on; tokens are those whose KV is complete in blocks. It returns the done of
// the next call. The caller holds the blocks.
func (c *Cache) Commit(salt string, blocks []BlockID, tokens []int32, done int) int {
	full := len(tokens) / c.blockTokens
	if done >= full {
		return done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.check()
	parent, before := uint64(0), Root(c.seed, salt)
	if done > 0 {
		n := c.blocks[blocks[done-1]].node
		if n == none {
			return full // the chain was cleared under us: nothing after it can be found
		}
		parent, before = c.nodes[n].serial, c.nodes[n].hash
		salt = ""
	}
	run := stored{}
	for i := done; i < full; i++ {
		ids := tokens[i*c.blockTokens : (i+1)*c.blockTokens]
		h := c.hash(before, ids)
		n, found := c.find(parent, salt, h, ids)
		if found {
			run.flush(c)
		} else {
			n = c.addNode(node{parent: parent, salt: salt, hash: h, before: before}, ids)
			run.add(&c.nodes[n], ids)
		}
		c.addCopy(n, blocks[i])
		parent, before, salt = c.nodes[n].serial, h, ""
	}
	run.flush(c)
	return full
}

// Generation counts how often block b has been handed out. It names one tenancy
// of the block: whoever writes from afar presents it, and a reference to an
// earlier tenancy is recognised as stale.
func (c *Cache) Generation(b BlockID) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocks[b].gen
}

// Generations appends the generations of blocks to dst.
func (c *Cache) Generations(dst []uint32, blocks []BlockID) []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range blocks {
		dst = append(dst, c.blocks[b].gen)
	}
	return dst
}

// Clear forgets every reusable block. Blocks that sequences hold stay theirs
// and are free after them.
func (c *Cache) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.check()
	for c.lru.next != none {
		b := c.lru.next
		c.unlink(b)
		c.free = append(c.free, b)
	}
	for i := range c.blocks {
		c.blocks[i].node, c.blocks[i].copy = none, none
	}
	for i := range c.nodes {
		if c.nodes[i].serial != 0 {
			c.nodes[i] = node{}
			c.freeNodes = append(c.freeNodes, int32(i))
		}
	}
	clear(c.index)
	c.events.add(Event{Kind: Cleared})
}

// match lists the copies of the longest findable prefix that leaves at least
// one token.
func (c *Cache) match(salt string, tokens []int32) []BlockID {
	var hits []BlockID
	parent, before := uint64(0), Root(c.seed, salt)
	for len(tokens) > c.blockTokens {
		ids := tokens[:c.blockTokens]
		h := c.hash(before, ids)
		n, ok := c.find(parent, salt, h, ids)
		if !ok {
			break
		}
		hits = append(hits, c.nodes[n].copies)
		parent, before, salt = c.nodes[n].serial, h, ""
		tokens = tokens[c.blockTokens:]
	}
	return hits
}

// find returns the node of exactly these tokens after exactly that parent.
func (c *Cache) find(parent uint64, salt string, h Hash, ids []int32) (int32, bool) {
	n, ok := c.index[h]
	for ok && n != none {
		nd := &c.nodes[n]
		if nd.parent == parent && nd.salt == salt && slices.Equal(c.tokensOf(n), ids) {
			return n, true
		}
		n = nd.same
	}
	return none, false
}

func (c *Cache) tokensOf(n int32) []int32 {
	at := int(n) * c.blockTokens
	return c.tokens[at : at+c.blockTokens : at+c.blockTokens]
}

// addNode stores nd. There is always a slot: a node has a copy, so there are no
// more nodes than blocks, and the block to be added has none yet.
func (c *Cache) addNode(nd node, ids []int32) int32 {
	n := c.freeNodes[len(c.freeNodes)-1]
	c.freeNodes = c.freeNodes[:len(c.freeNodes)-1]
	c.lastSerial++
	nd.serial, nd.copies, nd.same = c.lastSerial, none, none
	if head, ok := c.index[nd.hash]; ok {
		nd.same = head
	}
	c.index[nd.hash] = n
	c.nodes[n] = nd
	copy(c.tokensOf(n), ids)
	return n
}

func (c *Cache) removeNode(n int32) {
	h := c.nodes[n].hash
	if c.index[h] == n {
		if next := c.nodes[n].same; next != none {
			c.index[h] = next
		} else {
			delete(c.index, h)
		}
	} else {
		at := c.index[h]
		for c.nodes[at].same != n {
			at = c.nodes[at].same
		}
		c.nodes[at].same = c.nodes[n].same
	}
	c.nodes[n] = node{}
	c.freeNodes = append(c.freeNodes, n)
	c.events.add(Event{Kind: Removed, Hashes: []Hash{h}})
}

func (c *Cache) addCopy(n int32, b BlockID) {
	if c.blocks[b].node != none {
		panic(fmt.Sprintf("kv: block %d committed twice", b))
	}
	c.blocks[b].node = n
	c.blocks[b].copy = c.nodes[n].copies
	c.nodes[n].copies = b
}

func (c *Cache) removeCopy(b BlockID) {
	n := c.blocks[b].node
	if c.nodes[n].copies == b {
		c.nodes[n].copies = c.blocks[b].copy
	} else {
		at := c.nodes[n].copies
		for c.blocks[at].copy != b {
			at = c.blocks[at].copy
		}
		c.blocks[at].copy = c.blocks[b].copy
	}
	c.blocks[b].node, c.blocks[b].copy = none, none
	if c.nodes[n].copies == none {
		c.removeNode(n)
	}
}

// hold adds a reference to a findable block.
func (c *Cache) hold(b BlockID) {
	if c.blocks[b].refs == 0 {
		c.unlink(b)
		c.heldBlocks++
	}
	c.blocks[b].refs++
}

// take hands out a block nobody holds, evicting a cached one if none is free.
func (c *Cache) take() BlockID {
	var b BlockID
	if n := len(c.free); n > 0 {
		b = c.free[n-1]
		c.free = c.free[:n-1]
	} else {
		b = c.lru.next
		c.unlink(b)
		c.removeCopy(b)
	}
	c.blocks[b].refs = 1
	c.blocks[b].gen++
	c.heldBlocks++
	return b
}

// drop removes one reference.
func (c *Cache) drop(b BlockID) {
	bl := &c.blocks[b]
	if bl.refs <= 0 {
		panic(fmt.Sprintf("kv: block %d released but not held", b))
	}
	if bl.refs--; bl.refs > 0 {
		return
	}
	c.heldBlocks--
	if bl.node == none {
		c.free = append(c.free, b)
		return
	}
	n := bl.node
	if bl.copy == none && c.nodes[n].copies == b {
		c.link(b)
		return
	}
	// Another copy keeps the node. It inherits this one's recency, or it might
	// be evicted before its own successors.
	c.removeCopy(b)
	c.free = append(c.free, b)
	if other := c.nodes[n].copies; c.blocks[other].refs == 0 {
		c.unlink(other)
		c.link(other)
	}
}

// link puts b at the recent end of the lru list.
func (c *Cache) link(b BlockID) {
	c.blocks[b].prev, c.blocks[b].next = c.lru.prev, none
	if c.lru.prev == none {
		c.lru.next = b
	} else {
		c.blocks[c.lru.prev].next = b
	}
	c.lru.prev = b
	c.cachedBlocks++
}

func (c *Cache) unlink(b BlockID) {
	bl := &c.blocks[b]
	if bl.prev == none {
		c.lru.next = bl.next
	} else {
		c.blocks[bl.prev].next = bl.next
	}
	if bl.next == none {
		c.lru.prev = bl.prev
	} else {
		c.blocks[bl.next].prev = bl.prev
	}
	bl.prev, bl.next = none, none
	c.cachedBlocks--
}
