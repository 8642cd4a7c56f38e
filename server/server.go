package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/server/h1"
	"github.com/yardmaster/yardmaster/server/metrics"
	"github.com/yardmaster/yardmaster/server/openai"
)

// Config sets up a server. Zero fields take their defaults.
type Config struct {
	OpenAI openai.Config
	// ReadHeader is how long a request's header may take; default 10 s.
	ReadHeader time.Duration
	// Idle is how long an unused client connection is kept; default 2 min.
	Idle time.Duration
	// MaxHeader is the largest request header in bytes; default 64 KiB.
	MaxHeader int
	// Unready is how long a drain waits with readiness off before it stops
	// accepting, for load balancers to notice; default 0.
	Unready time.Duration
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var faults []error
	for _, f := range []struct {
		bad  bool
		text string
	}{
		{c.OpenAI.MaxBody < 0, "largest body is negative"},
		{c.OpenAI.MaxDepth < 0, "deepest nesting is negative"},
		{c.OpenAI.MaxStops < 0 || c.OpenAI.MaxStops > edge.MaxStops, "most stop strings is negative or above 4096"},
		{c.OpenAI.BodyTimeout < 0, "body timeout is negative"},
		{c.OpenAI.Stream.WriteTimeout < 0, "write timeout is negative"},
		{c.ReadHeader < 0, "header timeout is negative"},
		{c.Idle < 0, "idle timeout is negative"},
		{c.MaxHeader < 0, "largest header is negative"},
		{c.Unready < 0, "unready wait is negative"},
	} {
		if f.bad {
			faults = append(faults, errors.New(f.text))
		}
	}
	return errors.Join(faults...)
}

// Check is one condition of readiness.
type Check struct {
	Name string
	// Ready returns nil, or why not, in words fit for anyone who can reach the
	// listener.
	Ready func() error
	// News, if not nil, is what a verbose report says of it while it passes; it may
	// be empty.
	News func() string
}

// Deps are what a server needs of its surroundings.
type Deps struct {
	Dispatcher *dispatch.Dispatcher
	View       func() *fleet.View // never returns nil
	// Tenant says whose a request is, and how urgent it may be; see [openai.Deps].
	Tenant   func(*http.Request) (string, admit.Class, error)
	Registry *measure.Registry
	Clock    clock.Clock
	Log      *slog.Logger
	// Answers reports whether a worker answers, as far as the fleet knows; nil
	// when every registered worker does.
	Answers func(fleet.WorkerID) bool
	// Absent is what readiness says while there is no worker at all; default "no
	// worker is registered".
	Absent string
	// Checks must pass, besides "a worker can generate" and "not draining", for
	// the server to be ready.
	Checks []Check
}

// Server is a gateway's listener side. It is safe for concurrent use.
type Server struct {
	cfg      Config
	deps     Deps
	http     *http.Server // behind front
	front    *h1.Server
	api      *openai.API
	cut      context.CancelCauseFunc // ends every running request
	draining atomic.Bool
	requests tracker
	memory   *memory
}

// New makes a server, or reports every fault of the configuration.
func New(c Config, deps Deps) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if c.ReadHeader == 0 {
		c.ReadHeader = 10 * time.Second
	}
	if c.Idle == 0 {
		c.Idle = 2 * time.Minute
	}
	if c.MaxHeader == 0 {
		c.MaxHeader = 64 << 10
	}
	base, cut := context.WithCancelCause(context.Background())
	s := &Server{cfg: c, deps: deps, cut: cut}
	s.memory = newMemory(&s.requests)
	s.api = openai.New(c.OpenAI, openai.Deps{
		Tenant:     deps.Tenant,
		Dispatcher: deps.Dispatcher, View: deps.View, Clock: deps.Clock, Log: deps.Log,
	})
	s.http = &http.Server{
		Handler:           s.count(s.routes()),
		ReadHeaderTimeout: c.ReadHeader,
		IdleTimeout:       c.Idle,
		MaxHeaderBytes:    c.MaxHeader,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(deps.Log.Handler(), slog.LevelDebug),
		// No ReadTimeout and no WriteTimeout: they would bound whole streams.
		// Bodies and writes have deadlines of their own.
	}
	posts := map[string]http.Handler{}
	for path, h := range s.api.Posts() {
		posts[path] = s.count(h)
	}
	s.front = h1.New(h1.Config{Posts: posts, Behind: s.http, Base: base, ReadHeader: c.ReadHeader, Idle: c.Idle})
	return s, nil
}

func (s *Server) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.GetHead) // probes ask with HEAD
	r.NotFound(openai.NotFound)
	r.MethodNotAllowed(openai.MethodNotAllowed)
	s.api.Mount(r)
	r.Get("/livez", s.livez)
	r.Get("/readyz", s.readyz)
	r.Get("/health", s.readyz)
	r.Method(http.MethodGet, "/metrics", metrics.Handler(s.deps.Registry))
	return r
}

// Handler is the whole API, for tests and for other listeners.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// count keeps track of running requests and turns a panic of ours into an
// answer. net/http would only close the connection.
func (s *Server) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.enter()
		s.memory.began(unit.Bytes(r.ContentLength))
		defer func() {
			s.requests.leave()
			s.memory.ended(unit.Bytes(r.ContentLength))
		}()
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v)
			default:
				s.deps.Log.Error("a handler panicked", "path", r.URL.Path, "panic", fmt.Sprint(v))
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// Serve accepts connections on l until Drain or Close, and then returns nil. It
// closes l.
func (s *Server) Serve(l net.Listener) error {
	s.memory.start(s.deps.Clock)
	if err := s.front.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// lastWords is how long cut requests may take to say so.
const lastWords = time.Second

// Drain stops in order: readiness off, no new connections, running requests end.
// When ctx ends first, what still runs is told that the gateway is shutting
// down, and is cut; then the error is ctx's.
func (s *Server) Drain(ctx context.Context) error {
	s.draining.Store(true)
	s.front.CloseAfterReply()
	if s.cfg.Unready > 0 {
		t := s.deps.Clock.NewTimer(s.cfg.Unready)
		defer t.Stop()
		select {
		case <-t.C():
		case <-ctx.Done():
		}
	}
	if err := s.front.Shutdown(ctx); err != nil {
		s.Close() //nolint:contextcheck // ctx is over, and last words need time of their own
		return fmt.Errorf("server: drain: %w", err)
	}
	s.memory.close()
	s.cut(nil)
	return nil
}

// Close ends every request now: streams get a last event that says why. It
// returns when they have ended, or when two more seconds did not end them.
func (s *Server) Close() {
	s.draining.Store(true)
	s.cut(&errs.Error{Kind: errs.NoCapacity, Client: "the gateway is shutting down", Code: "shutting_down"})
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	_ = s.front.Shutdown(ctx) // it waits for answers to be on their way, not only for handlers
	_ = s.front.Close()
	s.requests.wait(lastWords)
	s.memory.close()
}
