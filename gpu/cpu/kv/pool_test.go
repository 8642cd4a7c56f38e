package kv

import (
	"math"
	"strings"
	"testing"
)

// However many blocks are asked for, a pool that cannot be is an error that says
// what would be.
func TestPoolLargerThanMemoryIsAnError(t *testing.T) {
	toy := Layout{Layers: 1, KVHeads: 1, HeadDim: 2, BlockTokens: 1, DType: F16}
	model := Layout{Layers: 30, KVHeads: 3, HeadDim: 64, BlockTokens: 16, DType: F16}
	for _, l := range []Layout{toy, model} {
		for _, blocks := range []int{math.MaxInt, math.MaxInt / l.BlockBytes(), 1 << 47 / l.BlockBytes(), 1 << 44, 1 << 40} {
			_, err := NewPool(l, blocks)
			if err == nil || !strings.Contains(err.Error(), "are available: at most ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%d blocks of %d bytes: %v", blocks, l.BlockBytes(), err)
			}
		}
		for _, blocks := range []int{0, -1, math.MinInt} {
			if _, err := NewPool(l, blocks); err == nil {
				t.Errorf("%d blocks: no error", blocks)
			}
		}
	}
	if p, err := NewPool(model, 8); err != nil || len(p.Page(29, 7)) != model.PageBytes() {
		t.Error(err)
	}
}
