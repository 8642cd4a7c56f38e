package tokens

import (
	"fmt"
	"strings"
)

// bpe merges the bytes of a word. Symbols are token ids; a symbol that is no
// token (a byte or a merge the vocabulary lacks) has an id at or above tokens.
type bpe struct {
	tokens int // ids below are tokens
	bytes  [256]int32
	merges map[uint64]merge
	// spell is the bytes of the symbols that are no tokens.
	spell []string
}

type merge struct{ rank, id int32 }

func pair(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

func newBPE(v *Vocab) (*bpe, error) {
	b := &bpe{tokens: len(v.Tokens), merges: make(map[uint64]merge, len(v.Merges))}
	symbols := make(map[string]int32, len(v.Tokens))
	for id, text := range v.Tokens {
		if k := v.kind(id); k == Normal || k == Unused || k == UserDefined || k == Unknown {
			if _, dup := symbols[text]; !dup {
				symbols[text] = int32(id)
			}
		}
	}
	symbol := func(text string) int32 {
		id, ok := symbols[text]
		if !ok {
			id = int32(b.tokens + len(b.spell))
			b.spell = append(b.spell, string(appendPiece(nil, text, Normal)))
			symbols[text] = id
		}
		return id
	}
	for c := range 256 {
		b.bytes[c] = symbol(string(byteRune[c]))
	}
	for rank, m := range v.Merges {
		left, right, _ := strings.Cut(m, " ")
		if len(left)+len(right) > maxTokenText {
			return nil, fmt.Errorf("%w: merge %d has %d bytes", ErrVocab, rank, len(m))
		}
		key := pair(symbol(left), symbol(right))
		if _, dup := b.merges[key]; !dup {
			b.merges[key] = merge{int32(rank), symbol(left + right)}
		}
	}
	return b, nil
}

// scratch is the working memory of merging, kept between words.
type scratch struct {
	ids        []int32
	prev, next []int32
	queue      []candidate
}

// shortWord is the longest word, in symbols, that is merged by looking at all
// pairs for each merge. Longer ones use a queue, so that a hostile word costs
// O(n log n).
const shortWord = 48

// appendWord appends the ids of word.
func (b *bpe) appendWord(dst []int32, word string, s *scratch) []int32 {
	s.ids = s.ids[:0]
	for i := range len(word) {
		s.ids = append(s.ids, b.bytes[word[i]])
	}
	if len(s.ids) <= shortWord {
		b.mergeShort(s)
	} else {
		b.mergeLong(s)
	}
	for _, id := range s.ids {
		if int(id) < b.tokens {
			dst = append(dst, id)
			continue
		}
		dst = b.appendSpelled(dst, id)
	}
	return dst
}

// appendSpelled appends a symbol that is no token byte by byte. A byte without
// a token is dropped, as the reference tokenizers do.
func (b *bpe) appendSpelled(dst []int32, id int32) []int32 {
	text := b.spell[int(id)-b.tokens]
	for i := range len(text) {
		if t := b.bytes[text[i]]; int(t) < b.tokens {
			dst = append(dst, t)
		}
	}
	return dst
}

// mergeShort applies the best merge, leftmost first, until none is left.
func (b *bpe) mergeShort(s *scratch) {
	ids := s.ids
	// found[i] is the merge of ids[i] and ids[i+1].
	var found [shortWord]merge
	for i := range len(ids) - 1 {
		found[i] = b.lookup(ids[i], ids[i+1])
	}
	for len(ids) > 1 {
		best := 0
		for i := 1; i < len(ids)-1; i++ {
			if found[i].rank < found[best].rank {
				best = i
			}
		}
		if found[best].rank == noMerge {
			break
		}
		ids[best] = found[best].id
		copy(ids[best+1:], ids[best+2:])
		copy(found[best:len(ids)-1], found[best+1:len(ids)-1])
		ids = ids[:len(ids)-1]
		if best > 0 {
			found[best-1] = b.lookup(ids[best-1], ids[best])
		}
		if best < len(ids)-1 {
			found[best] = b.lookup(ids[best], ids[best+1])
		}
	}
	s.ids = ids
}

const noMerge = int32(1<<31 - 1)

func (b *bpe) lookup(left, right int32) merge {
	if m, ok := b.merges[pair(left, right)]; ok {
		return m
	}
	return merge{rank: noMerge}
}

// candidate is a possible merge of the symbol at position at, which was left,
// with its right neighbour, which was right.
type candidate struct {
	rank, at    int32
	left, right int32
	id          int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// mergeLong does the same as mergeShort with a linked list and a heap. An entry
// whose symbols have changed since is skipped when it comes up.
func (b *bpe) mergeLong(s *scratch) {
	n := len(s.ids)
	s.prev, s.next, s.queue = s.prev[:0], s.next[:0], s.queue[:0]
	for i := range n {
		s.prev = append(s.prev, int32(i-1))
		s.next = append(s.next, int32(i+1))
	}
	for i := range n - 1 {
		b.offer(s, int32(i), int32(i+1))
	}
	const gone = -1
	for len(s.queue) > 0 {
		c := s.pop()
		right := s.next[c.at]
		if s.ids[c.at] != c.left || int(right) >= n || s.ids[right] != c.right {
			continue
		}
		s.ids[c.at] = c.id
		s.ids[right] = gone
		after := s.next[right]
		s.next[c.at] = after
		if int(after) < n {
			s.prev[after] = c.at
			b.offer(s, c.at, after)
		}
		if before := s.prev[c.at]; before >= 0 {
			b.offer(s, before, c.at)
		}
	}
	out := s.ids[:0]
	for _, id := range s.ids {
		if id != gone {
			out = append(out, id)
		}
	}
	s.ids = out
}

func (b *bpe) offer(s *scratch, left, right int32) {
	if m := b.lookup(s.ids[left], s.ids[right]); m.rank != noMerge {
		s.push(candidate{rank: m.rank, at: left, left: s.ids[left], right: s.ids[right], id: m.id})
	}
}

func (s *scratch) push(c candidate) {
	s.queue = append(s.queue, c)
	q := s.queue
	i := len(q) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !q[i].before(q[parent]) {
			break
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}

func (s *scratch) pop() candidate {
	q := s.queue
	top := q[0]
	last := len(q) - 1
	q[0] = q[last]
	q = q[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if !q[child].before(q[i]) {
			break
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
	s.queue = q
	return top
}
