package tokens

import "sync"

// Words repeat: most of a text is answered from the cache. Long words are not
// kept, so the memory is bounded by entries times their size.
const (
	cacheEntries  = 1 << 14 // per generation; there are two
	cacheWordSize = 32      // bytes
)

// wordCache remembers the ids of words. When the young generation is full it
// becomes the old one, and what was old is forgotten.
type wordCache struct {
	mu         sync.RWMutex
	young, old map[string][]int32
}

// get returns the ids of word, not to be modified.
func (c *wordCache) get(word string) ([]int32, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if ids, ok := c.young[word]; ok {
		return ids, true
	}
	ids, ok := c.old[word]
	return ids, ok
}

// put remembers a copy of ids. The word is copied too: it is a piece of a
// caller's text that must not be kept alive.
func (c *wordCache) put(word string, ids []int32) {
	key, value := string([]byte(word)), append([]int32(nil), ids...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.young == nil || len(c.young) >= cacheEntries {
		c.old, c.young = c.young, make(map[string][]int32, cacheEntries)
	}
	c.young[key] = value
}
