package sim

import (
	"time"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// engine is one worker's: it computes in steps, of which each gives a token to all
// that generate and computes a part of the prompts that wait.
type engine struct {
	at    int // among all
	pool  *Pool
	cache *cache
	told  uint64      // changes of the cache that were reported
	sums  prefix.Sums // of what was

	waiting   []*leg // whose prompts are not begun
	computing []*leg // whose prompts are
	decoding  []*leg
	held      unit.Tokens // KV of those that compute and decode, their outputs included

	// run is the steps that are underway.
	run struct {
		began time.Duration
		each  time.Duration
		steps int
		spans []cost.PrefillSpan // of the first step; the others have none
		parts []*leg             // whose spans those are
		id    uint64             // so that an event of a run that was cut short is known
	}
	running bool

	computed unit.Tokens // prompt tokens
	busy     time.Duration
	requests int // served here, both legs
}

// leg is what an engine does for a request.
type leg struct {
	request *request
	prompt  unit.Tokens // to be computed here, cached ones included; 0 when it was moved here
	done    unit.Tokens // of that, cached ones included
	context unit.Tokens // tokens of KV
	left    int         // tokens to generate
	tokens  unit.Tokens // KV that it takes in the end
	ready   func(cached unit.Tokens)
	ended   func()
	begun   bool
	hit     unit.Tokens
}

// room reports whether the engine can take one more.
func (e *engine) room(l *leg) bool {
	n := len(e.computing) + len(e.decoding)
	return n == 0 || n < e.pool.MaxRunning && e.held+l.tokens <= e.pool.KVTokens
}

// admit begins what waits, as far as there is room.
func (e *engine) admit() {
	for len(e.waiting) > 0 && e.room(e.waiting[0]) {
		l := e.waiting[0]
		e.waiting = e.waiting[1:]
		e.held += l.tokens
		if l.prompt == 0 {
			e.decoding = append(e.decoding, l)
			continue
		}
		e.computing = append(e.computing, l)
	}
}

// plan is the next run of steps: as many alike as nothing ends or begins in.
func (e *engine) plan() {
	e.admit()
	r := &e.run
	r.spans, r.parts = r.spans[:0], r.parts[:0]
	budget := e.pool.StepTokens
	for _, l := range e.computing {
		if budget == 0 {
			break
		}
		if !l.begun {
			l.begun = true
			// A prompt's last token is computed in any case: it gives the first one.
			l.hit = min(unit.Tokens(e.cache.match(l.request.chain))*BlockTokens, l.prompt-1)
			l.done = l.hit
		}
		n := min(l.prompt-l.done, budget)
		r.spans = append(r.spans, cost.PrefillSpan{New: n, Cached: l.done})
		r.parts = append(r.parts, l)
		budget -= n
	}
	var context unit.Tokens
	r.steps = 1
	if len(r.spans) == 0 {
		r.steps = longestRun
	}
	for _, l := range e.decoding {
		context += l.context
		r.steps = min(r.steps, l.left)
	}
	if len(r.spans) == 0 {
		context += unit.Tokens(len(e.decoding) * r.steps / 2) // its mean over the run
	}
	r.each = max(e.pool.Engine.Step(r.spans, len(e.decoding), context), time.Microsecond)
}

// longestRun bounds the steps that are taken for alike, since the context grows.
const longestRun = 64

// idle reports whether there is nothing to do.
func (e *engine) idle() bool { return len(e.waiting)+len(e.computing)+len(e.decoding) == 0 }
