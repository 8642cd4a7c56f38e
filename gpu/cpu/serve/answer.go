package serve

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/wire/openai"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
)

// answer turns one engine stream into pieces of text: whole characters, without
// the stop string, held back while they may be the beginning of one. The pieces
// concatenate to the same text however the events are timed.
type answer struct {
	call   *call
	index  int
	prompt []int32
	stream *batch.Stream
	stops  []int32 // tokens that end it and give no text, ascending

	detok  *tokens.Detokenizer
	stop   *stopper
	count  int // tokens received, the one that stopped it included
	offset int // bytes of text whose logprobs were handed out

	peeked  *batch.Event
	pending openai.Choice // what the next piece will hold
	ended   bool
}

func newAnswer(c *call, index int, stream *batch.Stream) *answer {
	a := &answer{
		call: c, index: index, stream: stream, stops: slices.Clone(c.req.StopTokenIDs),
		detok: tokens.NewDetokenizer(c.h.opt.Tokenizer, !c.req.SkipSpecialTokens),
		stop:  newStopper(c.req.Stop),
	}
	if !c.req.IgnoreEOS {
		a.stops = append(a.stops, c.h.opt.Tokenizer.EOG()...)
	}
	slices.Sort(a.stops)
	a.pending = a.blank()
	prompt := c.prompts[index/c.req.N]
	a.prompt = prompt[:len(prompt)-len(c.req.Continue)]
	for _, id := range c.req.Continue {
		a.replay(id)
	}
	return a
}

// replay goes through a token that another worker generated and whose text the
// client has: what is held back afterwards is what that worker held back.
func (a *answer) replay(id int32) {
	a.count++
	a.text(a.detok.Add(id))
	if ready := len(a.pending.Text) - a.stop.hold(); ready > 0 {
		a.cut(ready)
	}
}

// blank is a piece without anything in it.
func (a *answer) blank() openai.Choice {
	return openai.Choice{
		Index: a.index, StopID: tokens.None, WantLogprobs: a.call.req.Logprobs >= 0, WantIDs: a.call.req.ReturnTokenIDs || a.call.asked,
	}
}

// peek waits for the first event without taking it, unless it is a failure.
func (a *answer) peek(ctx context.Context) error {
	ev, err := a.stream.Recv(ctx)
	if err != nil {
		return fmt.Errorf("first event: %w", err)
	}
	if failed(&ev) {
		return endError(&ev)
	}
	a.peeked = &ev
	return nil
}

func (a *answer) recv(ctx context.Context) (batch.Event, error) {
	if ev := a.peeked; ev != nil {
		a.peeked = nil
		return *ev, nil
	}
	return a.stream.Recv(ctx)
}

// next waits for text that may be shown and returns it; the last piece has
// Finish set. After that, and only then, the error is io.EOF. Other errors are
// the engine's failure or ctx's.
func (a *answer) next(ctx context.Context) (openai.Choice, error) {
	if a.ended {
		return openai.Choice{}, io.EOF
	}
	for {
		ev, err := a.recv(ctx)
		if err != nil {
			return openai.Choice{}, fmt.Errorf("engine stream: %w", err)
		}
		if failed(&ev) {
			return openai.Choice{}, endError(&ev)
		}
		if ev.Token != batch.NoToken {
			a.take(&ev)
		}
		if !a.ended && ev.Finish != "" {
			a.finish(ev.Finish)
		}
		ready := len(a.pending.Text) - a.stop.hold()
		switch {
		case a.ended:
			return a.pending, nil
		case ready > 0:
			return a.cut(ready), nil
		}
	}
}

// take adds a token to the pending piece.
func (a *answer) take(ev *batch.Event) {
	a.count++
	if a.pending.WantIDs {
		a.pending.TokenIDs = append(a.pending.TokenIDs, ev.Token)
	}
	if ev.Finish == batch.FinishStop {
		if _, isStop := slices.BinarySearch(a.stops, ev.Token); isStop {
			if slices.Contains(a.call.req.StopTokenIDs, ev.Token) {
				a.pending.StopID = ev.Token
			}
			return // it gives no text
		}
	}
	if a.pending.WantLogprobs {
		if len(a.pending.Logprobs) == 0 {
			a.pending.TextOffset = a.offset
		}
		a.offset += len(a.call.h.opt.Tokenizer.Piece(ev.Token))
		a.pending.Logprobs = append(a.pending.Logprobs, a.logprob(ev))
	}
	a.text(a.detok.Add(ev.Token))
}

func (a *answer) logprob(ev *batch.Event) openai.Logprob {
	t := a.call.h.opt.Tokenizer
	p := openai.Logprob{Token: t.Piece(ev.Token), Logprob: float64(ev.LogProb)}
	for _, alt := range ev.Top {
		p.Top = append(p.Top, openai.Logprob{Token: t.Piece(alt.Token), Logprob: float64(alt.LogProb)})
	}
	return p
}

// text adds decoded text and ends the answer at a stop string. Until MinTokens
// have come, none is looked for.
func (a *answer) text(piece []byte) {
	before := len(a.pending.Text)
	a.pending.Text = append(a.pending.Text, piece...)
	if len(a.stop.stops) == 0 || a.count <= a.call.req.MinTokens && a.call.req.MinTokens > 0 {
		return
	}
	end, which := a.stop.feed(piece)
	if which < 0 {
		return
	}
	stop := a.call.req.Stop[which]
	keep := before + end
	if !a.call.req.IncludeStop {
		keep -= len(stop)
	}
	a.pending.Text = a.pending.Text[:keep]
	a.pending.Finish, a.pending.StopText = openai.FinishStop, stop
	a.ended = true
	a.stream.Close() // the engine may have gone on
}

// finish ends the answer as the engine did.
func (a *answer) finish(why batch.Finish) {
	a.text(a.detok.Flush())
	if a.ended { // the flushed text completed a stop string
		return
	}
	a.ended = true
	a.pending.Finish = openai.FinishLength
	if why == batch.FinishStop {
		a.pending.Finish = openai.FinishStop
	}
}

// cut takes the first n bytes of the pending text out, with all that came with
// them.
func (a *answer) cut(n int) openai.Choice {
	piece := a.pending
	a.pending = a.blank()
	a.pending.StopID = piece.StopID
	a.pending.Text = append([]byte(nil), piece.Text[n:]...)
	piece.Text = piece.Text[:n]
	return piece
}

// rest is the whole answer.
func (a *answer) rest(ctx context.Context) (openai.Choice, error) {
	all := a.blank()
	if a.call.req.ReturnTokenIDs && !a.call.req.Chat {
		all.PromptIDs = a.prompt
	}
	for {
		p, err := a.next(ctx)
		if err != nil {
			return all, err
		}
		all.Text = append(all.Text, p.Text...)
		all.Logprobs = append(all.Logprobs, p.Logprobs...)
		all.TokenIDs = append(all.TokenIDs, p.TokenIDs...)
		if p.Finish != "" {
			all.Finish, all.StopText, all.StopID = p.Finish, p.StopText, p.StopID
			return all, nil
		}
	}
}
