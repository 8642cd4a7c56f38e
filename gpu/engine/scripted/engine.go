package scripted

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
)

// ErrRunning means that the engine is started already, ErrNotRunning that it is
// not.
var (
	ErrRunning    = errors.New("scripted: engine is running")
	ErrNotRunning = errors.New("scripted: engine is not running")
)

// Engine is an OpenAI-compatible engine that makes its answers up. Its methods
// are safe for concurrent use.
type Engine struct {
	opts     Options
	record   *recorder
	play     atomic.Pointer[playbook]
	own      engine.OwnEpoch
	named    atomic.Bool // the fleet gave it an epoch once
	draining atomic.Bool

	life   sync.Mutex // held while starting and stopping
	mu     sync.Mutex // guards the fields below
	inc    *incarnation
	addr   string            // of the last listener: Restart listens there again
	events map[int][2]string // where ranks published and replayed
	starts int
	closed bool
	later  sync.WaitGroup // deaths and restarts under way
	quit   chan struct{}  // closed by Close
}

// New checks opts and makes an engine that is not started.
func New(opts Options) (*Engine, error) {
	if opts.Script != nil && opts.Script.Engine != nil {
		opts.Script.Engine.apply(&opts)
	}
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("scripted: %w", err)
	}
	opts = opts.withDefaults()
	play, err := newPlaybook(opts.Script)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		opts: opts, record: newRecorder(opts.Clock, opts.Records, int(opts.RecordBytes)),
		quit: make(chan struct{}),
	}
	e.play.Store(play)
	e.SetEpoch(opts.Epoch)
	return e, nil
}

// Start listens on addr (host:port; port 0 picks one) and returns once requests
// are served.
func (e *Engine) Start(ctx context.Context, addr string) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("scripted: %w", err)
	}
	return e.Serve(ctx, ln)
}

// Serve takes ln and returns once requests are served; ctx bounds only the
// start.
func (e *Engine) Serve(ctx context.Context, ln net.Listener) error {
	e.life.Lock()
	defer e.life.Unlock()
	if err := e.mayStart(); err != nil {
		return errors.Join(err, ln.Close())
	}
	e.draining.Store(false)
	inc, err := startIncarnation(ctx, e, ln, e.nextStart())
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inc, e.addr = inc, ln.Addr().String()
	return nil
}

func (e *Engine) mayStart() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return ErrNotRunning
	case e.inc != nil:
		return ErrRunning
	}
	return nil
}

func (e *Engine) nextStart() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.starts++
	return e.starts
}

// Addr is host:port of the listener, also while the engine is down between two
// incarnations; empty before the first start.
func (e *Engine) Addr() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addr
}

// URL is the root of the API.
func (e *Engine) URL() string { return "http://" + e.Addr() }

// EventsAddr is where rank's KV events are published and where they are
// replayed, as host:port; empty when the script publishes none or the engine is
// down.
func (e *Engine) EventsAddr(rank int) (publish, replay string) {
	if inc := e.current(); inc != nil && rank < len(inc.publishers) {
		return inc.publishers[rank].addrs()
	}
	return "", ""
}

// eventAddrs is where rank published and replayed before; empty at first.
func (e *Engine) eventAddrs(rank int) [2]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.events[rank]
}

func (e *Engine) keepEventAddrs(rank int, publish, replay string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.events == nil {
		e.events = map[int][2]string{}
	}
	e.events[rank] = [2]string{publish, replay}
}

func (e *Engine) current() *incarnation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inc
}

// Options are what the engine was made from, with defaults and the script's
// engine section filled in. The caller must not change what they refer to.
func (e *Engine) Options() Options { return e.opts }

// Running reports whether the engine is up.
func (e *Engine) Running() bool { return e.current() != nil }

// SetEpoch tells the engine under which epoch the fleet knows it. Requests
// meant for another epoch get 421, those for a later one after they have waited
// for it; see [engine.OwnEpoch]. Zero accepts all.
func (e *Engine) SetEpoch(epoch fleet.Epoch) {
	e.named.Store(epoch != 0)
	e.own.Set(epoch)
}

// SetScript replaces the script. Requests under way keep the old one; the
// engine section, and where events are published, do not change any more.
func (e *Engine) SetScript(s *Script) error {
	play, err := newPlaybook(s)
	if err != nil {
		return err
	}
	e.play.Store(play)
	if inc := e.current(); inc != nil {
		inc.scriptChanged()
	}
	return nil
}

