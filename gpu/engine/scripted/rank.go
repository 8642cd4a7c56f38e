package scripted

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/kvevent"
)

// errQueueFull means that as many requests wait as may.
var errQueueFull = errors.New("scripted: waiting queue is full")

// errStopped means that the engine is gone.
var errStopped = errors.New("scripted: engine stopped")

// unlimited is the pace of a sequence that produces as fast as the engine can.
const unlimited = int(^uint(0) >> 1)

// rank is one data-parallel engine: a queue, a batch and a cache. Its loop
// computes one step after another; a step takes the time the cost model says.
type rank struct {
	index    int
	limits   limits
	clock    clock.Clock
	timing   cost.EngineTime
	speed    float64
	publish  func(rank int, events []kvevent.Event)
	wake     chan struct{}
	mu       sync.Mutex
	waiting  []*seq // first is next
	running  []*seq // in order of admission
	cache    *blockCache
	stats    stats
	stopping bool
}

// limits bound a rank.
type limits struct {
	maxRunning, maxWaiting, stepTokens int
}

// stage is how far a sequence has come.
type stage uint8

const (
	stageQueued stage = iota
	stagePrefill
	stageDecode
	stageDone
)

// String is the stage's name in records.
func (s stage) String() string {
	return [...]string{"queued", "prefill", "decode", "done"}[s]
}

// seq is one sequence: a prompt and what is generated after it. Fields below
// mu belong to the rank's lock.
type seq struct {
	prompt   []uint32
	salt     string
	maxNew   int
	produce  func() (text string, ids []uint32, end bool) // called by the rank's loop
	external unit.Tokens                                  // tokens of the prompt whose KV came from elsewhere
	found    unit.Tokens                                  // of those, what is reported as cached
	silent   bool                                         // received blocks make no events
	hold     bool                                         // keep the blocks when done, until unhold
	changed  chan struct{}                                // room for one; signalled after each change

	tokens   []uint32 // prompt and output
	computed int      // tokens whose KV is in place
	cached   int      // of them, found in the cache at first admission
	admitted bool
	blocks   []*block // full blocks held
	private  int      // blocks held that are not full yet
	out      []piece
	pace     int // pieces the sequence may have produced by now
	stage    stage
	canceled bool
	err      error
	enqueued time.Time
	started  time.Time // prefill began
	first    time.Time // first token
	finished time.Time
}

// piece is one generated token and when it was ready.
type piece struct {
	text string
	end  bool // the model ended the text after this token
}

func newRank(index int, l limits, c clock.Clock, t cost.EngineTime, speed float64, cache *blockCache) *rank {
	return &rank{
		index: index, limits: l, clock: c, timing: t, speed: speed, cache: cache,
		wake: make(chan struct{}, 1), publish: func(int, []kvevent.Event) {},
	}
}

// submit queues s. It fails with errQueueFull or errStopped.
func (r *rank) submit(s *seq) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return errStopped
	}
	if len(r.waiting) >= r.limits.maxWaiting {
		return errQueueFull
	}
	s.tokens = slices.Clone(s.prompt)
	s.enqueued = r.clock.Now()
	s.changed = make(chan struct{}, 1)
	r.waiting = append(r.waiting, s)
	r.signal()
	return nil
}

func (r *rank) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (s *seq) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// cancel ends s wherever it is and reports the stage it was in. A computing
// step runs to its end; the sequence's blocks are free no later than that.
func (r *rank) cancel(s *seq) stage {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := s.stage
	if was == stageDone {
		return was
	}
	s.canceled = true
	if i := slices.Index(r.waiting, s); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
		r.finish(s, "abort")
	}
	r.signal()
	return was
}

// allow lets s produce n pieces in all.
func (r *rank) allow(s *seq, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.pace = n
	r.signal()
}

// progress is a sequence's state at one instant.
type progress struct {
	pieces []piece // those from the asked index on
	done   bool
	cached int
	err    error
}

// wait returns when s has more than have pieces, or is done.
func (r *rank) wait(ctx context.Context, s *seq, have int) (progress, error) {
	for {
		r.mu.Lock()
		p := progress{pieces: s.out[have:], done: s.stage == stageDone, cached: s.cached, err: s.err}
		r.mu.Unlock()
		if len(p.pieces) > 0 || p.done {
			return p, nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return progress{}, ctx.Err()
		}
	}
}

// peek is s's state now, without its pieces.
func (r *rank) peek(s *seq) progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return progress{done: s.stage == stageDone, cached: s.cached, err: s.err}
}

