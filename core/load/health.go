package load

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/unit"
)

// DefaultPatience is how long a worker with streams may give no token before it
// is doubted, besides the time that prompts take.
const DefaultPatience = 5 * time.Second

const (
	// mostPauses is the longest pause before a doubted worker is asked again, in
	// patiences. Each time costs a client its answer.
	mostPauses = 6
	// slowestPrompt is the prompt rate, in tokens/s, that a worker is granted
	// while its own is not known.
	slowestPrompt = 100
	// rateMargin is how much slower than measured prompts may be computed without
	// a doubt.
	rateMargin = 0.25
	// leastPrompt is the shortest prompt that a rate is measured on, in tokens.
	leastPrompt = 64
	// rateWeight is what one measurement counts in the mean.
	rateWeight = 0.125
)

// health is what this gateway knows of an incarnation beside connect failures:
// whether it is full, refuses, or gives no tokens.
type health struct {
	patience time.Duration
	limit    int64 // requests in flight from which it is full; 0 is never
	doubts   measure.Counter
	able     atomic.Bool // it can continue streams

	refused  atomic.Int64 // until when, unix nanoseconds
	refusals atomic.Int64 // in a row

	watched  atomic.Int64  // streams from which a token may come now
	decoding atomic.Int64  // of them, those that gave one
	sign     atomic.Int64  // last sign of life, unix nanoseconds
	doubted  atomic.Bool   // gave none for too long, and none since
	probe    atomic.Int64  // when a doubted one may be asked again, unix nanoseconds
	doubting atomic.Int64  // doubts since the last complete answer
	rate     atomic.Uint64 // prompt tokens/s as float64 bits; 0 is unknown
}

// Full reports whether the incarnation has as many of the gateways' requests as
// it can use: what it computes at once, and some to go on with. Others' requests
// fill it only for a gateway that has its share: else one whose places are freed
// by its own answers would take each at once, and the others would never see any.
func (s *Slot) Full() bool {
	limit, own := s.health.limit, int64(s.InFlight())
	if limit <= 0 || own >= limit {
		return limit > 0
	}
	return own+int64(s.Others()) >= limit && own*s.gateways() >= limit
}

// limitOf is the requests at which a worker that computes running at once is
// full: an eighth more, so that it never idles for want of the next one. A
// worker that does not say is never full.
func limitOf(running int) int64 {
	if running <= 0 {
		return 0
	}
	return int64(running + max(running/8, 1))
}

// Refused says that the incarnation took no request because it was busy or
// draining, which is no fault: others are preferred for a moment, longer as
// refusals go on.
func (s *Slot) Refused(now time.Time) {
	const first, longest = 50 * time.Millisecond, time.Second
	wait := longest
	if n := s.health.refusals.Add(1) - 1; n < 5 {
		wait = first << n
	}
	s.health.refused.Store(now.Add(wait).UnixNano())
	s.renew()
}

// Refusing reports whether the incarnation refused a moment ago.
func (s *Slot) Refusing(now time.Time) bool { return now.UnixNano() < s.health.refused.Load() }

// Took says that the incarnation took a request: it is not busy any more.
func (s *Slot) Took() {
	if s.health.refusals.Load() != 0 {
		s.health.refusals.Store(0)
		s.health.refused.Store(0)
	}
}

// Answered says that the incarnation completed an answer. It takes doubt away
// as a token does.
func (s *Slot) Answered(now time.Time) {
	s.alive(now)
	if s.health.doubting.Load() != 0 {
		s.health.doubting.Store(0)
	}
}

func (s *Slot) alive(now time.Time) {
	s.health.sign.Store(now.UnixNano())
	if s.health.doubted.Load() {
		s.health.doubted.Store(false)
	}
}

// Continuing says that the incarnation's engine can continue streams.
func (s *Slot) Continuing() {
	if !s.health.able.Load() {
		s.health.able.Store(true)
	}
}

// CanContinue reports whether Continuing was said.
func (s *Slot) CanContinue() bool { return s.health.able.Load() }

