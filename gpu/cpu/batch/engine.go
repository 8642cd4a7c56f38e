package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

// Engine computes requests. One goroutine, the loop, owns all scheduling state;
// others hand it sequences and facts and poke it. All methods are safe for concurrent use.
type Engine struct {
	opt    Options
	runner Runner
	pool   *kv.Pool
	cache  *kv.Cache
	vocab  int
	dim    int
	meters meters

	wake chan struct{} // holds one: the loop looks at everything after each
	done chan struct{} // closed when the loop has ended
	bg   sync.WaitGroup

	mu       sync.Mutex
	inbox    []*sequence // accepted, not yet seen by the loop
	entering int         // inside Submit, past the check for closing
	live     int         // accepted and not ended
	arriving int         // blocks of prompts whose KV is on its way
	orders   uint64
	closing  bool  // no more requests
	ending   error // abort what is left
	deserted bool  // do not wait for those who hold blocks

	running atomic.Int64 // len(run) and held, for Submit and Stats
	rates   atomic.Pointer[rates]

	// The loop's own: each accepted sequence is in exactly one list.
	waiting   []*sequence // for blocks or a place, in order of arrival
	importing []*sequence // blocks reserved, KV on its way
	ready     []*sequence // imported or to be recomputed, for a place
	run       []*sequence // computed step by step, in order of arrival
	held      []*sequence // ended but for the exporter's release
	ended     []ending
	step      step
}

// ending is a last event to be sent.
type ending struct {
	stream *Stream
	last   Event
}

// New starts an engine on r. Errors wrap ErrOptions.
func New(r Runner, opt Options) (*Engine, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt = opt.withDefaults()
	pool, err := kv.NewPool(r.Layout(opt.BlockTokens), opt.KVBlocks)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	cache, err := kv.NewCache(opt.KVBlocks, opt.BlockTokens, opt.HashSeed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	e := &Engine{
		opt: opt, runner: r, pool: pool, cache: cache, vocab: r.Vocab(), dim: r.Dim(),
		meters: newMeters(opt.Registry),
		wake:   make(chan struct{}, 1), done: make(chan struct{}),
	}
	e.rates.Store(&rates{})
	e.publish()
	go e.loop()
	return e, nil
}

// Pool is the engine's KV memory. Exporters read from it and importers write to
// it, in the blocks they were given and while they hold them.
func (e *Engine) Pool() *kv.Pool { return e.pool }

// Cache is the account of the engine's KV blocks, the source of KV events.
func (e *Engine) Cache() *kv.Cache { return e.cache }

// Options are the engine's options, defaults filled in.
func (e *Engine) Options() Options { return e.opt }

// Submit accepts a request. Cancelling ctx, then or later, aborts it. Errors are
// ErrTooLong, ErrBusy, ErrClosed, ErrRequest, sample.ErrParams or ctx's; after
// an error nothing of the request's exporter or importer has been called.
//
// A decode leg's blocks are reserved and its import started before Submit
// returns, whatever step is being computed, if enough blocks are free.
func (e *Engine) Submit(ctx context.Context, req *Request) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := e.newSequence(req)
	if err != nil {
		return nil, err
	}
	if err := e.enter(s); err != nil {
		return nil, err
	}
	s.stop = context.AfterFunc(ctx, func() {
		s.abort(context.Cause(ctx))
		e.poke()
	})
	local := false
	if req.Import != nil {
		local, _ = e.reserve(s, int(e.running.Load()))
	}
	e.mu.Lock()
	e.entering--
	e.inbox = append(e.inbox, s)
	e.mu.Unlock()
	e.poke()
	if local {
		req.Import.Cancel()
	}
	return s.stream, nil
}

