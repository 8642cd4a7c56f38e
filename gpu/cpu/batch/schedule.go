package batch

import "slices"

// reap ends what must end and moves on what has waited for others.
func (e *Engine) reap(deserted bool) {
	e.waiting = sift(e.waiting, func(s *sequence) bool {
		if s.reason() == nil {
			return true
		}
		if s.req.Import != nil && s.imports == nil {
			e.background(s.req.Import.Cancel) // never started: tell the other side
		}
		e.abort(s)
		return false
	})
	e.importing = sift(e.importing, e.stillImporting)
	e.ready = sift(e.ready, e.keepOrAbort)
	e.run = sift(e.run, e.keepOrAbort)
	e.held = sift(e.held, func(s *sequence) bool {
		if !s.released.Load() && !deserted {
			return true
		}
		if s.released.Load() {
			e.free(s)
		}
		e.end(s, Event{Token: NoToken, Finish: s.finish, Err: s.err})
		return false
	})
	if deserted {
		for _, s := range e.importing { // their fences hang
			e.end(s, Event{Token: NoToken, Finish: FinishAbort, Err: s.reason()})
		}
		e.importing = nil
	}
}

func (e *Engine) keepOrAbort(s *sequence) bool {
	if s.reason() == nil {
		return true
	}
	e.abort(s)
	return false
}

// abort ends a sequence that is in no list any more.
func (e *Engine) abort(s *sequence) { e.fail(s, FinishAbort, s.reason()) }

// fail ends a sequence early. A prefill leg's blocks wait for the exporter.
func (e *Engine) fail(s *sequence, finish Finish, err error) {
	if s.req.Export != nil {
		s.finish, s.err = finish, err
		e.held = append(e.held, s)
		s.req.Export.Abort(err, e.releaser(s))
		return
	}
	e.free(s)
	e.end(s, Event{Token: NoToken, Finish: finish, Err: err})
}

// releaser is what an exporter calls when it no longer reads the blocks.
func (e *Engine) releaser(s *sequence) func() {
	return func() {
		s.released.Store(true)
		e.poke()
	}
}

// free gives the sequence's blocks back.
func (e *Engine) free(s *sequence) {
	e.cache.Release(s.blocks)
	s.blocks, s.computed, s.indexed, s.hidden = nil, 0, 0, nil
}

// end notes the last event of a sequence that is in no list any more.
func (e *Engine) end(s *sequence, last Event) {
	s.stop()
	e.meters.finished(last.Finish)
	e.ended = append(e.ended, ending{s.stream, last})
}

// settle publishes the loop's state and then sends the last events: whoever
// sees its request end sees the engine without it.
func (e *Engine) settle() {
	e.publish()
	if len(e.ended) == 0 {
		return
	}
	e.mu.Lock()
	e.live -= len(e.ended)
	e.mu.Unlock()
	for _, end := range e.ended {
		end.stream.send(end.last)
	}
	clear(e.ended)
	e.ended = e.ended[:0]
	e.poke() // it may have been the last one of a closing engine
}

// admit gives places and blocks to those who wait, first come, first served.
func (e *Engine) admit() {
	for len(e.ready) > 0 && e.place() {
		e.run = insert(e.run, e.ready[0])
		e.ready = slices.Delete(e.ready, 0, 1)
	}
	for i := 0; i < len(e.waiting); {
		before := len(e.waiting)
		switch s := e.waiting[i]; e.start(s) {
		case full:
			return
		case later:
			i++
		case started:
			e.waiting = slices.DeleteFunc(e.waiting, func(o *sequence) bool { return o == s })
			if len(e.waiting) != before-1 {
				i = 0 // start has put stalled sequences back to waiting
			}
		}
	}
}

// progress is what came of an attempt to start a sequence.
type progress int

const (
	started progress = iota
	later            // not now, and others need not wait for it
	full             // nobody can start now
)

// start reserves the blocks of a waiting sequence and sets it going.
func (e *Engine) start(s *sequence) progress {
	if s.stream.blocked() {
		return later // put back, and its reader still sleeps
	}
	if s.req.Import != nil && !s.admitted {
		return e.startImport(s)
	}
	if !e.place() {
		return full
	}
	for {
		if blocks, cached, ok := e.cache.Acquire(s.req.Salt, s.tokens, len(e.run)); ok {
			e.begin(s, blocks, cached)
			return started
		}
		if !e.preempt(e.stalled()) {
			return full
		}
	}
}

