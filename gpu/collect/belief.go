package collect

import (
	"context"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/kvevent"
	"github.com/yardmaster/yardmaster/gpu/zmtp"
)

// belief is what one process of an engine has told of its blocks: a run of its
// messages without a gap, up to the newest that is known.
//
// Messages come by connections, published or replayed, and none says which
// process is at its other end: a process that took over the address counts from
// 0 again and may have come further than the one before it. So a connection
// shows whose it is by content. It may add to the belief once a message that it
// has brought, and that is in the belief, was the same here and there. Where it
// shows another one, or none, the belief begins anew with it.
//
// Of the two kinds the published messages are right: what a replay tells is not
// believed beside a connection whose last message it does not have.
type belief struct {
	t        *Translator
	registry *measure.Registry
	memory   memory
	batch    kvevent.Batch

	begun  bool
	next   uint64 // number of the message that is due
	recent []seen // by number modulo its length
	group  int    // the KV-cache group that is followed, or anyGroup
	// whole says that there is nothing before the belief's first message that the
	// engine could be asked for.
	whole bool

	peer uint64 // the connection that publishes: the newest, or the last heard
	last seen   // and what came by it last, in the belief or not
	live bool   // it has shown that the belief is of its process
}

// memory hands each what an engine remembers of its messages, by one connection
// and from a number on, until each returns false. An error means that the engine
// has not answered, or not to the end.
type memory func(ctx context.Context, from uint64, each func(*kvevent.Message) bool) error

// seen remembers a message.
type seen struct {
	seq, sum uint64
	ok       bool
}

func seenOf(m *kvevent.Message) seen { return seen{m.Seq, xxhash.Sum64(m.Payload), true} }

const (
	// anyGroup means that no group has been seen yet.
	anyGroup = -2
	// remembered is how many recent messages are told from others of the same
	// number. Engines remember 10,000 unless told otherwise.
	remembered = 1 << 14
)

func newBelief(t *Translator, registry *measure.Registry, m memory) *belief {
	return &belief{t: t, registry: registry, memory: m, group: anyGroup, recent: make([]seen, remembered)}
}

// meet turns to a connection that has come up. Its process may be another: the
// belief stays when a replay that was asked for since shows it.
func (b *belief) meet(ctx context.Context, peer uint64) {
	b.turn(peer)
	if !b.replay(ctx) {
		b.forget()
	}
}

func (b *belief) turn(peer uint64) { b.peer, b.last, b.live = peer, seen{}, false }

// hear takes one published message. It is false when a replay was no help: the
// belief has begun anew with the message.
func (b *belief) hear(ctx context.Context, in zmtp.Inbound) bool {
	m, err := kvevent.ParseMessage(in.Frames)
	if err != nil || m.IsEnd() {
		return true // no message of an engine; if it was to be one, its number is missing
	}
	if in.Peer != b.peer {
		b.turn(in.Peer) // several publish
	}
	b.last = seenOf(&m)
	if !b.fits() && (b.begun || m.Seq > 0) {
		missing := b.live && m.Seq > b.next
		b.replay(ctx)
		if missing && b.live && b.fits() { // and nothing was forgotten over it
			b.registry.Counter(measure.FeedGaps, "replayed").Inc()
		}
	}
	fits := b.fits() || !b.begun && m.Seq == 0
	if !fits {
		b.forget()
	}
	if !b.has(b.last) {
		b.take(&m)
	}
	b.live = true
	return fits
}

// fits reports whether the last published message is in the belief, or is the
// next one by a connection that has shown itself.
func (b *belief) fits() bool { return b.has(b.last) || b.live && b.last.seq == b.next }

// has reports whether exactly this message is in the belief.
func (b *belief) has(s seen) bool { return s.ok && b.recent[s.seq%remembered] == s }

// replay brings the belief up to what the engine remembers, and has it begin anew
// when that is not its continuation. It reports whether the engine has answered.
func (b *belief) replay(ctx context.Context) bool {
	if b.begun && b.whole {
		answered, same := b.follow(ctx)
		if !answered || same {
			return answered
		}
		b.forget()
	}
	return b.restart(ctx)
}

