package openai

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/server/sse"
)

// Config sets up the front door. Zero fields take their defaults.
type Config struct {
	// MaxBody is the largest request body; default 64 MiB.
	MaxBody unit.Bytes
	// MaxDepth is the deepest nesting of a body; default 128.
	MaxDepth int
	// MaxStops is the most stop strings of a request; default 64.
	MaxStops int
	// BodyTimeout is the longest that a body may take to arrive; default 60 s. A
	// short one gets less: 10 s and its size at 64 KiB/s.
	BodyTimeout time.Duration
	// Explain tells every client how its request was placed, not only those that
	// ask with the header x-yardmaster-explain: 1.
	Explain bool
	Stream  sse.Config
}

func (c Config) withDefaults() Config {
	if c.MaxBody == 0 {
		c.MaxBody = 64 << 20
	}
	if c.MaxDepth == 0 {
		c.MaxDepth = edge.DefaultMaxDepth
	}
	if c.MaxStops == 0 {
		c.MaxStops = 64
	}
	if c.BodyTimeout == 0 {
		c.BodyTimeout = time.Minute
	}
	return c
}

// Deps are what the front door needs.
type Deps struct {
	Dispatcher *dispatch.Dispatcher
	View       func() *fleet.View
	// Tenant says whose a request is, empty for nobody's, and the highest class that it
	// may claim, or why it is not served: an *errs.Error of kind Unauthorized. nil knows
	// no tenants, and nobody may claim more than Standard.
	Tenant func(*http.Request) (tenant string, highest admit.Class, err error)
	Clock  clock.Clock
	Log    *slog.Logger
}

// API serves the OpenAI routes.
type API struct {
	cfg     Config
	deps    Deps
	started int64 // unix seconds, the "created" of models
}

// New makes the front door.
func New(c Config, deps Deps) *API {
	return &API{cfg: c.withDefaults(), deps: deps, started: deps.Clock.Now().Unix()}
}

// Posts are the routes that engines serve, by path.
func (a *API) Posts() map[string]http.Handler {
	return map[string]http.Handler{
		"/v1/chat/completions": a.generation("chat_completions", "/v1/chat/completions"),
		"/v1/completions":      a.generation("completions", "/v1/completions"),
		embeddings:             a.generation("embeddings", embeddings),
	}
}

// Mount adds all routes to r.
func (a *API) Mount(r chi.Router) {
	for path, h := range a.Posts() {
		r.Method(http.MethodPost, path, h)
	}
	r.Get("/v1/models", a.listModels)
	r.Get("/v1/models/*", a.getModel)
}

// embeddings is the route that generates nothing.
const embeddings = "/v1/embeddings"

// Names of headers that clients see.
const (
	headerTrace     = "Traceparent" // W3C trace context
	headerRequestID = "X-Request-Id"
	headerExplain   = "X-Yardmaster-Explain" // request: 1 asks for headerPath
	headerPath      = "X-Yardmaster-Path"    // dispatch.Placement
	headerReason    = "X-Yardmaster-Reason"  // machine word of an error
	headerClass     = "X-Yardmaster-Class"   // request: background, batch, standard or critical
)

// Headers that other routers' clients send, in the order in which they count. Names
// are canonical.
var (
	sessionHeaders = [...]string{"X-Session-Id", "X-Dynamo-Session-Id"}
	firstHeaders   = [...]string{"X-Slo-Ttft-Ms", "X-Llm-D-Slo-Ttft-Ms"}
	betweenHeaders = [...]string{"X-Slo-Tpot-Ms", "X-Llm-D-Slo-Tpot-Ms"}
)

// explains reports whether this client is told how its request was placed.
func (a *API) explains(r *http.Request) bool {
	return a.cfg.Explain || r.Header.Get(headerExplain) == "1"
}
