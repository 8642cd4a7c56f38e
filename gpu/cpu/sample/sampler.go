package sample

import (
	"errors"
	"math"

	"github.com/yardmaster/yardmaster/core/mix"
)

// ErrNoToken means that no token is possible: every logit is -Inf or not a
// number.
var ErrNoToken = errors.New("no token has a finite logit")

// Chosen is one step's outcome.
type Chosen struct {
	Token int32
	// LogProb is the natural logarithm of the token's probability, 0 when
	// log-probabilities are not asked for.
	LogProb float32
	// Top is the likeliest tokens, likeliest first, equals by lower id. The
	// caller owns it.
	Top []TokenLogProb
}

// TokenLogProb is a token and the natural logarithm of its probability.
type TokenLogProb struct {
	Token   int32
	LogProb float32
}

// Sampler chooses the tokens of one request. One goroutine at a time may use it.
type Sampler struct {
	p      Params
	bias   []TokenLogProb // LogitBias in a fixed order
	draws  uint64         // tokens chosen so far
	seen   history
	greedy bool // the likeliest logit and nothing else
}

// New makes the sampler of a request with this prompt. It keeps neither slice
// nor map. Errors wrap ErrParams.
func New(p Params, vocab int, prompt []int32) (*Sampler, error) {
	if err := p.Validate(vocab); err != nil {
		return nil, err
	}
	s := &Sampler{p: p}
	for id, b := range p.LogitBias {
		s.bias = append(s.bias, TokenLogProb{id, b})
	}
	s.p.LogitBias = nil
	s.seen.init(&s.p, prompt)
	s.greedy = p.Temperature == 0 && len(s.bias) == 0 && !s.seen.on && !p.LogProbs
	return s, nil
}

// Resume takes tokens as chosen by this sampler already, so that what follows is
// what would have followed them.
func (s *Sampler) Resume(given []int32) {
	for _, id := range given {
		s.draws++
		s.seen.add(id)
	}
}

// Sample chooses a token other than those in suppress. It modifies logits
// [vocab]. scratch may be shared by all samplers that one goroutine uses. The
// error is ErrNoToken.
func (s *Sampler) Sample(logits []float32, suppress []int32, scratch *Scratch) (Chosen, error) {
	if s.greedy && len(suppress) == 0 {
		return s.done(Chosen{Token: argmax(logits)})
	}
	var out Chosen
	var raw distribution
	if s.p.LogProbs {
		raw = measure(logits)
		out.Top = raw.likeliest(logits, s.p.TopLogProbs)
		scratch.keep(logits) // the chosen token's own logit, before it is changed
	}
	for _, b := range s.bias {
		logits[b.Token] += b.LogProb
	}
	minusInf := float32(math.Inf(-1))
	for _, id := range suppress {
		if id >= 0 && int(id) < len(logits) {
			logits[id] = minusInf
		}
	}
	s.seen.penalise(logits)
	if s.p.Temperature == 0 {
		out.Token = argmax(logits)
	} else {
		out.Token = s.draw(logits, scratch)
	}
	if s.p.LogProbs && out.Token >= 0 {
		out.LogProb = raw.logProb(scratch.raw[out.Token])
	}
	return s.done(out)
}

func (s *Sampler) done(c Chosen) (Chosen, error) {
	if c.Token < 0 {
		return Chosen{}, ErrNoToken
	}
	s.draws++
	s.seen.add(c.Token)
	return c, nil
}

// uniform is the request's next random number in [0, 1): SplitMix64's output
// function (Steele, Lea, Flood: "Fast splittable pseudorandom number
// generators", 2014) of the seed and the number of tokens chosen.
func (s *Sampler) uniform() float64 {
	z := mix.Bits(s.p.Seed) + (s.draws+1)*mix.Gamma
	return float64(mix.Bits(z)>>11) * 0x1p-53
}

// argmax is the index of the largest logit, the first of equals, or -1 when
// none is above -Inf. NaN is never the largest.
func argmax(logits []float32) int32 {
	best, at := float32(math.Inf(-1)), int32(-1)
	for i, l := range logits {
		if l > best {
			best, at = l, int32(i)
		}
	}
	return at
}
