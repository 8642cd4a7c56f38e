package sample

import "math"

// distribution is what normalises logits to log-probabilities.
type distribution struct {
	top    float32 // the largest logit
	logSum float64 // ln of the sum of exp(logit - top)
}

// measure reads the distribution of logits. NaN has no share in it.
func measure(logits []float32) distribution {
	best := argmax(logits)
	if best < 0 {
		return distribution{}
	}
	d := distribution{top: logits[best]}
	sum := 0.0
	for _, l := range logits {
		if x := l - d.top; x >= -80 { // below, e^x is lost in a float32 anyway
			sum += float64(exp(x))
		}
	}
	d.logSum = math.Log(sum)
	return d
}

// logProb is ln of the probability of a token with this logit, -Inf for NaN.
func (d distribution) logProb(logit float32) float32 {
	if logit != logit {
		return float32(math.Inf(-1))
	}
	if logit == d.top {
		return float32(-d.logSum) // also when both are infinite
	}
	return float32(float64(logit) - float64(d.top) - d.logSum)
}

// likeliest lists the n likeliest tokens.
func (d distribution) likeliest(logits []float32, n int) []TokenLogProb {
	n = min(n, len(logits))
	if n == 0 {
		return nil
	}
	out := make([]TokenLogProb, 0, n)
	floor := float32(math.Inf(-1))
	for i, l := range logits {
		if !(l > floor) {
			continue
		}
		// Insert after all that are at least as large: equals stay by id.
		at := len(out)
		for at > 0 && out[at-1].LogProb < l {
			at--
		}
		if len(out) < n {
			out = append(out, TokenLogProb{})
		}
		copy(out[at+1:], out[at:])
		out[at] = TokenLogProb{int32(i), l}
		if len(out) == n {
			floor = out[n-1].LogProb
		}
	}
	for i := range out {
		out[i].LogProb = d.logProb(out[i].LogProb)
	}
	return out
}
