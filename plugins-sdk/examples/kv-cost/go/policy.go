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

// of scores four rows a turn, which is the quick way through a table; see the SDK's
// documentation. Those behind row n-1 are nobody's.
//
//go:noinline
func (c costs) of(score, queued, hit, active, requests *ym.F32, n int) {
	_, _, _, _, _ = *score, *queued, *hit, *active, *requests
	for i := 0; i < n && i < ym.Rows-3; i += 4 {
		score[i] = c.row(queued[i], hit[i], active[i], requests[i])
		score[i+1] = c.row(queued[i+1], hit[i+1], active[i+1], requests[i+1])
		score[i+2] = c.row(queued[i+2], hit[i+2], active[i+2], requests[i+2])
		score[i+3] = c.row(queued[i+3], hit[i+3], active[i+3], requests[i+3])
	}
}

func (c costs) row(queued, hit, active, requests float32) float32 {
	missing := c.prompt - hit
	return c.scale*(ym.NotNegative(queued+missing)*c.blocks) + (active + missing*c.blocks) + c.each*requests
}
