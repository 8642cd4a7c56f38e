package admin

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/dispatch"
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

// Handler serves the API. Requests that name another host than this machine are
// refused: a web page in a browser here could otherwise read it.
func Handler(d *dispatch.Dispatcher) http.Handler {
	r := chi.NewRouter()
	r.Use(localOnly)
	r.NotFound(openai.NotFound)
	r.MethodNotAllowed(openai.MethodNotAllowed)
	r.Get("/admin/explain/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, err := url.PathUnescape(chi.URLParam(r, "id"))
		placements := d.Explain(id)
		if err != nil || len(placements) == 0 {
			fail(w, http.StatusNotFound, "no such request among the last ones")
			return
		}
		answer(w, http.StatusOK, explanationOf(placements))
	})
	return r
}

func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			fail(w, http.StatusForbidden, "this API is for this machine only")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fault is an error as the API tells it.
type fault struct {
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
}

func fail(w http.ResponseWriter, status int, message string) {
	var f fault
	f.Error.Message = message
	answer(w, status, f)
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that left needs no answer
}
