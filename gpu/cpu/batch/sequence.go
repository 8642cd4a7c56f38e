package batch

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

// sequence is a request inside the engine. The loop owns it, but for the
// atomic fields, by which others tell the loop something and wake it.
type sequence struct {
	req    *Request
	stream *Stream
	order  uint64 // of arrival
	stop   func() bool

	tokens    []int32 // prompt and output
	maxTokens int     // of output
	stops     []int32 // tokens that end it
	sampler   *sample.Sampler

	blocks   []kv.BlockID
	computed int // leading tokens whose KV is in blocks
	indexed  int // leading blocks given to the prefix cache
	admitted bool

	// hidden is the last prompt token's hidden state, brought by an import and not
	// yet sampled from.
	hidden  []float32
	imports *importing

	finish Finish // decided, and waiting for the exporter to release the blocks
	err    error

	aborted  atomic.Pointer[error] // why it must end
	released atomic.Bool           // the exporter no longer reads the blocks
}

// importing is the state of a decode leg's transfer.
type importing struct {
	from     int // first token position to be moved
	deadline time.Time
	result   atomic.Pointer[importResult]
	fencing  bool        // Cancel is being called
	fenced   atomic.Bool // Cancel has returned
}

type importResult struct {
	hidden []float32
	err    error
}

func (s *sequence) prompt() int { return len(s.req.Prompt) }

func (s *sequence) generated() int { return len(s.tokens) - s.prompt() }

// left is the tokens to compute before the next one can be sampled.
func (s *sequence) left() int { return len(s.tokens) - s.computed }

// decoding reports whether the next step is one generated token.
func (s *sequence) decoding() bool { return s.left() == 1 && s.generated() > 0 }

// abort asks the loop to end the sequence. The first reason stays.
func (s *sequence) abort(reason error) { s.aborted.CompareAndSwap(nil, &reason) }

// reason is why the sequence must end, or nil.
func (s *sequence) reason() error {
	if p := s.aborted.Load(); p != nil {
		return *p
	}
	return nil
}

// suppressed lists the tokens that may not come yet.
func (s *sequence) suppressed() []int32 {
	if s.generated() < s.req.MinTokens {
		return s.stops
	}
	return nil
}

// insert puts s into list, which is in order of arrival.
func insert(list []*sequence, s *sequence) []*sequence {
	at, _ := slices.BinarySearchFunc(list, s.order, func(o *sequence, order uint64) int {
		if o.order < order {
			return -1
		}
		return 1
	})
	return slices.Insert(list, at, s)
}

// sift keeps the sequences for which keep is true.
func sift(list []*sequence, keep func(*sequence) bool) []*sequence {
	return slices.DeleteFunc(list, func(s *sequence) bool { return !keep(s) })
}
