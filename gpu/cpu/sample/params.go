package sample

import (
	"errors"
	"fmt"
	"math"
)

// MaxTop is the largest TopLogProbs.
const MaxTop = 128

// ErrParams means that sampling parameters are out of range.
var ErrParams = errors.New("bad sampling parameters")

// Params says how to choose. The zero value chooses the likeliest token.
type Params struct {
	// Temperature divides the logits; 0 chooses the likeliest token.
	Temperature float32
	// TopK keeps the k likeliest tokens, equals by lower id; 0 keeps all.
	TopK int
	// TopP keeps the likeliest tokens that together reach this probability; 0 and
	// 1 keep all.
	TopP float32
	// MinP drops tokens less likely than MinP times the likeliest.
	MinP float32
	// RepetitionPenalty divides the positive and multiplies the negative logits of
	// all tokens seen, the prompt's too; 0 and 1 do nothing.
	RepetitionPenalty float32
	// PresencePenalty is taken off the logits of tokens generated before.
	PresencePenalty float32
	// FrequencyPenalty is taken off once for each time a token was generated.
	FrequencyPenalty float32
	// LogitBias is added to the logits of the given tokens. Not modified.
	LogitBias map[int32]float32
	// Seed fixes the random numbers. Callers pick one at random when the client
	// gave none.
	Seed uint64
	// LogProbs asks for the log-probability of each chosen token.
	LogProbs bool
	// TopLogProbs asks, with LogProbs, for the likeliest tokens too.
	TopLogProbs int
}

// Narrow is v in the precision of Params. A value above zero stays above zero: a
// zero turns most parameters off, which is the opposite of a very small one.
func Narrow(v float64) float32 {
	f := float32(v)
	if f == 0 && v > 0 {
		return math.SmallestNonzeroFloat32
	}
	return f
}

// Validate reports every fault at once, for a model of vocab tokens. Errors
// wrap ErrParams.
func (p *Params) Validate(vocab int) error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrParams}, args...)...))
		}
	}
	// The conditions are written so that NaN is a fault.
	in := func(v, lo, hi float32) bool { return v >= lo && v <= hi }
	fault(!in(p.Temperature, 0, math.MaxFloat32), "temperature %v is negative or not a number", p.Temperature)
	fault(p.TopK < 0, "top_k %d is negative", p.TopK)
	fault(!in(p.TopP, 0, 1), "top_p %v is not between 0 and 1", p.TopP)
	fault(!in(p.MinP, 0, 1), "min_p %v is not between 0 and 1", p.MinP)
	fault(!in(p.RepetitionPenalty, 0, math.MaxFloat32), "repetition_penalty %v is negative or not a number", p.RepetitionPenalty)
	fault(!in(p.PresencePenalty, -2, 2), "presence_penalty %v is not between -2 and 2", p.PresencePenalty)
	fault(!in(p.FrequencyPenalty, -2, 2), "frequency_penalty %v is not between -2 and 2", p.FrequencyPenalty)
	fault(p.TopLogProbs < 0 || p.TopLogProbs > MaxTop, "top_logprobs %d is not between 0 and %d", p.TopLogProbs, MaxTop)
	fault(len(p.LogitBias) > vocab, "logit_bias has %d entries, the vocabulary %d", len(p.LogitBias), vocab)
	for id, b := range p.LogitBias {
		if id < 0 || int(id) >= vocab || !in(b, -math.MaxFloat32, math.MaxFloat32) {
			fault(true, "logit_bias of token %d (vocabulary %d) is %v", id, vocab, b)
			break // one example is enough
		}
	}
	return errors.Join(faults...)
}
