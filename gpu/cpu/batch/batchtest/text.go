package batchtest

import (
	"slices"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

// Text is what req generates alone in an engine of its own, computed without
// one: prompt and output in one pass per token, no cache, no batch. The last
// token is the stop token if one was met. It panics on a request that an engine
// would refuse.
func Text(r batch.Runner, req *batch.Request) []int32 {
	const blockTokens = 16
	total := len(req.Prompt) + req.MaxTokens
	blocks := make([]kv.BlockID, (total+blockTokens-1)/blockTokens)
	for i := range blocks {
		blocks[i] = kv.BlockID(i)
	}
	pool, err := kv.NewPool(r.Layout(blockTokens), len(blocks))
	if err != nil {
		panic(err)
	}
	sampler, err := sample.New(req.Sampling, r.Vocab(), req.Prompt)
	if err != nil {
		panic(err)
	}
	var scratch sample.Scratch
	hidden, logits := make([]float32, r.Dim()), make([]float32, r.Vocab())
	stops := slices.Clone(req.StopIDs)
	if !req.IgnoreEOS {
		stops = append(stops, req.EOS...)
	}
	var out []int32
	span := batch.Span{Tokens: req.Prompt, Blocks: blocks, Last: true}
	for len(out) < req.MaxTokens {
		r.Forward(pool, []batch.Span{span}, hidden, nil)
		r.Logits(hidden, 1, logits)
		var suppress []int32
		if len(out) < req.MinTokens {
			suppress = stops
		}
		c, err := sampler.Sample(logits, suppress, &scratch)
		if err != nil {
			panic(err)
		}
		out = append(out, c.Token)
		if slices.Contains(stops, c.Token) {
			break
		}
		span.Start += len(span.Tokens)
		span.Tokens = out[len(out)-1:]
	}
	return out
}
