package cluster

import "container/list"

// blockKey is a block of a trace's prompt: ids are of whole prefixes, so that the
// id and the place in the prompt tell all before it.
type blockKey struct {
	id    uint64
	place int
}

// lru is a set of at most so many blocks that forgets the least recently used.
type lru struct {
	most  int
	order *list.List // of blockKey, the most recently used in front
	at    map[blockKey]*list.Element
}

func newLRU(most int) *lru {
	return &lru{most: most, order: list.New(), at: map[blockKey]*list.Element{}}
}

// use puts the block in front and reports whether it was there.
func (c *lru) use(k blockKey) bool {
	if e, ok := c.at[k]; ok {
		c.order.MoveToFront(e)
		return true
	}
	c.at[k] = c.order.PushFront(k)
	if len(c.at) > c.most {
		oldest := c.order.Back()
		c.order.Remove(oldest)
		delete(c.at, oldest.Value.(blockKey)) //nolint:forcetypeassert // what the list holds
	}
	return false
}
