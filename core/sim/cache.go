package sim

import (
	"container/list"
	"slices"

	"github.com/yardmaster/yardmaster/core/prefix"
)

// cache is an engine's prefix cache: the least recently used block goes first, and of
// one prompt the last before the first. What comes and goes is noted, to be reported.
type cache struct {
	capacity int
	at       map[prefix.Hash]*list.Element
	order    list.List // of hashes, the least recently used first

	stored, removed []prefix.Hash // since they were last reported
}

func newCache(capacity int) *cache {
	return &cache{capacity: capacity, at: map[prefix.Hash]*list.Element{}}
}

// match is how many leading blocks of a chain are there.
func (c *cache) match(chain []prefix.Hash) (n int) {
	for n < len(chain) && c.at[chain[n]] != nil {
		n++
	}
	return n
}

// insert has the whole chain in the cache, as far as it fits.
func (c *cache) insert(chain []prefix.Hash) {
	chain = chain[:min(len(chain), c.capacity)]
	for _, hash := range slices.Backward(chain) {
		if e := c.at[hash]; e != nil {
			c.order.MoveToBack(e)
			continue
		}
		c.at[hash] = c.order.PushBack(hash)
		c.stored = append(c.stored, hash)
	}
	for len(c.at) > c.capacity {
		oldest := c.order.Front()
		hash, _ := c.order.Remove(oldest).(prefix.Hash) // nothing else is in it
		delete(c.at, hash)
		c.removed = append(c.removed, hash)
	}
}
