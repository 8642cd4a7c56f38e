package batch_test

import (
	"testing"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// idle is a runner that computes nothing: what remains is the scheduler.
type idle struct{}

func (idle) Layout(blockTokens int) kv.Layout {
	return kv.Layout{Layers: 1, KVHeads: 1, HeadDim: 1, BlockTokens: blockTokens}
}
func (idle) Vocab() int                                           { return 2 }
func (idle) Dim() int                                             { return 1 }
func (idle) Forward(*kv.Pool, []batch.Span, []float32, func(int)) {}
func (idle) Logits(_ []float32, _ int, logits []float32)          { clear(logits) }

// BenchmarkToken is the scheduler's own time for each generated token, with 8
// streams beside each other.
func BenchmarkToken(b *testing.B) {
	e := start(b, idle{}, batch.Options{KVBlocks: 1 << 20, StreamBuffer: 1 << 10})
	b.ReportAllocs()
	b.ResetTimer()
	const streams = 8
	for done := 0; done < b.N; done += streams * 1000 {
		var all []*batch.Stream
		for range streams {
			all = append(all, submit(b, e, &batch.Request{Prompt: []int32{1}, MaxTokens: 1000}))
		}
		for _, s := range all {
			drain(b, s)
		}
	}
}

// BenchmarkRequest is the scheduler's own time for a request of one token.
func BenchmarkRequest(b *testing.B) {
	e := start(b, idle{}, batch.Options{KVBlocks: 1 << 10})
	req := &batch.Request{Prompt: make([]int32, 512), MaxTokens: 1}
	b.ReportAllocs()
	for b.Loop() {
		drain(b, submit(b, e, req))
	}
}
