package prompt

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/unit"
)

const (
	// pieceBytes is the least length of a piece. Shorter ones cost more to look
	// up, longer ones leave more text behind the last cut to be encoded each time.
	pieceBytes = 512
	// maxPiece is the longest piece that is remembered. Text without a cut for so
	// long is rare, and encoded each time.
	maxPiece = 16 << 10
	shards   = 16
	// pieceCost is the memory of a piece beside its text, ids and hashes, in bytes,
	// its share of the map included.
	pieceCost = 256
)

// piece is a part of a text with its tokens. All but its marks is immutable.
type piece struct {
	key    uint64
	owner  *model
	text   string
	ids    []int32
	used   atomic.Bool // since the hand passed
	hashes atomic.Pointer[hashes]
	other  atomic.Uint32 // times the hashes were of another chain
}

func (p *piece) cost() int {
	// At the usual block of 16 tokens the hashes are an eighth of the ids.
	return pieceCost + len(p.text) + 5*len(p.ids)
}

// remembers says whether to replace the piece's hashes: at once when it has
// none, else rarely, so that two chains that share a piece do not take turns.
func (p *piece) remembers() bool {
	return p.hashes.Load() == nil || p.other.Add(1)%8 == 0
}

// cache remembers pieces, in shards that each go round like a clock: what was
// used since the hand last passed stays.
type cache struct {
	budget int // bytes of one shard
	shards [shards]shard
}

type shard struct {
	mu    sync.RWMutex
	byKey map[uint64]*piece
	ring  []*piece
	hand  int
	bytes int
}

func newCache(budget unit.Bytes) *cache {
	c := &cache{budget: int(budget) / shards}
	for i := range c.shards {
		c.shards[i].byKey = map[uint64]*piece{}
	}
	return c
}

func (t *model) keyOf(text string) uint64 { return xxhash.Sum64String(text) ^ t.key }

func (c *cache) shard(key uint64) *shard { return &c.shards[key>>60%shards] }

// find is the piece with this text, or nil.
func (c *cache) find(t *model, key uint64, text string) *piece {
	s := c.shard(key)
	s.mu.RLock()
	p := s.byKey[key]
	s.mu.RUnlock()
	if p == nil || p.owner != t || p.text != text {
		return nil
	}
	if !p.used.Load() {
		p.used.Store(true)
	}
	return p
}

// keep remembers ids for text; it copies both.
func (c *cache) keep(t *model, key uint64, text string, ids []int32) *piece {
	p := &piece{key: key, owner: t, text: strings.Clone(text), ids: append(make([]int32, 0, len(ids)), ids...)}
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byKey[key]; old != nil {
		if old.owner == t && old.text == text {
			return old // another request was faster
		}
		return p // a collision: whoever came first stays
	}
	for s.bytes+p.cost() > c.budget && len(s.ring) > 0 {
		s.evict()
	}
	if s.bytes+p.cost() > c.budget {
		return p
	}
	s.byKey[key] = p
	s.ring = append(s.ring, p)
	s.bytes += p.cost()
	return p
}

// evict forgets the next piece that was not used lately.
func (s *shard) evict() {
	for {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		p := s.ring[s.hand]
		if p.used.Swap(false) {
			s.hand++
			continue
		}
		last := len(s.ring) - 1
		s.ring[s.hand] = s.ring[last]
		s.ring[last] = nil
		s.ring = s.ring[:last]
		delete(s.byKey, p.key)
		s.bytes -= p.cost()
		return
	}
}

func (c *cache) bytes() (n unit.Bytes) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		n += unit.Bytes(s.bytes)
		s.mu.RUnlock()
	}
	return n
}
