package batch

import "slices"

// exportCached announces what a prefill leg found in the prefix cache.
func (e *Engine) exportCached(s *sequence) {
	for layer := range e.pool.Layout.Layers {
		announce(s, layer, 0, s.computed)
	}
}

// announce tells the exporter of [from, to) in layer, but for what its
// destination has.
func announce(s *sequence, layer, from, to int) {
	if from = max(from, s.req.Export.From()); from < to {
		s.req.Export.Computed(layer, from, to, s.blocks)
	}
}

// onLayer announces the step's new KV layer by layer, or is nil when the step
// has no prefill leg.
func (e *Engine) onLayer() func(layer int) {
	st := &e.step
	if !slices.ContainsFunc(st.seqs, func(s *sequence) bool { return s.req.Export != nil }) {
		return nil
	}
	return func(layer int) {
		for i, s := range st.seqs {
			if s.req.Export != nil {
				announce(s, layer, st.spans[i].Start, st.spans[i].Start+len(st.spans[i].Tokens))
			}
		}
	}
}

// exported ends a prefill leg's computing. Its blocks wait for the exporter.
func (e *Engine) exported(s *sequence, hidden []float32) {
	e.run = sift(e.run, func(o *sequence) bool { return o != s })
	s.finish = FinishPrefilled
	e.held = append(e.held, s)
	s.req.Export.Finish(hidden, e.releaser(s))
}