// Doubted reports whether the incarnation has streams and gave no token for
// longer than its patience and its queued prompts explain. A doubted worker gets
// one request at a time until a token or an answer proves it alive: the first at
// once, the next after pauses as long as its patience, doubling to mostPauses
// times that.
//
// Requests that are not streamed show nothing until their end: while such run
// and no stream is past its prompt, nothing is concluded.
func (s *Slot) Doubted(now time.Time) bool {
	h := &s.health
	if h.doubted.Load() {
		return s.InFlight() > 0 || now.UnixNano() < h.probe.Load()
	}
	watched := h.watched.Load()
	if watched <= 0 || h.decoding.Load() == 0 && int64(s.InFlight()) > watched {
		return false
	}
	silent := now.UnixNano() - h.sign.Load()
	if silent <= int64(h.patience) || silent <= int64(h.patience+s.promptTime()) {
		return false
	}
	s.Doubt(now)
	return true
}

// Doubt makes the incarnation doubted, e.g. after a stream's deadline for a
// token has passed.
func (s *Slot) Doubt(now time.Time) {
	h := &s.health
	pause := h.patience * mostPauses
	switch n := h.doubting.Add(1); {
	case n == 1:
		pause = 0
	case n < 5:
		pause = min(pause, h.patience<<(n-2))
	}
	h.probe.Store(now.Add(pause).UnixNano())
	if h.doubted.CompareAndSwap(false, true) {
		h.doubts.Inc()
	}
	s.renew()
}

// promptTime is the longest that the queued prompts may take.
func (s *Slot) promptTime() time.Duration {
	rate := slowestPrompt * 1.0
	if bits := s.health.rate.Load(); bits != 0 {
		rate = math.Float64frombits(bits) * rateMargin
	}
	seconds := float64(s.QueuedPrompt()) / max(rate, 1)
	return time.Duration(min(seconds, 3600) * float64(time.Second))
}

func (s *Slot) measured(prompt unit.Tokens, took time.Duration) {
	if prompt < leastPrompt || took <= 0 {
		return
	}
	rate := float64(prompt) / took.Seconds()
	if bits := s.health.rate.Load(); bits != 0 {
		old := math.Float64frombits(bits)
		rate = old + rateWeight*(rate-old)
	}
	s.health.rate.Store(math.Float64bits(rate))
}

// Vigil watches one stream for tokens. The zero value watches nothing. Its
// methods are called by one goroutine.
type Vigil struct {
	slot    *Slot
	began   time.Time
	prompt  unit.Tokens
	token   bool
	blocked bool
}

// Watch begins to expect tokens of a stream that was sent now with prompt tokens
// to compute. End ends it.
func (s *Slot) Watch(now time.Time, prompt unit.Tokens) Vigil {
	if s.health.watched.Add(1) == 1 {
		s.health.sign.Store(now.UnixNano())
		s.renew()
	}
	return Vigil{slot: s, began: now, prompt: prompt}
}

// Token says that a token came.
func (v *Vigil) Token(now time.Time) {
	if v.slot == nil {
		return
	}
	v.slot.alive(now)
	if !v.token {
		v.token = true
		v.slot.health.decoding.Add(1)
		v.slot.measured(v.prompt, now.Sub(v.began))
	}
}

// Block says that nobody reads the stream at the moment: no token is expected
// until Unblock.
func (v *Vigil) Block() {
	if v.slot == nil || v.blocked {
		return
	}
	v.blocked = true
	v.count(-1)
}

// Unblock ends what Block began.
func (v *Vigil) Unblock(now time.Time) {
	if v.slot == nil || !v.blocked {
		return
	}
	v.blocked = false
	// The time that the reader took is no silence of the worker's.
	v.slot.health.sign.Store(now.UnixNano())
	v.count(1)
	v.slot.renew()
}

func (v *Vigil) count(by int64) {
	if v.token {
		v.slot.health.decoding.Add(by)
	}
	v.slot.health.watched.Add(by)
}

// End ends the watch. Ending again does nothing.
func (v *Vigil) End() {
	if v.slot != nil && !v.blocked {
		v.count(-1)
	}
	*v = Vigil{}
}

// LeftOut reports whether new requests should go to others while there are some:
// the incarnation is ejected, has refused a moment ago, or is doubted. See Full
// for what cannot be overridden.
func (s *Slot) LeftOut(now time.Time) bool {
	return s.OutOfService(now) || s.Refusing(now) || s.Doubted(now)
}

// PassedBy reports whether the router should pass the incarnation by at now,
// unless there is no other: it is left out ([Slot.LeftOut]) or full.
func (s *Slot) PassedBy(now time.Time) bool { return s.Full() || s.LeftOut(now) }
