package admin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/server/openai"
)

// ErrPublic means that an address could be reached from other machines.
var ErrPublic = errors.New("the admin API does not authenticate: use a loopback address such as 127.0.0.1:8091")

// CheckAddress accepts host:port whose host is a loopback address or localhost.
// Errors: [ErrPublic].
func CheckAddress(hostport string) error {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	if host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("%q: %w", hostport, ErrPublic)
	}
	return nil
}

// Parts are what there is to operate. Each may be absent; its paths then answer
// that it is.
type Parts struct {
	// Dispatcher is this process's gateway; it may be nil, and return nil.
	Dispatcher func() *dispatch.Dispatcher
	// Workers lists the fleet by id, as this process knows it.
	Workers func() []Worker
	// Ready, if not nil, has /livez, /readyz and /metrics served here, for a
	// process without a client API that would. It says why the process cannot do
	// its work, nil when it can.
	Ready    func() error
	Registry *measure.Registry // required with Ready or Cluster
	Cluster  Cluster           // nil outside a cluster
	Policies Policies          // nil where none can be bound
	Quotas   Quotas            // nil where none are kept
	Scale    Scale             // nil where no pools are sized
	// About is what a debug bundle tells of the process besides.
	About About
}

// Handler serves the API. Requests that name another host than this machine are
// refused: a web page in a browser here could otherwise read it.
func Handler(p Parts) http.Handler {
	r := chi.NewRouter()
	r.Use(localOnly, deliberate, middleware.GetHead)
	r.NotFound(openai.NotFound)
	r.MethodNotAllowed(openai.MethodNotAllowed)
	r.Get("/admin/explain/{id}", p.explain)
	r.Get("/admin/workers", p.workers)
	(&clusterAPI{cluster: p.Cluster, registry: p.Registry, about: p.About}).mount(r)
	(&policiesAPI{p.Policies}).mount(r)
	(&scaleAPI{p.Scale}).mount(r)
	(&quotasAPI{p.Quotas}).mount(r)
	if p.Ready != nil {
		mountStatus(r, p.Registry, p.Ready)
	}
	return r
}

func (p *Parts) explain(w http.ResponseWriter, r *http.Request) {
	var d *dispatch.Dispatcher
	if p.Dispatcher != nil {
		d = p.Dispatcher()
	}
	if d == nil {
		fail(w, http.StatusNotFound, "no_gateway", "this process has no gateway: ask the one that served the request")
		return
	}
	id, err := pathParam(r, "id")
	placements := d.Explain(id)
	if err != nil || len(placements) == 0 {
		fail(w, http.StatusNotFound, "not_found", "no such request among the last ones")
		return
	}
	answer(w, http.StatusOK, explanationOf(placements))
}

func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			fail(w, http.StatusForbidden, "not_local", "this API is for this machine only")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// pathParam is a part of the path, unescaped. The router has unescaped it already where
// the path needs no form of its own to be kept in.
func pathParam(r *http.Request, name string) (string, error) {
	text := chi.URLParam(r, name)
	if r.URL.RawPath == "" {
		return text, nil
	}
	return url.PathUnescape(text)
}

// Intent is the header that a change must carry, with a value that means yes.
const Intent = "X-Yardmaster-Admin"

// deliberate refuses changes that a web page could have sent: a page of another
// origin cannot set a header of its own without asking first, and nobody here
// answers that question. Browsers' own word of where a request comes from is
// heeded too.
func deliberate(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, "cross_origin", "a web page may not change the cluster")
	}))
	return origin.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead:
		default:
			if !meansYes(r.Header.Get(Intent)) {
				fail(w, http.StatusForbidden, "no_intent", "a change needs the header "+Intent+": 1, which a web page cannot send")
				return
			}
		}
		next.ServeHTTP(w, r)
	}))
}

// meansYes reports whether a header says neither nothing nor no.
func meansYes(value string) bool {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "0", "f", "false", "n", "no", "off":
		return false
	}
	return true
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	w.Header()["Cache-Control"] = []string{"no-store"}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that left needs no answer
}
