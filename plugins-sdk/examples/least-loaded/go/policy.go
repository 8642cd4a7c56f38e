// Command go is the policy least-loaded: it routes to the worker with the shortest wait: what it still has to
// compute, at its measured speed, and something for each request that it serves.
package main

import ym "github.com/yardmaster/yardmaster/plugins-sdk/go"

func score(_ *ym.RouterRequest, w *table, p *params) bool {
	wait(w.Score, w.QueuedTokens, w.PrefillSecondsPerToken, w.Requests, w.N, float32(p.TokenSeconds), float32(p.RequestSeconds))
	return true
}

//go:noinline
func wait(score, queued, speed, requests *ym.F32, n int, usual, each float32) {
	for i := range min(n, ym.Rows) {
		// Neither unknown (NaN) nor the inverse of a rate of 0 is a speed.
		seconds := speed[i]
		if !(seconds > 0 && seconds < 1) {
			seconds = usual
		}
		score[i] = queued[i]*seconds + requests[i]*each
	}
}
