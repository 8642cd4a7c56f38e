package prefix

import "slices"

// tree is a set of chains, and by whom each was entered. Chains have their
// beginnings in common, so it keeps each stretch that none branches off once, as
// a stem. Whoever entered a chain has entered all its beginnings: an owner of a
// stem owns those that lead to it.
//
// A block's hash names all before it. So a stem is found by its first block
// alone, and two stretches that begin with the same block have in common all up
// to the last place where they agree.
type tree struct {
	stems []stem
	at    map[Hash]int32 // by first block
	room  []Hash         // of the newest chunk, not used yet
	bytes int            // of all this, about
}

// stem is a stretch of one chain or many. Its owners are first and more, without
// order.
type stem struct {
	blocks []Hash
	first  uint32
	more   []uint32
}

const (
	hashBytes = 8
	// stemBytes is what a stem takes beside its blocks.
	stemBytes  = 96
	ownerBytes = 8 // slices grow ahead
	// Chunks hold the blocks of many stems.
	chunkHashes = 1 << 13
	fewHashes   = 1 << 8 // a rest of a chunk that is not worth a stem
)

func newTree() tree { return tree{at: map[Hash]int32{}} }

// most is the most bytes by which a tree of so many owners grows with chain: what
// is copied of it, an owner more for each stem along it, and one stem split.
func most(chain []Hash, owners int) int {
	return (len(chain)+chunkHashes)*hashBytes + len(chain)*ownerBytes +
		(len(chain)/chunkHashes+4)*stemBytes + owners*ownerBytes
}

// shared is how many blocks the two, which begin alike, have in common.
func shared(a, b []Hash) int {
	same, end := 1, min(len(a), len(b))
	if a[end-1] == b[end-1] {
		return end
	}
	for end--; same < end; {
		if mid := int(uint(same+end+1) / 2); a[mid-1] == b[mid-1] {
			same = mid
		} else {
			end = mid - 1
		}
	}
	return same
}

// walk visits the stems along chain, with the number of leading blocks of chain
// that their owners have entered.
func (t *tree) walk(chain []Hash, visit func(blocks int, s *stem)) {
	for blocks := 0; blocks < len(chain); {
		n, ok := t.at[chain[blocks]]
		if !ok {
			return
		}
		s := &t.stems[n]
		same := shared(s.blocks, chain[blocks:])
		blocks += same
		if visit(blocks, s); same < len(s.blocks) {
			return
		}
	}
}

// add enters chain for an owner.
func (t *tree) add(owner uint32, chain []Hash) {
	for len(chain) > 0 {
		n, ok := t.at[chain[0]]
		if !ok {
			blocks := t.copy(chain)
			t.put(stem{blocks: blocks, first: owner})
			chain = chain[len(blocks):]
			continue
		}
		same := shared(t.stems[n].blocks, chain)
		if same < len(t.stems[n].blocks) {
			t.split(n, same)
		}
		t.own(&t.stems[n], owner)
		chain = chain[same:]
	}
}

// copy is a copy of the beginning of chain, or of all.
func (t *tree) copy(chain []Hash) []Hash {
	if len(t.room) < min(len(chain), fewHashes) {
		t.room = make([]Hash, chunkHashes)
		t.bytes += chunkHashes * hashBytes
	}
	n := copy(t.room, chain)
	blocks := t.room[:n:n]
	t.room = t.room[n:]
	return blocks
}

func (t *tree) put(s stem) {
	t.at[s.blocks[0]] = int32(len(t.stems))
	t.stems = append(t.stems, s)
	t.bytes += stemBytes + ownerBytes*len(s.more)
}

// split makes two stems of one: its first blocks, and the others.
func (t *tree) split(n int32, first int) {
	s := &t.stems[n]
	rest := stem{blocks: s.blocks[first:], first: s.first, more: slices.Clone(s.more)}
	s.blocks = s.blocks[:first]
	t.put(rest)
}

func (t *tree) own(s *stem, owner uint32) {
	if s.first != owner && !slices.Contains(s.more, owner) {
		s.more = append(s.more, owner)
		t.bytes += ownerBytes
	}
}
