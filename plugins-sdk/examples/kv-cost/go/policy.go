// Command go is the policy kv-cost: it routes by Dynamo's cost: the blocks in front of the first token,
// times a scale, and the blocks that the worker would hold with this request. Blocks
// that are in the worker's cache need no computing and are held already.
package main

import ym "github.com/yardmaster/yardmaster/plugins-sdk/go"

func score(r *ym.RouterRequest, w *table, p *params) bool {
	c := costs{scale: float32(p.Scale), each: float32(p.RequestBlocks), prompt: float32(r.Prompt), blocks: 1.0 / 16}
	if r.BlockTokens > 0 {
		c.blocks = 1 / float32(r.BlockTokens)
	}
	c.of(w.Score, w.QueuedTokens, w.HitTokens, w.ActiveBlocks, w.Requests, w.N)
	return true
}

// costs are what is the same for all workers.
type costs struct{ scale, each, prompt, blocks float32 }

//go:noinline
func (c *costs) of(score, queued, hit, active, requests *ym.F32, n int) {
	for i := range min(n, ym.Rows) {
		missing := c.prompt - hit[i]
		ahead := queued[i] + missing
		if ahead < 0 {
			ahead = 0
		}
		score[i] = c.scale*(ahead*c.blocks) + (active[i] + missing*c.blocks) + c.each*requests[i]
	}
}
