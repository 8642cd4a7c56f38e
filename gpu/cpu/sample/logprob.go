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

// exp is e^x for x in [-80, 0] to about 2 units in the last place, several
// times as fast as math.Exp. It is the usual reduction x = n ln 2 + r,
// |r| <= ln 2 / 2, and a polynomial in r (Cephes expf's coefficients). The
// conversions keep the compiler from fusing operations on some machines only: a
// seed draws the same tokens on all.
func exp(x float32) float32 {
	if x < -80 {
		return 0
	}
	const (
		log2e = 1.44269504088896341
		ln2Hi = 0.693359375
		ln2Lo = -2.12194440e-4
	)
	n := float32(int32(float32(x*log2e) - 0.5)) // rounds to nearest: x is not positive
	r := float32(x - float32(n*ln2Hi))
	r = float32(r - float32(n*ln2Lo))
	y := float32(1.9875691500e-4)
	y = float32(y*r) + 1.3981999507e-3
	y = float32(y*r) + 8.3334519073e-3
	y = float32(y*r) + 4.1665795894e-2
	y = float32(y*r) + 1.6666665459e-1
	y = float32(y*r) + 5.0000001201e-1
	y = float32(float32(y*r)*r) + r
	y = float32(y) + 1
	return y * math.Float32frombits(uint32(int32(n)+127)<<23)
}
