// Command cost-aware sends each request to the cheapest GPU that is quick enough for
// it: dear ones keep free for the prompts that need them. Where none is quick enough,
// the quickest serves.
package main

import ym "github.com/yardmaster/yardmaster/plugins-sdk/go"

func score(r *ym.RouterRequest, w *table, p *params) bool {
	slo := float32(p.SloMs)
	if r.SLOFirst > 0 { // false if none is wanted
		slo = r.SLOFirst
	}
	t := terms{
		prompt: float32(r.Prompt), millisWithin: 1000 / slo, margin: float32(p.Margin),
		fast: 1 / float32(p.FastTokensPerSecond), dear: float32(p.PriceFast), cheap: float32(p.PriceSlow),
	}
	t.score(w.Score, w.QueuedTokens, w.HitTokens, w.PrefillSecondsPerToken, w.N)
	return true
}

// terms are what is the same for all workers.
type terms struct{ prompt, millisWithin, margin, fast, dear, cheap float32 }

// late is above any price.
const late = 10_000

// score is the price and, below one, how much of the time the prediction takes, so
// that among equals the less loaded wins; beyond the margin that part alone counts. A
// worker that has not been measured is out.
//
//go:noinline
func (t *terms) score(score, queued, hit, seconds *ym.F32, n int) {
	for i := range min(n, ym.Rows) {
		part := (queued[i] + (t.prompt - hit[i])) * seconds[i] * t.millisWithin
		price := t.cheap
		if seconds[i] <= t.fast {
			price = t.dear
		}
		if part > t.margin {
			price = late
		}
		score[i] = price + part
	}
}
