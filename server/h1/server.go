package h1

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Config sets up a server. All fields but the durations are needed.
type Config struct {
	// Posts are the handlers of the POST routes that are served here, by exact
	// path. The request and its ResponseWriter are reused: neither they nor their
	// headers may be kept after the handler returns.
	Posts map[string]http.Handler
	// Behind serves the rest: its Handler is called here for ordinary requests, on
	// the connection as it is, and what is unusual is handed over to it. Its Serve,
	// Shutdown and Close are called here. Its ReadTimeout, WriteTimeout and hooks
	// do not count for what is served here.
	Behind *http.Server
	// Base is the context of every connection.
	Base context.Context //nolint:containedctx // it is what http.Server.BaseContext returns
	// ReadHeader is how long a request's header may take; default 10 s.
	ReadHeader time.Duration
	// Idle is how long a connection may wait for its next request; default 2 min.
	Idle time.Duration
}

// Server accepts and serves. It is safe for concurrent use.
type Server struct {
	cfg    Config
	behind *handoff

	last    atomic.Bool // connections end with the request they are serving
	closing atomic.Bool // no new connections
	mu      sync.Mutex
	watcher *watcher // made by Serve; nil where the kernel does not tell who left
	conns   map[*conn]struct{}
	lists   map[net.Listener]struct{}
	running sync.WaitGroup // connection goroutines

	buffers sync.Pool // of *[]byte, headBuffer long
	today   atomic.Pointer[stamp]
}

// New makes a server. Serve, then Shutdown or Close.
func New(c Config) *Server {
	if c.ReadHeader == 0 {
		c.ReadHeader = 10 * time.Second
	}
	if c.Idle == 0 {
		c.Idle = 2 * time.Minute
	}
	return &Server{
		cfg: c, behind: newHandoff(),
		conns: map[*conn]struct{}{}, lists: map[net.Listener]struct{}{},
		buffers: sync.Pool{New: func() any { b := make([]byte, headBuffer); return &b }},
	}
}

// Serve accepts connections on l, which it closes, until Shutdown or Close; then
// the error is http.ErrServerClosed.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		_ = l.Close()
		return http.ErrServerClosed
	}
	s.lists[l] = struct{}{}
	if s.watcher == nil {
		if s.watcher = newWatcher(); s.watcher != nil {
			// What follows on a connection that was handed over would be read by a
			// server that refuses less.
			s.cfg.Behind.SetKeepAlivesEnabled(false)
		}
	}
	w := s.watcher
	s.mu.Unlock()
	behind := make(chan struct{})
	s.behind.addr.Store(&addrBox{l.Addr()})
	go func() {
		defer close(behind)
		_ = s.cfg.Behind.Serve(s.behind.listener()) // its end is ours
	}()
	err := s.accept(l, w)
	if s.closing.Load() {
		err = http.ErrServerClosed
	} else {
		_ = s.cfg.Behind.Close()
	}
	<-behind
	return err
}

// accept takes connections until l fails. Running out of file descriptors is no
// failure: it waits for some to come back.
func (s *Server) accept(l net.Listener, w *watcher) error {
	var wait time.Duration
	for {
		raw, err := l.Accept()
		if err != nil {
			if s.closing.Load() || !shortage(err) {
				return err
			}
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			time.Sleep(wait)
			continue
		}
		wait = 0
		tcp, ok := raw.(*net.TCPConn)
		if !ok || w == nil {
			s.behind.pass(raw)
			continue
		}
		c := newConn(s, w, tcp)
		if !s.enter(c) {
			_ = raw.Close()
			continue
		}
		go c.run()
	}
}

// shortage reports whether accepting failed for want of something that comes
// back.
func shortage(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.conns[c] = struct{}{}
	s.running.Add(1)
	return true
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.running.Done()
}

// CloseAfterReply makes every connection end with the request it is serving.
func (s *Server) CloseAfterReply() {
	s.last.Store(true)
	s.cfg.Behind.SetKeepAlivesEnabled(false)
}

// unused is how long a connection may stand open without a byte before a
// shutdown takes it for idle: its request may be on the way.
const unused = time.Second

// Shutdown closes the listeners and idle connections and waits until the
// requests in progress are answered, those behind included. When ctx ends first
// it returns ctx's error, and the requests go on.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopAccepting()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for s.closeIdle() > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
	s.running.Wait()
	s.stopWatching()
	return s.cfg.Behind.Shutdown(ctx)
}

// Close cuts every connection. It does not wait for the handlers, whose contexts
// end.
func (s *Server) Close() error {
	s.stopAccepting()
	s.mu.Lock()
	for c := range s.conns {
		c.cut()
	}
	s.mu.Unlock()
	err := s.cfg.Behind.Close()
	s.stopWatching()
	return err
}

func (s *Server) stopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.Store(true)
	s.closing.Store(true)
	for l := range s.lists {
		_ = l.Close()
	}
	clear(s.lists)
}

func (s *Server) stopWatching() {
	s.mu.Lock()
	w := s.watcher
	s.watcher = nil
	s.mu.Unlock()
	if w != nil {
		w.close()
	}
}

// closeIdle closes what is idle and counts what is not.
func (s *Server) closeIdle() (busy int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if !c.closeIfIdle() {
			busy++
		}
	}
	return busy
}