// follow asks for what comes after the belief, its last message included: who
// has another one of that number, or none, is another process.
func (b *belief) follow(ctx context.Context) (answered, same bool) {
	known := b.next - 1
	err := b.memory(ctx, known, func(m *kvevent.Message) bool {
		answered = true
		switch {
		case same:
			b.add(m)
		case m.Seq == known:
			same = b.has(seenOf(m))
			return same
		}
		return same || m.Seq < known
	})
	return answered || err == nil, same
}

// restart asks for all that the engine remembers, and believes that alone. What
// has begun stays when there is no answer.
func (b *belief) restart(ctx context.Context) (answered bool) {
	err := b.memory(ctx, 0, func(m *kvevent.Message) bool {
		if !answered {
			b.forget()
		}
		answered = true
		b.add(m)
		return true
	})
	if !answered && err != nil {
		return false
	}
	if !answered || b.last.ok && !b.has(b.last) {
		b.forget() // it remembers nothing, or is not who publishes
	}
	return true
}

// add takes a message of a replay. After a gap the belief begins anew: what the
// engine has forgotten may have removed any block.
func (b *belief) add(m *kvevent.Message) {
	if b.has(seenOf(m)) {
		return
	}
	if b.begun && m.Seq != b.next {
		b.forget()
	}
	b.take(m)
	b.whole = true
}

// take applies a message, the next or the first of a new beginning.
func (b *belief) take(m *kvevent.Message) {
	unread := b.batch.Decode(m.Payload) != nil
	if unread {
		b.forget() // blocks may have gone with it
	}
	if !b.begun {
		b.whole = unread || m.Seq == 0
	}
	b.begun, b.next = true, m.Seq+1
	b.recent[m.Seq%remembered] = seenOf(m)
	if unread {
		return
	}
	events := make([]Event, 0, len(b.batch.Events))
	for i := range b.batch.Events {
		if e, ok := b.event(&b.batch.Events[i]); ok {
			events = append(events, e)
		}
	}
	b.t.Apply(events...)
}

// forget clears the belief. Nothing is known then, nor whose the connection is.
func (b *belief) forget() {
	if !b.begun {
		return
	}
	b.t.Apply(Event{Kind: Cleared})
	clear(b.recent)
	b.begun, b.next, b.whole, b.live, b.group = false, 0, false, false, anyGroup
	b.registry.Counter(measure.FeedGaps, "cleared").Inc()
}

// event is what an engine's event means; ok is false for one that concerns
// blocks outside the main cache.
func (b *belief) event(e *kvevent.Event) (out Event, ok bool) {
	switch e.Kind {
	case kvevent.Cleared:
		return Event{Kind: Cleared}, true
	case kvevent.Removed:
		return Event{Kind: Removed, Blocks: e.Hashes}, b.ours(e)
	case kvevent.Stored:
	default:
		return out, false
	}
	if !b.ours(e) || len(e.Hashes) == 0 {
		return out, false
	}
	out = Event{
		Kind: Stored, Blocks: e.Hashes, Parent: e.Parent, Root: e.Parent == 0,
		Adapter: e.LoRA, Salt: e.Salt, BlockTokens: e.BlockTokens, Tokens: make([]int32, len(e.Tokens)),
	}
	for i, id := range e.Tokens {
		out.Tokens[i] = int32(id) //nolint:gosec // text ids are hashes: any 32 bits will do
	}
	// A single text that the first block's hash covers is its adapter or its salt.
	// Whatever else hashes cover cannot be asked for by tokens.
	switch {
	case e.LoRA == "" && e.LoRAID != 0:
		out.Opaque = true
	case e.Salt != "" || !e.Extra || e.ExtraKey == e.LoRA && e.LoRA != "":
	case e.ExtraKey != "" && e.LoRA == "" && out.Root:
		out.Salt = e.ExtraKey
	default:
		out.Opaque = true
	}
	return out, true
}

// ours reports whether an event is of the engine's own memory and of the group
// that is followed: the first one of full attention. A hybrid model reports each
// block once for each group.
func (b *belief) ours(e *kvevent.Event) bool {
	if e.Medium != "" && e.Medium != kvevent.MediumGPU {
		return false
	}
	if b.group == anyGroup && e.Kind == kvevent.Stored && (e.Spec == "" || e.Spec == "full_attention") {
		b.group = e.Group
	}
	return e.Group == b.group || e.Group == kvevent.NoGroup
}
