package batch

import (
	"errors"
	"fmt"

	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

// Request is one sequence to compute. The engine does not modify it; neither
// may the caller until its stream has ended.
type Request struct {
	ID     string
	Prompt []int32 // token ids, at least one
	// Given is how many tokens at the end of Prompt were generated elsewhere before:
	// to the sampler they are output. Usage counts them as prompt, and MaxTokens
	// and MinTokens do not count them.
	Given int
	// Sampling says how tokens are chosen.
	Sampling sample.Params
	// MaxTokens bounds the output; 0 means what the context leaves.
	MaxTokens int
	// MinTokens is how many tokens come before any that stops.
	MinTokens int
	// EOS are the model's end tokens. With IgnoreEOS they do not stop.
	EOS       []int32
	IgnoreEOS bool
	// StopIDs are further tokens that stop.
	StopIDs []int32
	// Salt keeps the cached prefixes of requests apart: only equal salts share.
	Salt string
	// Export makes this a prefill leg: the prompt is computed and exported, no
	// token is generated. MaxTokens and Sampling mean nothing.
	Export Exporter
	// Import makes this a decode leg: the prompt's KV is imported.
	Import Importer
}

// Errors of Submit.
var (
	// ErrTooLong means that prompt and output exceed the context. The error is a
	// *TooLongError.
	ErrTooLong = errors.New("request exceeds the context")
	// ErrBusy means that the queue is full; a later try may succeed.
	ErrBusy = errors.New("engine queue is full")
	// ErrClosed means that the engine takes no more requests, or has ended one.
	ErrClosed = errors.New("engine is closed")
	// ErrRequest means that a request makes no sense as written.
	ErrRequest = errors.New("bad request")
)

// TooLongError is ErrTooLong with its numbers, all in tokens.
type TooLongError struct {
	Prompt, Output int // what the request needs; Output is 1 if it asked for no bound
	Limit          int // what the context holds
}

// Error names all three numbers.
func (e *TooLongError) Error() string {
	return fmt.Sprintf("prompt of %d tokens and output of %d exceed the context of %d tokens", e.Prompt, e.Output, e.Limit)
}

// Is makes errors.Is(err, ErrTooLong) hold.
func (e *TooLongError) Is(target error) bool { return target == ErrTooLong }

// check refuses a request that can never be served.
func (e *Engine) check(req *Request) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrRequest}, args...)...)
	}
	switch {
	case len(req.Prompt) == 0:
		return bad("empty prompt")
	case req.Given < 0 || req.Given >= len(req.Prompt):
		return bad("%d of %d prompt tokens are generated", req.Given, len(req.Prompt))
	case req.MaxTokens < 0 || req.MinTokens < 0:
		return bad("max_tokens %d or min_tokens %d is negative", req.MaxTokens, req.MinTokens)
	case req.MaxTokens > 0 && req.MinTokens > req.MaxTokens:
		return bad("min_tokens %d exceeds max_tokens %d", req.MinTokens, req.MaxTokens)
	case req.Export != nil && req.Import != nil:
		return bad("both an export and an import")
	}
	for i, t := range req.Prompt {
		if t < 0 || int(t) >= e.vocab {
			return bad("token %d at %d is not in the vocabulary of %d", t, i, e.vocab)
		}
	}
	output := max(req.MaxTokens, 1)
	if req.Export != nil {
		output = 0
	}
	if len(req.Prompt) > e.opt.MaxContext-output {
		return &TooLongError{Prompt: len(req.Prompt), Output: output, Limit: e.opt.MaxContext}
	}
	return nil
}
