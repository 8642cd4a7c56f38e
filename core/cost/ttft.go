package cost

import (
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

// PrefillTime estimates a worker's delay to the first token: queued work plus
// the prompt's uncached part, at its measured prefill rate (tokens/s).
//
// A hit longer than the prompt is a whole hit. Without a measured rate ok is
// false: the worker is unknown, not idle. Source: linear prefill cost model,
// core/route/DESIGN.md.
func PrefillTime(queued, prompt, prefixHit unit.Tokens, tokensPerSecond float64) (d time.Duration, ok bool) {
	if !(tokensPerSecond > 0) {
		return 0, false
	}
	uncached := max(prompt-prefixHit, 0)
	return seconds(float64(max(queued, 0)+uncached) / tokensPerSecond), true
}

// Link is what is known of the way KV blocks take between two workers.
type Link struct {
	Setup          time.Duration // t0: until the first byte moves
	BytesPerSecond float64       // B: nominal bandwidth; 0 is unknown
	Efficiency     float64       // η in (0, 1]: the share of B that a transfer gets
}

// TransferTime predicts moving size bytes over l: t0 + S/(η·B). ok is false
// when the link's bandwidth or the size is unknown (not positive).
func TransferTime(l Link, size unit.Bytes) (d time.Duration, ok bool) {
	if !(l.BytesPerSecond > 0) || !(l.Efficiency > 0) || size <= 0 {
		return 0, false
	}
	return l.Setup + seconds(float64(size)/(l.BytesPerSecond*l.Efficiency)), true
}

// Exposed is the part of a transfer that the first token waits for when layers
// move while later ones are still computed: what does not fit behind the
// prefill, and at least the set-up.
func Exposed(transfer, prefill time.Duration, l Link) time.Duration {
	return max(transfer-prefill, l.Setup)
}

// seconds is a Duration that a hostile rate cannot overflow.
func seconds(s float64) time.Duration { return milliseconds(s * 1000) }
