package scripted

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/wire/kvevent"
)

// block is one full, hashed block of the cache.
type block struct {
	hash       uint64
	refs       int
	prev, next *block // neighbours in the idle list, while refs is 0
}

// blockCache is the bookkeeping of a paged KV cache with prefix reuse: which
// full blocks are at hand, who holds them, which idle one goes first. It is not
// safe for concurrent use; its rank owns it.
type blockCache struct {
	capacity    int
	blockTokens int
	seed        uint64 // the hash of "no parent"
	byHash      map[uint64]*block
	private     int   // blocks that are not full yet, each held by one sequence
	idle        block // ring: idle.next is the least recently used
	idleCount   int
	events      []kvevent.Event
}

func newBlockCache(capacity, blockTokens int, seed uint64) *blockCache {
	c := &blockCache{capacity: capacity, blockTokens: blockTokens, seed: seed, byHash: map[uint64]*block{}}
	c.idle.prev, c.idle.next = &c.idle, &c.idle
	return c
}

// hashBlock chains tokens, one full block, to parent.
func hashBlock(parent uint64, tokens []uint32) uint64 {
	var buf [8]byte
	d := xxhash.New()
	binary.LittleEndian.PutUint64(buf[:], parent)
	_, _ = d.Write(buf[:])
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(buf[:4], t)
		_, _ = d.Write(buf[:4])
	}
	// Zero would read as "no parent" in one encoding of KV events.
	return max(d.Sum64(), 1)
}

// root is the parent of the first block for a cache salt.
func (c *blockCache) root(salt string) uint64 {
	if salt == "" {
		return c.seed
	}
	return xxhash.Sum64String(salt) ^ c.seed
}

// free is the number of blocks that allocate can deliver.
func (c *blockCache) free() int { return c.capacity - len(c.byHash) - c.private + c.idleCount }

// held is the number of blocks that sequences hold.
func (c *blockCache) held() int { return len(c.byHash) - c.idleCount + c.private }

// lookup returns the cached blocks of the prefix of tokens, in order, ending at
// the first missing one. It takes no reference.
func (c *blockCache) lookup(salt string, tokens []uint32) []*block {
	var hit []*block
	parent := c.root(salt)
	for len(tokens) >= c.blockTokens {
		parent = hashBlock(parent, tokens[:c.blockTokens])
		b := c.byHash[parent]
		if b == nil {
			break
		}
		hit = append(hit, b)
		tokens = tokens[c.blockTokens:]
	}
	return hit
}

// acquire takes a reference to each block.
func (c *blockCache) acquire(blocks []*block) {
	for _, b := range blocks {
		if b.refs == 0 {
			b.prev.next, b.next.prev = b.next, b.prev
			c.idleCount--
		}
		b.refs++
	}
}

// release gives references back, the last block first, so that the tails of
// prefixes are evicted before their beginnings.
func (c *blockCache) release(blocks []*block) {
	for _, b := range slices.Backward(blocks) {
		if b.refs--; b.refs > 0 {
			continue
		}
		b.prev, b.next = c.idle.prev, &c.idle
		b.prev.next, c.idle.prev = b, b
		c.idleCount++
	}
}

// allocate takes n private blocks, evicting idle ones as needed, or none.
func (c *blockCache) allocate(n int) bool {
	if n > c.free() {
		return false
	}
	var removed []uint64
	for c.capacity-len(c.byHash)-c.private < n {
		b := c.idle.next
		b.prev.next, b.next.prev = b.next, b.prev
		c.idleCount--
		delete(c.byHash, b.hash)
		removed = append(removed, b.hash)
	}
	c.private += n
	if len(removed) > 0 {
		c.events = append(c.events, kvevent.Event{Kind: kvevent.Removed, Hashes: removed, Medium: kvevent.MediumGPU})
	}
	return true
}

// promote turns one private block, now full, into a shared one that the caller
// holds. A block of the same content that is there already is used instead.
func (c *blockCache) promote(parent uint64, tokens []uint32) (b *block, stored bool) {
	h := hashBlock(parent, tokens)
	c.private--
	if b := c.byHash[h]; b != nil {
		c.acquire([]*block{b})
		return b, false
	}
	b = &block{hash: h, refs: 1}
	c.byHash[h] = b
	return b, true
}

// clear forgets every idle block.
func (c *blockCache) clear() {
	for b := c.idle.next; b != &c.idle; b = b.next {
		delete(c.byHash, b.hash)
	}
	c.idle.prev, c.idle.next, c.idleCount = &c.idle, &c.idle, 0
	c.events = append(c.events, kvevent.Event{Kind: kvevent.Cleared})
}

// takeEvents returns what changed since the last call.
func (c *blockCache) takeEvents() []kvevent.Event {
	e := c.events
	c.events = nil
	return e
}