// startImport starts a decode leg that found no blocks when it was submitted.
func (e *Engine) startImport(s *sequence) progress {
	for {
		local, p := e.reserve(s, len(e.run))
		if p == full && e.preempt(e.stalled()) {
			continue
		}
		if local {
			e.background(s.req.Import.Cancel)
		}
		if p == started {
			e.enlist(s)
		}
		return p
	}
}

// enlist puts a decode leg whose blocks are reserved where it belongs.
func (e *Engine) enlist(s *sequence) {
	if s.imports.deadline.IsZero() {
		e.ready = insert(e.ready, s)
	} else {
		e.importing = append(e.importing, s)
	}
}

// begin makes s run on its blocks.
func (e *Engine) begin(s *sequence, blocks blockTable, cached int) {
	s.blocks, s.computed, s.indexed = blocks, cached, cached/e.opt.BlockTokens
	e.found(s, cached)
	e.run = insert(e.run, s)
	if s.req.Export != nil {
		e.exportCached(s)
	}
}

// found counts a prefix lookup, once per request.
func (e *Engine) found(s *sequence, cached int) {
	if s.admitted {
		return
	}
	s.admitted = true
	s.stream.setCached(cached)
	e.meters.prefixQueries.Add(float64(s.prompt()))
	e.meters.prefixHits.Add(float64(cached))
}

// place makes sure that one more sequence may run.
func (e *Engine) place() bool {
	return len(e.run) < e.opt.MaxRunning || e.preempt(e.stalled())
}

// stalled is the latest running sequence whose reader does not keep up, or nil.
// Others need not wait for what it holds.
func (e *Engine) stalled() *sequence {
	for _, s := range slices.Backward(e.run) {
		if s.req.Export == nil && s.stream.blocked() {
			return s
		}
	}
	return nil
}

// preempt puts s back to waiting; its blocks are free, and what it had computed
// stays in the prefix cache as long as nobody needs the room. It is false for
// nil.
func (e *Engine) preempt(s *sequence) bool {
	if s == nil {
		return false
	}
	e.free(s)
	e.run = slices.DeleteFunc(e.run, func(o *sequence) bool { return o == s })
	e.waiting = insert(e.waiting, s)
	e.meters.preemptions.Inc()
	return true
}

// plan chooses what the next step computes: generated tokens first, then
// prompts in order of arrival, as far as the budget goes.
func (e *Engine) plan() {
	e.step.reset()
	budget := e.opt.TokenBudget
	e.step.order = append(e.step.order, e.run...) // grow takes from run
	for _, s := range e.step.order {
		switch {
		case s.blocks == nil: // it was put back for another to grow
		case s.hidden == nil && !s.decoding():
		case s.stream.blocked():
		case s.hidden != nil:
			e.step.imported = append(e.step.imported, s)
		case e.grow(s):
			e.step.add(s, 1)
			budget--
		}
	}
	for _, s := range e.run {
		if budget == 0 {
			return
		}
		if s.hidden != nil || s.decoding() || s.stream.blocked() {
			continue
		}
		n := e.chunk(s, budget)
		e.step.add(s, n)
		budget -= n
	}
}

// chunk is how much of a prompt fits the budget: all, or whole blocks, or what
// there is if that is less than a block.
func (e *Engine) chunk(s *sequence, budget int) int {
	if s.left() <= budget {
		return s.left()
	}
	end := (s.computed + budget) / e.opt.BlockTokens * e.opt.BlockTokens
	if end > s.computed {
		return end - s.computed
	}
	return budget
}

// grow makes room for the next token of s. When no block is free the latest
// sequence that can be put back is; that may be s itself (false).
func (e *Engine) grow(s *sequence) bool {
	for s.computed >= len(s.blocks)*e.opt.BlockTokens {
		var ok bool
		if s.blocks, ok = e.cache.Extend(s.blocks, 1); ok {
			return true
		}
		victim := e.victim(s)
		e.preempt(victim)
		if victim == s {
			return false
		}
	}
	return true
}

// victim is the sequence to put back so that s can grow: one that stalls, else
// the latest, s itself at the earliest. None of them is in the step yet. Prefill
// legs are read from elsewhere and stay.
func (e *Engine) victim(s *sequence) *sequence {
	if v := e.stalled(); v != nil {
		return v
	}
	for _, v := range slices.Backward(e.run) {
		if v == s || v.req.Export == nil {
			return v
		}
	}
	return s
}
