package scripted

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/wire/kvevent"
)

// Limits of the HTTP server, by the machine's clock.
const (
	headerTimeout = 30 * time.Second
	bodyTimeout   = 60 * time.Second // from the headers to the end of the body
	writeTimeout  = 60 * time.Second // a client that reads nothing for so long is gone
	maxHeader     = 1 << 20
)

// incarnation is the engine from one start to the stop that follows it:
// everything that a crash forgets.
type incarnation struct {
	e          *Engine
	number     int
	id         string // the engine id in transfer parameters; new at each start
	started    time.Time
	ctx        context.Context // ends with the incarnation, which owns all that waits for it
	cancel     context.CancelFunc
	server     *http.Server
	ln         net.Listener
	ranks      []*rank
	publishers []*publisher
	kv         *kvTable
	peers      *http.Client
	tasks      sync.WaitGroup // everything that stop waits for

	mu       sync.Mutex
	stopped  bool
	conns    map[net.Conn]struct{}
	turn     int       // next rank to try
	stale    []byte    // frozen metrics
	scripted time.Time // when the script in force was set
}

func startIncarnation(ctx context.Context, e *Engine, ln net.Listener, number int) (*incarnation, error) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	inc := &incarnation{
		e: e, number: number, id: hex.EncodeToString(id[:]), started: e.opts.Clock.Now(),
		ln: ln, conns: map[net.Conn]struct{}{}, kv: newKVTable(),
		peers: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}},
	}
	inc.scripted = inc.started
	inc.ctx, inc.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for i := range e.opts.Ranks {
		inc.ranks = append(inc.ranks, newRank(i,
			limits{e.opts.MaxRunning, e.opts.MaxWaiting, e.opts.StepTokens},
			e.opts.Clock, e.opts.Timing, e.opts.Speed,
			newBlockCache(int(e.opts.KVBlocks), int(e.opts.BlockTokens), e.opts.HashSeed)))
	}
	if err := inc.openEvents(); err != nil {
		inc.cancel()
		return nil, err
	}
	for _, r := range inc.ranks {
		inc.tasks.Go(func() { r.run(inc.ctx) })
	}
	inc.server = &http.Server{
		Handler: inc, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader,
		IdleTimeout: e.play.Load().script.Server.IdleClose.D(), // zero is none
		BaseContext: func(net.Listener) context.Context { return inc.ctx },
		ConnState:   inc.connState, ErrorLog: silent(),
	}
	inc.tasks.Go(func() { _ = inc.server.Serve(ln) }) // ends with ErrServerClosed
	return inc, nil
}

// openEvents starts the publishers that the script asks for.
func (inc *incarnation) openEvents() error {
	script := inc.e.play.Load().script.Events
	if script.Publish == "" {
		return nil
	}
	for i, r := range inc.ranks {
		p, err := newPublisher(inc.ctx, inc.e, i, script)
		if err != nil {
			return errors.Join(err, inc.closeEvents())
		}
		inc.publishers = append(inc.publishers, p)
		r.publish = func(_ int, events []kvevent.Event) { p.publish(events) }
	}
	return nil
}

func (inc *incarnation) closeEvents() error {
	var errs []error
	for _, p := range inc.publishers {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// stop ends the incarnation as a crash does and waits for all its goroutines.
func (inc *incarnation) stop() {
	inc.mu.Lock()
	inc.stopped = true
	conns := make([]net.Conn, 0, len(inc.conns))
	for c := range inc.conns {
		conns = append(conns, c)
	}
	inc.mu.Unlock()
	_ = inc.ln.Close()
	for _, c := range conns {
		reset(c) // before anything can close them in good order
	}
	inc.cancel()
	_ = inc.server.Close()
	_ = inc.closeEvents()
	inc.tasks.Wait()
	inc.peers.CloseIdleConnections()
}

// enter counts a handler in; false once the incarnation has stopped.
func (inc *incarnation) enter() bool {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	if inc.stopped {
		return false
	}
	inc.tasks.Add(1)
	return true
}

// isStopped reports whether the incarnation is ending.
func (inc *incarnation) isStopped() bool {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.stopped
}

// connState follows connections, so that stop can reset them and idle ones end
// as the script says.
func (inc *incarnation) connState(c net.Conn, state http.ConnState) {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	switch state {
	case http.StateNew:
		inc.e.record.connected()
		inc.conns[c] = struct{}{}
		if inc.stopped {
			reset(c)
		}
	case http.StateIdle:
		inc.linger(c, 0)
	case http.StateClosed:
		delete(inc.conns, c)
	case http.StateActive:
		inc.linger(c, -1)
	case http.StateHijacked: // it is forgotten by its exchange
	}
}

// linger makes closing c a reset (0) or an orderly end (-1), where the script
// wants idle connections reset. The server closes them after IdleTimeout, but
// never one on which a request has begun: no real server does.
func (inc *incarnation) linger(c net.Conn, seconds int) {
	if t, ok := c.(*net.TCPConn); ok && inc.e.play.Load().script.Server.IdleReset {
		_ = t.SetLinger(seconds)
	}
}

func (inc *incarnation) forget(c net.Conn) {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	delete(inc.conns, c)
}

// reset closes c with RST where the transport can.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// ServeHTTP answers one request. /scripted is the engine's own door and is not
// recorded.
func (inc *incarnation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !inc.enter() {
		panic(http.ErrAbortHandler)
	}
	defer inc.tasks.Done()
	if strings.HasPrefix(r.URL.Path, "/scripted/") {
		inc.control(w, r)
		return
	}
	x, ok := newExchange(inc, w, r)
	if !ok {
		return
	}
	x.run() //nolint:contextcheck // the exchange carries the request's context
}

// pick chooses the rank of a request: the one it is pinned to, else the least
// loaded, ties in turn.
func (inc *incarnation) pick(pinned int) *rank {
	if pinned >= 0 {
		return inc.ranks[pinned]
	}
	inc.mu.Lock()
	first := inc.turn
	inc.turn = (inc.turn + 1) % len(inc.ranks)
	inc.mu.Unlock()
	best, least := inc.ranks[first], -1
	for i := range inc.ranks {
		r := inc.ranks[(first+i)%len(inc.ranks)]
		if n := r.depth(); least < 0 || n < least {
			best, least = r, n
		}
	}
	return best
}

// scriptChanged starts the phases of a new script.
func (inc *incarnation) scriptChanged() {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	inc.scripted = inc.e.opts.Clock.Now()
	inc.stale = nil
	script := inc.e.play.Load().script.Events
	for _, p := range inc.publishers {
		p.setScript(script)
	}
}