// run computes steps until ctx ends, then fails what is left.
func (r *rank) run(ctx context.Context) {
	defer r.abandon()
	for ctx.Err() == nil {
		plan, events := r.plan()
		r.emit(events)
		if plan == nil {
			select {
			case <-r.wake:
			case <-ctx.Done():
			}
			continue
		}
		if !sleep(ctx, r.clock, time.Duration(float64(plan.duration)/r.speed)) {
			return
		}
		r.emit(r.apply(plan))
	}
}

func (r *rank) emit(events []kvevent.Event) {
	if len(events) > 0 {
		r.publish(r.index, events)
	}
}

// abandon fails every sequence: the engine stops.
func (r *rank) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
	for _, s := range slices.Concat(r.waiting, r.running) {
		s.err = errStopped
		r.finish(s, "abort")
	}
	r.waiting, r.running = nil, nil
}

// step is one planned step.
type step struct {
	spans    []span
	decoding []*seq
	duration time.Duration
}

// span is the part of a step that computes n prompt tokens of s.
type span struct {
	s *seq
	n int
}

// plan drops the cancelled, admits the waiting and composes a step; nil when
// there is nothing to compute.
func (r *rank) plan() (*step, []kvevent.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropCanceled()
	r.admit()
	p := r.compose()
	return p, r.cache.takeEvents()
}

func (r *rank) dropCanceled() {
	r.running = slices.DeleteFunc(r.running, func(s *seq) bool {
		if s.canceled {
			r.finish(s, "abort")
		}
		return s.canceled
	})
}

// admit moves waiting sequences into the batch, in order, while there is room
// for their prompts.
func (r *rank) admit() {
	for len(r.waiting) > 0 && len(r.running) < r.limits.maxRunning {
		s := r.waiting[0]
		hit := r.cache.lookup(s.salt, s.tokens)
		// The last token is always computed: its logits are needed.
		hit = hit[:min(len(hit), (len(s.tokens)-1)/r.cache.blockTokens)]
		r.cache.acquire(hit)
		need := int(unit.BlocksFor(unit.Tokens(len(s.tokens)), unit.Tokens(r.cache.blockTokens))) - len(hit)
		if !r.cache.allocate(need) {
			r.cache.release(hit)
			return
		}
		s.blocks, s.private = hit, need
		s.computed = len(hit) * r.cache.blockTokens
		r.countLookup(s)
		// KV that came from elsewhere lies in the private blocks already.
		s.computed = max(s.computed, min(int(s.external), len(s.tokens)-1))
		s.stage = stagePrefill
		if s.started.IsZero() {
			s.started = r.clock.Now()
		}
		r.waiting = slices.Delete(r.waiting, 0, 1)
		r.running = append(r.running, s)
		s.signal()
	}
}

func (r *rank) countLookup(s *seq) {
	if s.admitted {
		return // coming back from preemption: counted before
	}
	s.admitted, s.cached = true, s.computed
	r.stats.prefixQueries += len(s.tokens)
	r.stats.prefixHits += s.computed
	if s.external > 0 {
		r.stats.externalQueries += len(s.tokens)
		r.stats.externalHits += int(s.external)
		s.cached = max(s.cached, int(s.found))
	}
}

// compose fills a step: a token for everything that decodes, and prompts as far
// as the step's token budget reaches.
func (r *rank) compose() *step {
	p := &step{}
	context := 0
	// The slice changes when growing preempts a later sequence.
	for i := 0; i < len(r.running); i++ {
		s := r.running[i]
		if s.stage != stageDecode || len(s.out) >= s.pace || !r.grow(s) {
			continue
		}
		p.decoding = append(p.decoding, s)
		context += len(s.tokens)
	}
	budget := r.limits.stepTokens - len(p.decoding)
	var spans []cost.PrefillSpan
	for _, s := range r.running {
		if s.stage != stagePrefill || budget <= 0 {
			continue
		}
		n := min(len(s.tokens)-s.computed, budget)
		if s.pace <= len(s.out) && n == len(s.tokens)-s.computed {
			n-- // the last token's step is the one that produces
		}
		if n == 0 {
			continue
		}
		budget -= n
		p.spans = append(p.spans, span{s, n})
		spans = append(spans, cost.PrefillSpan{New: unit.Tokens(n), Cached: unit.Tokens(s.computed)})
	}
	if len(p.spans)+len(p.decoding) == 0 {
		return nil
	}
	p.duration = r.timing.Step(spans, len(p.decoding), unit.Tokens(context))
	return p
}

// grow makes room for the next token's KV, preempting the sequence admitted
// last when no block is free. It is false when s itself had to go.
func (r *rank) grow(s *seq) bool {
	for len(s.tokens) > (len(s.blocks)+s.private)*r.cache.blockTokens {
		if r.cache.allocate(1) {
			s.private++
			continue
		}
		victim := r.running[len(r.running)-1]
		r.preempt(victim)
		if victim == s {
			return false
		}
	}
	return true
}

