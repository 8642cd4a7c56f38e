package sample

import (
	"cmp"
	"math"
	"slices"
)

// Scratch is memory that sampling reuses. The zero value is ready.
type Scratch struct {
	raw    []float32 // logits before they were changed
	weight []float32 // exp((logit - max) / temperature), per token
	mass   [buckets]float64
	count  [buckets]int32
	order  []candidate
}

type candidate struct {
	token  int32
	weight float32
}

const (
	// buckets divide the distances from the largest logit, so that top-k and top-p
	// sort one bucket and not the vocabulary.
	buckets = 512
	// reach is the largest distance kept, in units of the temperature: e^-30 times
	// a vocabulary of a million is still less than 10^-7 of the likeliest token.
	reach = 30
)

func (s *Scratch) keep(logits []float32) { s.raw = append(s.raw[:0], logits...) }

// draw chooses at random by the parameters, or returns -1 when no token is
// possible.
func (s *Sampler) draw(logits []float32, scratch *Scratch) int32 {
	best := argmax(logits)
	if best < 0 {
		return -1
	}
	top := logits[best]
	if math.IsInf(float64(top), 1) {
		return best // certain, and the distances to it are no numbers
	}
	limit := float32(reach)
	if s.p.MinP > 0 {
		limit = min(limit, float32(-math.Log(float64(s.p.MinP))))
	}
	inverse := 1 / s.p.Temperature
	if s.p.TopK > 0 && s.p.TopK < len(logits) {
		limit = scratch.narrow(logits, top, inverse, limit, s.p.TopK)
	}
	scratch.weigh(logits, top, inverse, limit)
	scratch.cut(s.p.TopK, s.p.TopP)
	return scratch.pick(s.uniform(), best)
}

// narrow returns a limit within which the k largest logits lie and not many
// more, so that few exponentials are computed.
func (s *Scratch) narrow(logits []float32, top, inverse, limit float32, k int) float32 {
	clear(s.count[:])
	scale := buckets / limit
	for _, l := range logits {
		if d := (top - l) * inverse; d < limit {
			s.count[min(uint32(d*scale), buckets-1)]++
		}
	}
	for b, n := range s.count {
		if k -= int(n); k <= 0 {
			return min(limit, float32(b+2)/scale) // one more, for rounding
		}
	}
	return limit
}

// weigh computes the weight of each token within limit of the largest logit and
// fills the buckets. The rest, and NaN, weigh nothing.
func (s *Scratch) weigh(logits []float32, top, inverse, limit float32) {
	s.weight = slices.Grow(s.weight[:0], len(logits))[:len(logits)]
	clear(s.mass[:])
	clear(s.count[:])
	for i, l := range logits {
		d := (top - l) * inverse
		if d != d && l == top {
			d = 0 // 0 times an infinite 1/temperature
		}
		if !(d <= limit) { // NaN included
			s.weight[i] = 0
			continue
		}
		w := exp(-d)
		s.weight[i] = w
		b := bucketOf(w)
		s.mass[b] += float64(w)
		s.count[b]++
	}
}

// bucketOf orders weights in (0, 1] into buckets, the largest weights first. It
// is a function of the weight alone, so that equal weights share a bucket: the
// bits of a positive float rise with its value, and their upper ones hold the
// exponent.
func bucketOf(w float32) int {
	const one = 0x3f800000 // bits of 1.0
	// 8 steps per factor of two: 30/ln 2 = 43.3 factors fill 347 buckets.
	return min(int(one-math.Float32bits(w))>>20, buckets-1)
}

// cut sets to zero the weights beyond the k likeliest tokens and then beyond
// the probability p of those.
func (s *Scratch) cut(k int, p float32) {
	cutK, cutP := k > 0, p > 0 && p < 1
	if !cutK && !cutP {
		return
	}
	if cutK && s.total() > k {
		s.cutCount(k)
	}
	if cutP {
		s.cutMass(float64(p))
	}
}

func (s *Scratch) total() int {
	n := 0
	for _, c := range s.count {
		n += int(c)
	}
	return n
}

// whole is the sum of all weights.
func (s *Scratch) whole() (sum float64) {
	for _, m := range s.mass {
		sum += m
	}
	return sum
}

// cutCount keeps the k largest weights.
func (s *Scratch) cutCount(k int) {
	b := 0
	for ; int(s.count[b]) < k; b++ {
		k -= int(s.count[b])
	}
	s.gather(b)
	s.keepFirst(b, k)
}

// cutMass keeps the largest weights that together first reach p of the whole.
func (s *Scratch) cutMass(p float64) {
	left := p * s.whole()
	b := 0
	for ; b < buckets-1 && s.mass[b] < left; b++ {
		left -= s.mass[b]
	}
	s.gather(b)
	n := 0
	for n < len(s.order) && left > 0 {
		left -= float64(s.order[n].weight)
		n++
	}
	s.keepFirst(b, n)
}

// gather sorts bucket b into order, the largest weight first, equals by token
// id, and drops all later buckets.
func (s *Scratch) gather(b int) {
	s.order = s.order[:0]
	for i, w := range s.weight {
		if w == 0 {
			continue
		}
		switch of := bucketOf(w); {
		case of == b:
			s.order = append(s.order, candidate{int32(i), w})
		case of > b:
			s.weight[i] = 0
		}
	}
	slices.SortFunc(s.order, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(y.weight, x.weight), cmp.Compare(x.token, y.token))
	})
	clear(s.mass[b+1:])
	clear(s.count[b+1:])
}

// keepFirst drops all but the first n of bucket b, as sorted by gather.
func (s *Scratch) keepFirst(b, n int) {
	s.mass[b], s.count[b] = 0, int32(n)
	for i, c := range s.order {
		if i < n {
			s.mass[b] += float64(c.weight)
		} else {
			s.weight[c.token] = 0
		}
	}
}

// pick walks the weights, in order of token id, up to the share u of their sum.
func (s *Scratch) pick(u float64, best int32) int32 {
	left := u * s.whole()
	for i, w := range s.weight {
		if w == 0 {
			continue
		}
		if left -= float64(w); left < 0 {
			return int32(i)
		}
	}
	return best // rounding left nothing
}