// Drain refuses new requests (503, reason draining) and returns when those
// under way have ended, or with ctx's error. The engine stays up.
func (e *Engine) Drain(ctx context.Context) error {
	e.draining.Store(true)
	return e.record.await(ctx, func(c Counters, _ []Record) bool { return c.InFlight == 0 })
}

// Kill stops the engine as a crash does: connections are reset, caches and
// sequence numbers are lost. It may be started again.
func (e *Engine) Kill() error {
	e.life.Lock()
	defer e.life.Unlock()
	return e.stop()
}

func (e *Engine) stop() error {
	e.mu.Lock()
	inc := e.inc
	e.inc = nil
	e.mu.Unlock()
	if inc == nil {
		return ErrNotRunning
	}
	inc.stop()
	e.own.Set(0) // until the fleet knows it again, what names an epoch means another
	return nil
}

// Restart kills the engine, if it is up, and starts it again on the same port
// with nothing remembered but records and script.
func (e *Engine) Restart(ctx context.Context) error {
	addr := e.Addr()
	if addr == "" {
		return ErrNotRunning
	}
	if err := e.Kill(); err != nil && !errors.Is(err, ErrNotRunning) {
		return err
	}
	return e.Start(ctx, addr)
}

// Close stops the engine for good and returns when all its goroutines have
// ended. Closing twice is harmless.
func (e *Engine) Close() error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.quit)
	}
	e.mu.Unlock()
	err := e.Kill()
	e.later.Wait()
	if errors.Is(err, ErrNotRunning) {
		return nil
	}
	return err
}

// dieSoon kills the engine from within a request, which ends with it, and starts
// it again if d says so.
func (e *Engine) dieSoon(ctx context.Context, d *DieAction) {
	ctx = context.WithoutCancel(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.later.Go(func() {
		if e.Kill() != nil || d.RestartAfter <= 0 {
			return
		}
		t := e.opts.Clock.NewTimer(d.RestartAfter.D())
		defer t.Stop()
		select {
		case <-t.C():
			// A port taken meanwhile leaves the engine dead, as it would a real one.
			_ = e.Start(ctx, e.Addr())
		case <-e.quit:
		}
	})
}

// Records returns what the engine remembers of requests after seq, oldest first.
// A record ends a moment after the client has the last byte: tests wait with
// Await. The bodies are not copied and must not be changed.
func (e *Engine) Records(after int) []Record {
	r, _ := e.record.snapshot(after)
	return r
}

// Counters sums up what the engine served.
func (e *Engine) Counters() Counters {
	_, c := e.record.snapshot(int(^uint(0) >> 2))
	return c
}

// Await returns once ok holds, or with ctx's error. ok is called after every
// change of a record.
func (e *Engine) Await(ctx context.Context, ok func(Counters, []Record) bool) error {
	return e.record.await(ctx, ok)
}

// ResetRecords forgets the records of ended requests and restarts the counters.
func (e *Engine) ResetRecords() { e.record.reset() }

// ResetCache forgets every cached block that no request holds.
func (e *Engine) ResetCache() {
	if inc := e.current(); inc != nil {
		for _, r := range inc.ranks {
			r.resetCache()
		}
	}
}

// Load is what an engine's ranks hold in all.
type Load struct {
	Running, Waiting  int
	HeldBlocks        int // by requests
	PromptTokens      int // computed
	OutputTokens      int
	CachedTokens      int // prompt tokens found in the cache
	Preemptions       int
	TransferredTokens int // prompt tokens whose KV came from another worker
}

// Load sums up the ranks; it is zero while the engine is down.
func (e *Engine) Load() Load {
	var sum Load
	inc := e.current()
	if inc == nil {
		return sum
	}
	for _, r := range inc.ranks {
		l := r.load()
		sum.Running += l.running
		sum.Waiting += l.waiting
		sum.HeldBlocks += l.held
		sum.PromptTokens += l.stats.promptTokens
		sum.OutputTokens += l.stats.generationTokens
		sum.CachedTokens += l.stats.prefixHits
		sum.Preemptions += l.stats.preemptions
		sum.TransferredTokens += l.stats.externalHits
	}
	return sum
}
