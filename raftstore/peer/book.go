package peer

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// maxBook bounds a book. Gateways come and go under new names.
const maxBook = 4096

// Book knows the nodes that were met: who they are in this run of theirs, and
// where. It is safe for concurrent use.
type Book struct {
	mu      sync.Mutex
	entries map[string]*entry
}

type entry struct {
	node *Node // never changed
	met  time.Time
}

// NewBook is an empty book.
func NewBook() *Book { return &Book{entries: map[string]*entry{}} }

// Meet notes a node as it said to be, to a caller that had verified its id. The
// book keeps n.
func (b *Book) Meet(n *Node, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.entries[n.GetId()]; !known && len(b.entries) >= maxBook {
		b.dropOldest()
	}
	b.entries[n.GetId()] = &entry{n, now}
}

func (b *Book) dropOldest() {
	oldest := ""
	for id, e := range b.entries {
		if oldest == "" || e.met.Before(b.entries[oldest].met) {
			oldest = id
		}
	}
	delete(b.entries, oldest)
}

// Find is a node as it was met last. Do not modify it.
func (b *Book) Find(id string) (n *Node, met time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.entries[id]
	if !ok {
		return nil, time.Time{}, false
	}
	return e.node, e.met, true
}

// Resolve is where a node was met last.
func (b *Book) Resolve(id string) (addr string, ok bool) {
	n, _, ok := b.Find(id)
	return n.GetAddr(), ok && n.GetAddr() != ""
}

// Nodes lists who was met since, by id. Do not modify them.
func (b *Book) Nodes(since time.Time) []*Node {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*Node
	for _, e := range b.entries {
		if !e.met.Before(since) {
			out = append(out, e.node)
		}
	}
	slices.SortFunc(out, func(x, y *Node) int { return strings.Compare(x.GetId(), y.GetId()) })
	return out
}
