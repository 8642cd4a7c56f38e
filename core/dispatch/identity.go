package dispatch

import (
	"context"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// identity is what a life's prompt is known by, and what was believed of the
// worker that got it.
type identity struct {
	known       bool
	exact       bool
	tokens      unit.Tokens
	blockTokens unit.Tokens
	bytes       unit.Bytes
	chain       *[]prefix.Hash // from Dispatcher.chains
	ticket      prefix.Ticket  // of the leg that reports usage
	presence    route.Presence // on the worker that generates
}

// blocks is the prompt's chain.
func (i *identity) blocks() []prefix.Hash {
	if i.chain == nil {
		return nil
	}
	return *i.chain
}

// size is the bytes that the number of tokens is estimated from.
func (i *identity) size(otherwise unit.Bytes) unit.Bytes {
	if i.known && i.bytes > 0 {
		return i.bytes
	}
	return otherwise
}

// identify reads the prompt, once: as soon as some worker serves the model, for
// which the identity is made. It is done before the decision's lock is taken.
func (l *Life) identify(ctx context.Context) {
	if l.identity.known {
		return
	}
	target := l.model.target.Load()
	if target == nil {
		return // nobody serves the model, so that there is nothing to decide
	}
	scratch := l.d.scratch.Get().(*prompt.Scratch)
	defer l.d.scratch.Put(scratch)
	id := l.d.prompts.Identify(ctx, prompt.KindOf(l.req.Path), l.req.Body, *target, scratch)
	if id.Bytes == 0 {
		id.Bytes = l.req.Prompt
	}
	id.Estimate(&l.model.ratio)
	l.identity = identity{
		known: true, exact: id.Exact, tokens: id.Tokens, blockTokens: id.BlockTokens, bytes: id.Bytes,
		chain: l.d.chains.Get().(*[]prefix.Hash),
	}
	*l.identity.chain = append((*l.identity.chain)[:0], id.Chain...)
}

// maxKeptChain bounds the chains that are kept for later requests, in blocks.
const maxKeptChain = 1 << 13

// forget gives the identity's memory back.
func (l *Life) forget() {
	l.identity.presence.Leave()
	if c := l.identity.chain; c != nil && cap(*c) <= maxKeptChain {
		l.d.chains.Put(c)
	}
	l.identity = identity{}
}

// dispatched tells the tracker what a worker is about to hold. The caller holds
// Dispatcher.deciding, so that the next decision knows.
func (l *Life) dispatched(w *fleet.Worker) prefix.Ticket {
	if events := l.d.events(); events != nil {
		if _, told := events.Find(w.ID, w.Epoch); told {
			return prefix.Ticket{} // its own events will say it
		}
	}
	return l.d.tracker.Dispatched(w.ID, w.Epoch, l.identity.blocks())
}

// served compares what the engine reports with what was believed.
func (l *Life) served(u edge.Usage) {
	l.d.tracker.Finished(l.identity.ticket, l.identity.blocks(), prefix.Served{
		Prompt: u.Prompt, Cached: u.Cached, Known: u.Known && u.CachedKnown,
	})
	l.identity.ticket = prefix.Ticket{}
}

// events is the index fed by KV events, or nil.
func (d *Dispatcher) events() *prefix.Table {
	if d.deps.Events == nil {
		return nil
	}
	return d.deps.Events()
}
