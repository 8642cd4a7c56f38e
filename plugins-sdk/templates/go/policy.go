// Command go is my-policy: the worker that has the least to compute before the first
// token.
package main

import ym "github.com/yardmaster/yardmaster/plugins-sdk/go"

func score(r *ym.RouterRequest, w *table, p *params) bool {
	costs(w.Score, w.QueuedTokens, w.HitTokens, w.N, float32(r.Prompt), float32(p.HitWeight))
	return true
}

// costs has the loop for itself, which keeps it cheap; see the SDK's documentation.
//
//go:noinline
func costs(score, queued, hit *ym.F32, n int, prompt, weight float32) {
	for i := range min(n, ym.Rows) {
		score[i] = queued[i] + (prompt - weight*hit[i])
	}
}
