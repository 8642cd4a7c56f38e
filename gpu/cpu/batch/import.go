package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Reasoned is an error that names, in one word, why an import failed. The word
// is a metric label and part of [Stream.KV]. An importer's other errors read
// "failed".
type Reasoned interface {
	error
	Reason() string
}

// reserve gives a decode leg its blocks, if headroom more are free, and starts
// its import, if there is anything to move. The caller then hands the leg to the
// loop, and if local is true cancels the import, which may block.
func (e *Engine) reserve(s *sequence, headroom int) (local bool, p progress) {
	if !e.arrive(s) {
		return false, later
	}
	blocks, cached, ok := e.cache.Acquire(s.req.Salt, s.tokens, headroom)
	if !ok {
		e.arrived(s)
		return false, full
	}
	local = e.reserved(s, blocks, cached)
	if local {
		e.arrived(s)
	}
	return local, started
}

// arrive counts the blocks of a decode leg's prompt in, unless prompts on their
// way would then hold more than half of all blocks. The rest is for what can be
// computed here: were it otherwise, two workers that each decode what the other
// prefills could hold all blocks for each other and prefill nothing.
func (e *Engine) arrive(s *sequence) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.promptBlocks(s); e.arriving == 0 || e.arriving+n <= e.opt.KVBlocks/2 {
		e.arriving += n
		return true
	}
	return false
}

// arrived counts them out.
func (e *Engine) arrived(s *sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.arriving -= e.promptBlocks(s)
}

func (e *Engine) promptBlocks(s *sequence) int {
	return (s.prompt() + e.opt.BlockTokens - 1) / e.opt.BlockTokens
}

// reserved starts the import of a decode leg that has its blocks.
func (e *Engine) reserved(s *sequence, blocks blockTable, cached int) (local bool) {
	s.blocks, s.computed, s.indexed = blocks, cached, cached/e.opt.BlockTokens
	e.found(s, cached)
	s.imports = &importing{from: cached}
	if s.prompt()-cached <= e.opt.BlockTokens {
		// What is missing has to be computed, or costs less than being moved.
		s.stream.setKV("local")
		return true
	}
	s.imports.deadline = e.opt.Clock.Now().Add(e.opt.ImportTimeout)
	missing := slices.Clone(blocks[s.indexed:])
	s.req.Import.Start(Destination{
		Prompt: s.req.Prompt, From: cached, Blocks: missing, Gens: e.cache.Generations(nil, missing),
	}, func(hidden []float32, err error) {
		if err == nil && len(hidden) != e.dim {
			err = fmt.Errorf("hidden state of %d values, want %d", len(hidden), e.dim)
		}
		s.imports.result.CompareAndSwap(nil, &importResult{slices.Clone(hidden), err})
		e.poke()
	})
	return false
}

// errImportTimeout is the reason of an import that never ended.
var errImportTimeout = importTimeoutError{}

type importTimeoutError struct{}

func (importTimeoutError) Error() string  { return "transfer did not end in time" }
func (importTimeoutError) Reason() string { return "timeout" }

// stillImporting moves a decode leg on when its transfer is over.
func (e *Engine) stillImporting(s *sequence) bool {
	if e.onItsWay(s) {
		return true
	}
	e.arrived(s)
	return false
}

// onItsWay reports whether s has to wait on; if not, it has moved it on.
func (e *Engine) onItsWay(s *sequence) bool {
	im := s.imports
	result := im.result.Load()
	switch {
	case im.fencing && !im.fenced.Load():
		return true // it may still be written to
	case s.reason() != nil && result == nil && !im.fencing, result == nil && !im.fencing && e.expired(im):
		im.fencing = true
		e.background(func() {
			s.req.Import.Cancel()
			im.fenced.Store(true)
			e.poke()
		})
		return true
	case s.reason() != nil && (result != nil || im.fenced.Load()):
		e.abort(s)
		return false
	case im.fencing && (result == nil || result.err != nil):
		result = &importResult{err: errImportTimeout}
	case result == nil:
		return true
	}
	e.imported(s, result)
	return false
}

func (e *Engine) expired(im *importing) bool { return !e.opt.Clock.Now().Before(im.deadline) }

// imported takes the transfer's outcome: all of the prompt is there, or none of
// what was to be moved.
func (e *Engine) imported(s *sequence, result *importResult) {
	if result.err == nil {
		s.computed, s.hidden = s.prompt(), result.hidden
		s.indexed = e.cache.Commit(s.req.Salt, s.blocks, s.tokens, s.indexed)
		s.stream.setKV("moved")
	} else {
		reason := reasonOf(result.err)
		e.meters.recomputed(reason)
		s.stream.setKV("recomputed; " + reason)
	}
	e.ready = insert(e.ready, s)
}

func reasonOf(err error) string {
	if r, ok := errors.AsType[Reasoned](err); ok && r.Reason() != "" {
		return r.Reason()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	return "failed"
}

// nextDeadline is the time until the first import expires.
func (e *Engine) nextDeadline() (d time.Duration, ok bool) {
	now := e.opt.Clock.Now()
	for _, s := range e.importing {
		if left := s.imports.deadline.Sub(now); !s.imports.fencing && (!ok || left < d) {
			d, ok = left, true
		}
	}
	return d, ok
}