func (e *Engine) newSequence(req *Request) (*sequence, error) {
	if err := e.check(req); err != nil {
		return nil, err
	}
	if req.Export != nil {
		if from := req.Export.From(); from < 0 || from%e.opt.BlockTokens != 0 {
			return nil, fmt.Errorf("%w: export from token %d is not a block boundary", ErrRequest, from)
		}
	}
	s := &sequence{req: req, maxTokens: e.opt.MaxContext - len(req.Prompt)}
	if req.MaxTokens > 0 {
		s.maxTokens = req.MaxTokens
	}
	var err error
	own := len(req.Prompt) - req.Given
	if s.sampler, err = sample.New(req.Sampling, e.vocab, req.Prompt[:own]); err != nil {
		return nil, err
	}
	s.sampler.Resume(req.Prompt[own:])
	if !req.IgnoreEOS {
		s.stops = append(s.stops, req.EOS...)
	}
	s.stops = append(s.stops, req.StopIDs...)
	// Output rarely fills the context: let it grow.
	s.tokens = append(make([]int32, 0, len(req.Prompt)+min(s.maxTokens, 256)), req.Prompt...)
	s.stream = &Stream{
		events: make(chan Event, e.opt.StreamBuffer+1), wake: e.poke, usage: Usage{Prompt: len(req.Prompt)},
		cancel: func() { s.abort(context.Canceled); e.poke() },
	}
	return s, nil
}

// enter counts a sequence in, or refuses it.
func (e *Engine) enter(s *sequence) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return ErrClosed
	}
	if e.live >= e.opt.MaxRunning+e.opt.MaxWaiting {
		return fmt.Errorf("%w: %d requests", ErrBusy, e.live)
	}
	e.live++
	e.entering++
	e.orders++
	s.order = e.orders
	return nil
}

// poke makes the loop look at everything once more.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// background runs f, which may block, aside. The engine waits for its end.
func (e *Engine) background(f func()) { e.bg.Go(f) }

// grace is how long Close waits, after it has aborted everything, for exporters
// and importers to let go of their blocks.
const grace = 5 * time.Second

// ErrUnreleased means that an exporter or importer did not let go of its blocks
// in time when the engine closed.
var ErrUnreleased = errors.New("KV blocks were not released")

// Close takes no more requests and waits for those accepted to end. When ctx
// ends first, they are aborted. It returns when no goroutine of the engine is
// left, or ErrUnreleased.
func (e *Engine) Close(ctx context.Context) error {
	e.tell(func() { e.closing = true })
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
	}
	e.tell(func() { e.ending = ErrClosed })
	timer := e.opt.Clock.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-e.done:
		return nil
	case <-timer.C():
	}
	e.tell(func() { e.deserted = true })
	<-e.done
	return ErrUnreleased
}

// tell changes what the loop is to do.
func (e *Engine) tell(change func()) {
	e.mu.Lock()
	change()
	e.mu.Unlock()
	e.poke()
}

func (e *Engine) loop() {
	defer close(e.done)
	for {
		deserted, over := e.receive()
		if over {
			if !deserted {
				e.bg.Wait()
			}
			return
		}
		e.reap(deserted)
		e.admit()
		e.plan()
		e.settle()
		worked := e.compute()
		e.settle()
		if !worked {
			e.sleep()
		}
	}
}

// receive takes in new sequences and orders to end. over means that none is
// left and none will come.
func (e *Engine) receive() (deserted, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.inbox {
		if s.imports == nil {
			e.waiting = insert(e.waiting, s)
		} else {
			e.enlist(s)
		}
	}
	clear(e.inbox)
	e.inbox = e.inbox[:0]
	if e.ending != nil {
		for _, list := range [][]*sequence{e.waiting, e.importing, e.ready, e.run} {
			for _, s := range list {
				s.abort(e.ending)
			}
		}
	}
	return e.deserted, e.closing && e.live == 0 && e.entering == 0
}

// sleep waits for a reason to look again.
func (e *Engine) sleep() {
	var expiry <-chan time.Time
	if d, ok := e.nextDeadline(); ok {
		timer := e.opt.Clock.NewTimer(d)
		defer timer.Stop()
		expiry = timer.C()
	}
	select {
	case <-e.wake:
	case <-expiry:
	}
}
