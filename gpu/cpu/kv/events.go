package kv

import (
	"context"
	"slices"
)

// EventKind says what happened to the findable blocks.
type EventKind uint8

// The kinds.
const (
	Stored  EventKind = iota + 1 // blocks can be found
	Removed                      // blocks can no longer be found
	Cleared                      // no block can be found any more
)

// Event is one change of what can be found in a cache. Events and their slices
// are shared by all readers: do not modify them.
type Event struct {
	// Seq numbers a cache's events from 1 without holes.
	Seq  uint64
	Kind EventKind
	// Hashes are the blocks stored, each the parent of the next, or removed.
	Hashes []Hash
	// Parent is the hash before Hashes[0] of stored blocks: [Cache.Root] of the
	// salt for a first block.
	Parent Hash
	// First says that Hashes[0] is the first block of its sequences, Salt under
	// which salt.
	First bool
	Salt  string
	// Tokens are the token ids of all stored blocks, one after the other.
	Tokens []int32
	// BlockTokens is the number of tokens of each stored block.
	BlockTokens int
}

// ring is how many events a cache remembers for readers that lag.
const ring = 4096

// log is the recent events and those who wait for more. The cache's mutex
// guards it.
type log struct {
	last  uint64 // sequence of the newest event
	ring  []Event
	waits map[*Subscription]struct{}
}

func (l *log) init() {
	l.ring = make([]Event, ring)
	l.waits = map[*Subscription]struct{}{}
}

func (l *log) add(e Event) {
	l.last++
	e.Seq = l.last
	l.ring[l.last%ring] = e
	for s := range l.waits {
		select {
		case s.wake <- struct{}{}:
		default: // it has a wake-up pending
		}
	}
}

// oldest is the sequence of the oldest event still remembered.
func (l *log) oldest() uint64 { return max(l.last, ring) - ring + 1 }

// stored gathers the blocks of one Stored event.
type stored struct{ e Event }

func (r *stored) add(nd *node, ids []int32) {
	if len(r.e.Hashes) == 0 {
		r.e = Event{Kind: Stored, Parent: nd.before, First: nd.parent == 0, Salt: nd.salt, BlockTokens: len(ids)}
	}
	r.e.Hashes = append(r.e.Hashes, nd.hash)
	r.e.Tokens = append(r.e.Tokens, ids...)
}

func (r *stored) flush(c *Cache) {
	if len(r.e.Hashes) > 0 {
		c.events.add(r.e)
	}
	r.e = Event{}
}

// Subscription reads a cache's events at its own pace. The cache never waits
// for it: a reader that falls more than 4096 events behind has a gap. One
// goroutine at a time may use it.
type Subscription struct {
	c    *Cache
	next uint64
	wake chan struct{}
}

// Subscribe reads the events from sequence number from on; 0 means those after
// the present.
func (c *Cache) Subscribe(from uint64) *Subscription {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from == 0 || from > c.events.last+1 {
		from = c.events.last + 1
	}
	s := &Subscription{c: c, next: from, wake: make(chan struct{}, 1)}
	c.events.waits[s] = struct{}{}
	return s
}

// Next waits for events and appends them to dst, at most 256. gap means that
// events were lost before the ones returned: what the reader believes is no
// longer true until it takes a [Cache.Dump]. The error is ctx's.
func (s *Subscription) Next(ctx context.Context, dst []Event) (events []Event, gap bool, err error) {
	for {
		if dst, gap = s.poll(dst); len(dst) > 0 || gap {
			return dst, gap, nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return dst, false, ctx.Err()
		}
	}
}

func (s *Subscription) poll(dst []Event) (events []Event, gap bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	l := &s.c.events
	if oldest := l.oldest(); s.next < oldest {
		gap, s.next = true, oldest
	}
	for n := 0; s.next <= l.last && n < 256; n++ {
		dst = append(dst, l.ring[s.next%ring])
		s.next++
	}
	return dst, gap
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	delete(s.c.events.waits, s)
}

// Dump is everything that can be found, as Stored events of one block each,
// parents before children, and the sequence number of the last event they
// reflect. Subscribe to seq+1 to go on from there.
func (c *Cache) Dump() (seq uint64, events []Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	live := make([]int32, 0, len(c.nodes)-len(c.freeNodes))
	for i := range c.nodes {
		if c.nodes[i].serial != 0 {
			live = append(live, int32(i))
		}
	}
	// A parent is always older than its children.
	slices.SortFunc(live, func(a, b int32) int {
		if c.nodes[a].serial < c.nodes[b].serial {
			return -1
		}
		return 1
	})
	for _, n := range live {
		nd := &c.nodes[n]
		events = append(events, Event{
			Seq: c.events.last, Kind: Stored, Hashes: []Hash{nd.hash}, Parent: nd.before,
			First: nd.parent == 0, Salt: nd.salt, Tokens: slices.Clone(c.tokensOf(n)), BlockTokens: c.blockTokens,
		})
	}
	return c.events.last, events
}
