package model

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const modelFile = "SmolLM2-135M-Instruct.Q4_1.gguf"

// modelPath finds the real model, or skips the test.
func modelPath(t testing.TB) string {
	t.Helper()
	path := os.Getenv("YARDMASTER_TEST_MODEL")
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip("no cache folder to look for the model in:", err)
		}
		path = filepath.Join(cache, "yardmaster", "models", modelFile)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no model: %v (make model fetches it; YARDMASTER_TEST_MODEL names another place)", err)
	}
	return path
}

func open(t testing.TB, path string, opt Options) *Model {
	t.Helper()
	m, err := Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// sequence is a test's stand-in for a request: tokens and a block table.
type sequence struct {
	tokens []int32
	done   int // tokens whose KV is in the pool
	blocks []kv.BlockID
}

// bench drives a model without the engine: blocks are handed out in a scattered
// order and never taken back.
type rig struct {
	m      *Model
	pool   *kv.Pool
	free   []kv.BlockID
	hidden []float32
	logits []float32
}

func newRig(t testing.TB, m *Model, blockTokens, blocks int) *rig {
	t.Helper()
	pool, err := kv.NewPool(m.Layout(blockTokens), blocks)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{m: m, pool: pool}
	for i := range blocks {
		r.free = append(r.free, kv.BlockID((i*7+3)%blocks)) // blocks is no multiple of 7
	}
	return r
}

// span takes the next n tokens of q for a step.
func (r *rig) span(q *sequence, n int, last bool) batch.Span {
	size := r.pool.Layout.BlockTokens
	for len(q.blocks)*size < q.done+n {
		q.blocks = append(q.blocks, r.free[0])
		r.free = r.free[1:]
	}
	sp := batch.Span{Tokens: q.tokens[q.done : q.done+n], Start: q.done, Blocks: q.blocks, Last: last}
	q.done += n
	return sp
}

// step computes spans and returns the logits of those with Last set.
func (r *rig) step(spans ...batch.Span) [][]float32 {
	n := 0
	for _, sp := range spans {
		if sp.Last {
			n++
		}
	}
	dim, vocab := r.m.Dim(), r.m.Vocab()
	r.hidden, r.logits = grow(r.hidden, n*dim), grow(r.logits, n*vocab)
	r.m.Forward(r.pool, spans, r.hidden, nil)
	r.m.Logits(r.hidden, n, r.logits)
	out := make([][]float32, n)
	for i := range out {
		out[i] = r.logits[i*vocab : (i+1)*vocab]
	}
	return out
}

func argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}
