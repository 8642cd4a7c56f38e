package collect

import (
	"slices"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Kind says what an [Event] reports.
type Kind uint8

// The kinds.
const (
	Stored  Kind = iota + 1 // blocks can be reused
	Removed                 // blocks are gone
	Cleared                 // all blocks are gone
)

// Event is one change of an engine's cache, in the engine's names. Its slices
// are read during the call only.
type Event struct {
	Kind Kind
	// Blocks are stored, each the parent of the next, or removed.
	Blocks []uint64
	// Parent is the block before the first one stored; Root says that there is
	// none.
	Parent uint64
	Root   bool
	// Adapter is the adapter that the blocks were computed with, Salt the cache
	// salt. Both matter at the root only.
	Adapter, Salt string
	// Tokens are the ids of all stored blocks, BlockTokens to each.
	Tokens      []int32
	BlockTokens int
	// Opaque blocks hold more than their tokens say, or do not say their tokens:
	// nobody can ask for them by tokens, nor for what comes after them.
	Opaque bool
}

// Translator gives an engine's blocks the names of the index. One serves one
// engine, or one rank of it, and one goroutine.
//
// A block's name follows from its tokens and its parent's name. A block whose
// parent is unknown waits for it: engines report a child first at times, or
// start in the middle.
type Translator struct {
	scope  prefix.Scope
	mirror *Mirror
	limit  int

	known   map[uint64]*block
	orphans map[uint64][]uint64 // by parent
	waiting int                 // blocks that wait
}

// block is what is known of one of the engine's blocks.
type block struct {
	hash   prefix.Hash
	state  state
	copies uint32  // engines report a second copy of a block, and the end of each
	tokens []int32 // while it waits
	parent uint64  // while it waits
}

type state uint8

const (
	live    state = iota // in the mirror
	opaque               // without a name
	waiting              // for its parent
)

// maxWaiting bounds the blocks that wait for a parent, and so their tokens.
const maxWaiting = 1 << 15

// maxBlockTokens bounds the tokens of a block that waits.
const maxBlockTokens = 512

// NewTranslator writes into m the blocks of an engine of that scope, whose adapter
// and salt the events say.
func NewTranslator(m *Mirror, scope prefix.Scope) *Translator {
	t := &Translator{scope: scope, mirror: m, limit: m.limit}
	t.reset()
	return t
}

func (t *Translator) reset() {
	t.known, t.orphans, t.waiting = map[uint64]*block{}, map[uint64][]uint64{}, 0
}

// Apply follows the events, all at once: no frame shows half of them.
func (t *Translator) Apply(events ...Event) {
	t.mirror.update(func() {
		for i := range events {
			t.apply(&events[i])
		}
	})
}

func (t *Translator) apply(e *Event) {
	switch e.Kind {
	case Stored:
		t.store(e)
	case Removed:
		for _, b := range e.Blocks {
			t.remove(b)
		}
	case Cleared:
		for _, b := range t.known {
			if b.state == live {
				t.mirror.drop(b.hash)
			}
		}
		t.reset()
	}
}

func (t *Translator) store(e *Event) {
	n := e.BlockTokens
	unsaid := e.Opaque || n <= 0 || n > len(e.Tokens) || len(e.Tokens) != n*len(e.Blocks)
	parent := e.Parent
	for i, id := range e.Blocks {
		switch root := e.Root && i == 0; {
		case t.again(id):
		case len(t.known) >= t.limit:
			t.mirror.refused++
		case unsaid:
			t.known[id] = &block{state: opaque, copies: 1}
			t.adopt(id)
		case root:
			t.enter(id, &block{tokens: e.Tokens[:n]}, t.root(e))
		default:
			t.follow(id, parent, e.Tokens[i*n:(i+1)*n])
		}
		parent = id
	}
}

// again counts another copy of a known block.
func (t *Translator) again(id uint64) bool {
	b := t.known[id]
	if b == nil {
		return false
	}
	b.copies++
	return true
}

func (t *Translator) root(e *Event) prefix.Hash {
	scope := t.scope
	scope.Adapter, scope.Salt = e.Adapter, e.Salt
	return scope.Seed()
}

// follow enters a block after its parent, or lets it wait.
func (t *Translator) follow(id, parent uint64, tokens []int32) {
	switch p := t.known[parent]; {
	case p != nil && p.state == live:
		t.enter(id, &block{tokens: tokens}, p.hash)
	case p != nil && p.state == opaque:
		t.known[id] = &block{state: opaque, copies: 1}
		t.adopt(id)
	case t.waiting >= maxWaiting || len(tokens) > maxBlockTokens:
		t.mirror.refused++
	default:
		t.waiting++
		t.known[id] = &block{state: waiting, copies: 1, parent: parent, tokens: slices.Clone(tokens)}
		t.orphans[parent] = append(t.orphans[parent], id)
	}
}

// enter names a block after its parent's name, and then those that wait for it.
func (t *Translator) enter(id uint64, b *block, parent prefix.Hash) {
	b.copies = 1
	if !t.name(b, parent) {
		return
	}
	t.known[id] = b
	t.adopt(id)
}

// name puts a block into the mirror, under the name that follows from its
// parent's, and reports whether there was room.
func (t *Translator) name(b *block, parent prefix.Hash) bool {
	var one [1]prefix.Hash
	b.hash = prefix.AppendChain(one[:0], parent, b.tokens, unit.Tokens(len(b.tokens)))[0]
	b.state, b.tokens = live, nil
	return t.mirror.add(b.hash)
}

// adopt settles the blocks that waited for id, and those that waited for them.
func (t *Translator) adopt(id uint64) {
	for parents := []uint64{id}; len(parents) > 0; {
		parent := parents[len(parents)-1]
		parents = parents[:len(parents)-1]
		children := t.orphans[parent]
		delete(t.orphans, parent)
		p := t.known[parent]
		for _, child := range children {
			if b := t.known[child]; b != nil && b.state == waiting {
				t.waiting--
				t.settle(b, p)
				parents = append(parents, child)
			}
		}
	}
}

// settle gives a block that waited its name, or none after a nameless parent.
func (t *Translator) settle(b, parent *block) {
	if parent == nil || parent.state != live || !t.name(b, parent.hash) {
		b.state, b.tokens = opaque, nil
	}
}

func (t *Translator) remove(id uint64) {
	b := t.known[id]
	if b == nil {
		return
	}
	if b.copies--; b.copies > 0 {
		return
	}
	delete(t.known, id)
	switch b.state {
	case live:
		t.mirror.drop(b.hash)
	case waiting:
		t.waiting--
		t.disown(id, b.parent)
	case opaque:
	}
}

// disown takes a block out of those that wait for a parent.
func (t *Translator) disown(id, parent uint64) {
	left := slices.DeleteFunc(t.orphans[parent], func(child uint64) bool { return child == id })
	if len(left) == 0 {
		delete(t.orphans, parent)
		return
	}
	t.orphans[parent] = left
}