// preempt puts s back to the front of the queue; its prompt now includes what
// it has generated.
func (r *rank) preempt(s *seq) {
	r.running = slices.DeleteFunc(r.running, func(o *seq) bool { return o == s })
	r.giveBack(s)
	s.computed, s.external, s.stage = 0, 0, stageQueued
	r.waiting = slices.Insert(r.waiting, 0, s)
	r.stats.preemptions++
}

func (r *rank) giveBack(s *seq) {
	r.cache.release(s.blocks)
	r.cache.private -= s.private
	s.blocks, s.private = nil, 0
}

// apply takes the step as computed.
func (r *rank) apply(p *step) []kvevent.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sp := range p.spans {
		sp.s.computed += sp.n
		r.stats.promptTokens += sp.n
		r.store(sp.s)
		if sp.s.computed == len(sp.s.tokens) && !sp.s.canceled {
			r.produce(sp.s)
		}
	}
	for _, s := range p.decoding {
		s.computed = len(s.tokens)
		r.store(s)
		if !s.canceled {
			r.produce(s)
		}
	}
	r.running = slices.DeleteFunc(r.running, func(s *seq) bool { return s.stage == stageDone })
	return r.cache.takeEvents()
}

// store promotes the blocks of s that are full by now, as one event.
func (r *rank) store(s *seq) {
	size := r.cache.blockTokens
	parent := r.cache.root(s.salt)
	var eventParent uint64
	if n := len(s.blocks); n > 0 {
		parent = s.blocks[n-1].hash
		eventParent = parent
	}
	var event kvevent.Event
	for (len(s.blocks)+1)*size <= s.computed && s.private > 0 {
		at := len(s.blocks) * size
		tokens := s.tokens[at : at+size]
		b, stored := r.cache.promote(parent, tokens)
		s.private--
		s.blocks = append(s.blocks, b)
		if !stored || s.silent && at+size <= int(s.external) {
			r.flush(&event)
			parent, eventParent = b.hash, b.hash
			continue
		}
		if len(event.Hashes) == 0 {
			event = kvevent.Event{
				Kind: kvevent.Stored, Parent: eventParent, BlockTokens: size,
				Medium: kvevent.MediumGPU, Spec: "full_attention",
			}
			if at == 0 && s.salt != "" {
				event.Extra, event.ExtraKey = true, s.salt
			}
		}
		event.Hashes = append(event.Hashes, b.hash)
		event.Tokens = append(event.Tokens, tokens...)
		parent, eventParent = b.hash, b.hash
	}
	r.flush(&event)
}

func (r *rank) flush(event *kvevent.Event) {
	if len(event.Hashes) > 0 {
		r.cache.events = append(r.cache.events, *event)
	}
	*event = kvevent.Event{}
}

// produce gives s its next token.
func (r *rank) produce(s *seq) {
	now := r.clock.Now()
	if s.first.IsZero() {
		s.first = now
		r.stats.ttft.observe(now.Sub(s.enqueued).Seconds())
	}
	s.stage = stageDecode
	text, ids, end := s.produce()
	s.tokens = append(s.tokens, ids...)
	s.out = append(s.out, piece{text, end})
	r.stats.generationTokens++
	switch {
	case end:
		r.finish(s, "stop")
	case len(s.out) >= s.maxNew:
		r.finish(s, "length")
	}
	s.signal()
}

// unhold gives back the blocks of a sequence that has ended.
func (r *rank) unhold(s *seq) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.hold = false
	if s.stage == stageDone {
		r.giveBack(s)
		r.signal() // somebody may be waiting for blocks
	}
}

// finish is the one place where a sequence ends.
func (r *rank) finish(s *seq, reason string) {
	if !s.hold || reason == "abort" {
		r.giveBack(s)
	}
	s.stage = stageDone
	s.finished = r.clock.Now()
	r.stats.finished(reason, s)
	s.signal()
}

// depth is the number of sequences that run or wait.
func (r *rank) depth() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running) + len(r.waiting)
}

// load is what a rank holds at one instant.
type load struct {
	running, waiting int
	held, capacity   int
	stats            stats
}

func (r *rank) load() load {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := load{
		running: len(r.running), waiting: len(r.waiting),
		held: r.cache.held(), capacity: r.cache.capacity, stats: r.stats,
	}
	l.stats.reasons = map[string]int{}
	maps.Copy(l.stats.reasons, r.stats.reasons)
	return l
}

// resetCache forgets all idle blocks.
func (r *rank) resetCache() {
	r.mu.Lock()
	r.cache.clear()
	events := r.cache.takeEvents()
	r.mu.Unlock()
	r.emit(events)
}

// sleep waits for d on c and reports whether ctx lasted.
func sleep(ctx context.Context, c clock.Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := c.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}
