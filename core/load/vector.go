package load

import (
	"errors"
	"fmt"
)

// MaxWorkers is the most incarnations that a vector names, and that a merger
// adds up. It is the bound of the fleet.
const MaxWorkers = 1 << 14

const (
	// maxRequests and maxTokens bound a gateway's word on one worker: far beyond
	// what can be true, and so low that no sum of all gateways overflows.
	maxRequests = 1 << 20
	maxTokens   = 1 << 40
)

// ErrVector means that a vector says what no gateway can mean.
var ErrVector = errors.New("malformed load vector")

// Counts is what gateways have on one incarnation.
type Counts struct {
	Prefill, Decode uint32 // requests in flight by phase
	Prompt, Context uint64 // tokens, as [Slot.QueuedPrompt] and [Slot.Context]
}

func (c Counts) plus(d Counts) Counts {
	return Counts{c.Prefill + d.Prefill, c.Decode + d.Decode, c.Prompt + d.Prompt, c.Context + d.Context}
}

func (c Counts) minus(d Counts) Counts {
	return Counts{c.Prefill - d.Prefill, c.Decode - d.Decode, c.Prompt - d.Prompt, c.Context - d.Context}
}

// Vector is absolute counts by incarnation, in columns of one length. An epoch is
// the Raft index of a registration and so names one incarnation of one worker.
// The zero Vector is empty; its memory is used again by whoever fills it.
type Vector struct {
	// Whole says that incarnations which are not named have nothing. Else they
	// are as they were.
	Whole   bool
	Epoch   []uint64
	Prefill []uint32 // requests
	Decode  []uint32 // requests
	Prompt  []uint64 // tokens
	Context []uint64 // tokens
}

// Len is the number of incarnations named.
func (v *Vector) Len() int { return len(v.Epoch) }

// Reset empties the vector and keeps its memory.
func (v *Vector) Reset() {
	v.Whole = false
	v.Epoch = v.Epoch[:0]
	v.Prefill, v.Decode = v.Prefill[:0], v.Decode[:0]
	v.Prompt, v.Context = v.Prompt[:0], v.Context[:0]
}

// Add names one incarnation more.
func (v *Vector) Add(epoch uint64, c Counts) {
	v.Epoch = append(v.Epoch, epoch)
	v.Prefill, v.Decode = append(v.Prefill, c.Prefill), append(v.Decode, c.Decode)
	v.Prompt, v.Context = append(v.Prompt, c.Prompt), append(v.Context, c.Context)
}

func (v *Vector) copy(from *Vector) {
	v.Whole = from.Whole
	v.Epoch = append(v.Epoch[:0], from.Epoch...)
	v.Prefill, v.Decode = append(v.Prefill[:0], from.Prefill...), append(v.Decode[:0], from.Decode...)
	v.Prompt, v.Context = append(v.Prompt[:0], from.Prompt...), append(v.Context[:0], from.Context...)
}

// At is what the vector says of Epoch[i].
func (v *Vector) At(i int) Counts {
	return Counts{v.Prefill[i], v.Decode[i], v.Prompt[i], v.Context[i]}
}

// Validate reports what makes a received vector unusable, as ErrVector. gateways
// is how many may have been added up in it.
func (v *Vector) Validate(gateways int) error {
	n := len(v.Epoch)
	switch {
	case n > MaxWorkers:
		return fmt.Errorf("%w: %d incarnations, at most %d", ErrVector, n, MaxWorkers)
	case len(v.Prefill) != n || len(v.Decode) != n || len(v.Prompt) != n || len(v.Context) != n:
		return fmt.Errorf("%w: columns of %d epochs have %d, %d, %d and %d numbers",
			ErrVector, n, len(v.Prefill), len(v.Decode), len(v.Prompt), len(v.Context))
	}
	most := uint64(max(gateways, 1))
	for i, epoch := range v.Epoch {
		c := v.At(i)
		if epoch == 0 {
			return fmt.Errorf("%w: epoch 0 is no incarnation", ErrVector)
		}
		if uint64(max(c.Prefill, c.Decode)) > most*maxRequests || max(c.Prompt, c.Context) > most*maxTokens {
			return fmt.Errorf("%w: epoch %d has %+v", ErrVector, epoch, c)
		}
	}
	return nil
}
