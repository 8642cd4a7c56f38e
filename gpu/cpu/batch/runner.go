package batch

import "github.com/yardmaster/yardmaster/gpu/cpu/kv"

// Span is the part of one step that belongs to one sequence.
type Span struct {
	Tokens []int32      // token ids to compute, at positions Start, Start+1, ...
	Start  int          // position of Tokens[0]; KV of all earlier positions is in Blocks
	Blocks []kv.BlockID // the sequence's block table, covering at least Start+len(Tokens) positions
	// Last asks for the hidden state of the span's last row.
	Last bool
}

// Runner computes steps. The model implements it; tests use a small stand-in.
//
// What a sequence gets does not depend, bit for bit, on the other spans of the
// step nor on how its prompt was cut into spans.
type Runner interface {
	// Layout is the shape of the KV blocks the runner wants.
	Layout(blockTokens int) kv.Layout
	// Vocab is the number of logits, Dim the width of a hidden state.
	Vocab() int
	Dim() int
	// Forward computes spans, writing their keys and values into pool and, for
	// each span with Last set, in order, one hidden state [Dim] (after the final
	// norm) into hidden. onLayer, when not nil, is called after each layer's KV is
	// in place. It is called by one goroutine at a time.
	Forward(pool *kv.Pool, spans []Span, hidden []float32, onLayer func(layer int))
	// Logits turns n hidden states [n, Dim] into logits [n, Vocab].
	Logits(hidden []float32, n int, logits []float32)
}
