package load

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Key names one incarnation of a worker.
type Key struct {
	ID    fleet.WorkerID
	Epoch fleet.Epoch
}

// Phase is what a worker is doing for a request.
type Phase uint8

// The phases.
const (
	Prefill Phase = iota // computing a prompt
	Decode               // generating, or waiting for moved KV
	phases
)

// String is the phase's name in metrics.
func (p Phase) String() string { return [...]string{"prefill", "decode"}[p] }

// Slot is what this gateway has going on with one incarnation, and what others
// have as far as known. It is safe for concurrent use.
type Slot struct {
	// What a decision reads comes first, in as few cache lines as can be.
	requests [phases]atomic.Int64
	prompt   atomic.Int64  // tokens of prompts not computed yet
	context  atomic.Int64  // tokens of KV that requests in flight added
	assigned atomic.Uint64 // bits of a float64
	heard    heard
	others   others
	seen     seen
	ejected  ejection
	health   health
	version  *atomic.Uint32 // see renew; nil in a slot without a table
	Key      Key
	gauges   [phases]measure.Gauge
	mark     mark
}

// Requests is the number of this gateway's requests in flight in phase p.
func (s *Slot) Requests(p Phase) int { return int(s.requests[p].Load()) }

// InFlight is the number of this gateway's requests in flight in all phases.
func (s *Slot) InFlight() int { return s.Requests(Prefill) + s.Requests(Decode) }

// QueuedPrompt is the uncached prompt tokens that gateways sent and that are not
// known to be computed: this one's as of now, the others' as last told.
func (s *Slot) QueuedPrompt() unit.Tokens {
	return unit.Tokens(s.prompt.Load() + s.others.prompt.Load() + s.guessNow().prompt)
}

// Context is the tokens of KV that gateways' requests in flight have added to
// what the worker held before them: this one's as of now, the others' as last
// told. A prefix that several requests of a gateway share is counted for the one
// that computed it.
func (s *Slot) Context() unit.Tokens {
	return unit.Tokens(s.context.Load() + s.others.context.Load() + s.guessNow().context)
}

// Work is what a request brings to a worker.
type Work struct {
	// Prompt is the tokens to compute: what the worker's cache does not hold.
	Prompt unit.Tokens
	// Context is the tokens of KV that come to be held until the request ends.
	Context unit.Tokens
}

// Reserve counts a request that begins in phase p. The reservation must be
// closed.
func (s *Slot) Reserve(p Phase, w Work) *Reservation {
	r := &Reservation{slot: s, context: int64(max(w.Context, 0))}
	r.state.Store(int64(p))
	r.prompt.Store(int64(max(w.Prompt, 0)))
	s.prompt.Add(r.prompt.Load())
	s.context.Add(r.context)
	s.move(p, 1)
	return r
}

// move changes the requests of a phase. It comes after the change of the tokens,
// so that one mark covers both.
func (s *Slot) move(p Phase, by int64) {
	s.requests[p].Add(by)
	s.gauges[p].Add(float64(by))
	s.changed()
}

// Reservation is one request's share of a slot. It is safe for concurrent use.
type Reservation struct {
	slot    *Slot
	context int64
	state   atomic.Int64 // the Phase, or closed
	prompt  atomic.Int64 // tokens still counted
}

const closed = -1

// FirstToken says that the prompt is computed: its tokens no longer queue, and
// the request counts as decoding.
func (r *Reservation) FirstToken() {
	if r.state.CompareAndSwap(int64(Prefill), int64(Decode)) {
		r.slot.move(Prefill, -1)
		r.slot.move(Decode, 1)
	}
	r.settlePrompt()
}

// Prompt is the prompt tokens that the reservation still counts.
func (r *Reservation) Prompt() unit.Tokens { return unit.Tokens(r.prompt.Load()) }

// Close gives the share back. Closing again does nothing, so that a path may
// close early and a deferred Close still covers the others.
func (r *Reservation) Close() {
	phase := r.state.Swap(closed)
	if phase == closed {
		return
	}
	r.slot.context.Add(-r.context)
	r.settlePrompt()
	r.slot.move(Phase(phase), -1)
}

func (r *Reservation) settlePrompt() {
	if n := r.prompt.Swap(0); n != 0 {
		r.slot.prompt.Add(-n)
		r.slot.changed()
	}
}

// Assigned is the work that the worker was given lately, in tokens, as
// [Slot.Assign] and [Slot.Fade] made it.
func (s *Slot) Assigned() float64 { return math.Float64frombits(s.assigned.Load()) }

// Assign adds work that the worker is given, and Fade makes what it was given
// before count less, by a factor in [0, 1]. Both are for one goroutine at a time.
func (s *Slot) Assign(tokens float64) { s.assign(s.Assigned() + tokens) }

// Fade is described at Assign.
func (s *Slot) Fade(by float64) { s.assign(s.Assigned() * by) }

func (s *Slot) assign(tokens float64) {
	s.assigned.Store(math.Float64bits(tokens))
	s.renew()
}

// heard is what a worker last said of its load, with what gateways had on it at
// that moment.
type heard struct {
	foreign atomic.Int64 // requests then that are no gateway's
	at      atomic.Int64 // unix nanoseconds of the sample; 0 is never
}

// Hear takes in a worker's own word of at, unless it is not newer than the last:
// requests is how many it has, waiting ones included. What is neither this
// gateway's own nor told of another gateway counts as foreign until the next
// word.
//
// A sample is some milliseconds old when it arrives, and what gateways sent or
// finished meanwhile is taken for foreign, or not seen as such, until then.
func (s *Slot) Hear(at time.Time, requests float64) {
	if ns := at.UnixNano(); ns > s.heard.at.Load() {
		s.heard.at.Store(ns)
		known := int64(s.InFlight() + s.Others())
		s.foreign(max(int64(min(requests, 1<<30))-known, 0))
	}
}

// Unheard says that the worker's word is no longer to be had: nothing counts as
// foreign until the next, beside what other gateways tell.
func (s *Slot) Unheard() {
	s.foreign(0)
}

func (s *Slot) foreign(requests int64) {
	if s.heard.foreign.Load() != requests {
		s.heard.foreign.Store(requests)
		s.renew()
	}
}

// Foreign is the requests on the worker that are not this gateway's: those of
// other gateways as last told, and those that the worker had beyond when it last
// spoke. Added to InFlight it is the worker's load as far as known: what was sent
// since counts at once, and no request counts twice.
func (s *Slot) Foreign() int {
	return int(s.heard.foreign.Load()+s.guessNow().requests) + s.Others()
}
