package batch

import (
	"slices"

	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

type blockTable = []kv.BlockID

// step is one step of the loop, with the memory that steps reuse.
type step struct {
	order    []*sequence // the running ones at the start of planning
	seqs     []*sequence // one per span
	spans    []Span
	imported []*sequence // to be sampled from an imported hidden state
	sampled  []*sequence // one per row of logits
	hidden   []float32
	logits   []float32
	scratch  sample.Scratch
}

func (st *step) reset() {
	clear(st.order)
	clear(st.seqs)
	clear(st.spans)
	clear(st.imported)
	clear(st.sampled)
	st.order = st.order[:0]
	st.seqs, st.spans = st.seqs[:0], st.spans[:0]
	st.imported, st.sampled = st.imported[:0], st.sampled[:0]
}

// add schedules the next n tokens of s.
func (st *step) add(s *sequence, n int) {
	st.seqs = append(st.seqs, s)
	st.spans = append(st.spans, Span{
		Tokens: s.tokens[s.computed : s.computed+n], Start: s.computed, Blocks: s.blocks, Last: n == s.left(),
	})
}

// compute runs the planned step and reports whether there was anything in it.
func (e *Engine) compute() bool {
	st := &e.step
	if len(st.spans)+len(st.imported) == 0 {
		return false
	}
	begun := e.opt.Clock.Now()
	load := e.forward()
	e.sample()
	e.account(load, e.opt.Clock.Now().Sub(begun))
	return true
}

// forward computes the spans. Afterwards the hidden states to be sampled from
// are in the first rows of st.hidden, one for each of st.sampled.
func (e *Engine) forward() (load load) {
	st := &e.step
	rows := len(st.imported)
	for i, sp := range st.spans {
		load.add(st.seqs[i], len(sp.Tokens))
		if sp.Last {
			rows++
		}
	}
	st.hidden = slices.Grow(st.hidden[:0], rows*e.dim)[:rows*e.dim]
	if len(st.spans) > 0 {
		e.runner.Forward(e.pool, st.spans, st.hidden, e.onLayer())
	}
	row, kept := 0, 0
	for i, s := range st.seqs {
		s.computed += len(st.spans[i].Tokens)
		s.indexed = e.cache.Commit(s.req.Salt, s.blocks, s.tokens[:s.computed], s.indexed)
		if !st.spans[i].Last {
			continue
		}
		state := st.hidden[row*e.dim : (row+1)*e.dim]
		row++
		if s.req.Export != nil {
			e.exported(s, state)
			continue
		}
		copy(st.hidden[kept*e.dim:], state)
		kept++
		st.sampled = append(st.sampled, s)
	}
	for _, s := range st.imported {
		copy(st.hidden[kept*e.dim:], s.hidden)
		kept++
		s.hidden = nil
		st.sampled = append(st.sampled, s)
	}
	return load
}

// sample chooses the next token of each sequence that is due one.
func (e *Engine) sample() {
	st := &e.step
	n := len(st.sampled)
	if n == 0 {
		return
	}
	st.logits = slices.Grow(st.logits[:0], n*e.vocab)[:n*e.vocab]
	e.runner.Logits(st.hidden[:n*e.dim], n, st.logits)
	ended := false
	for i, s := range st.sampled {
		logits := st.logits[i*e.vocab : (i+1)*e.vocab : (i+1)*e.vocab]
		c, err := s.sampler.Sample(logits, s.suppressed(), &st.scratch)
		if err != nil {
			e.fail(s, FinishError, err)
			s.finish, ended = FinishError, true
			continue
		}
		s.tokens = append(s.tokens, c.Token)
		ev := Event{Token: c.Token, LogProb: c.LogProb, Top: c.Top}
		switch {
		case slices.Contains(s.stops, c.Token):
			ev.Finish = FinishStop
		case s.generated() >= s.maxTokens:
			ev.Finish = FinishLength
		default:
			s.stream.send(ev)
			continue
		}
		s.finish, ended = ev.Finish, true
		e.free(s)
		e.end(s, ev)
	}
	if ended {
		e.run = sift(e.run, func(s *sequence) bool { return s.finish == "" })
	}
}
