package admin

import (
	"io"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/server/metrics"
)

// mountStatus serves the probes and metrics of a process that has no client API
// to serve them.
func mountStatus(r chi.Router, registry *measure.Registry, ready func() error) {
	r.Get("/livez", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	r.Get("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			say(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		say(w, http.StatusOK, "ok")
	})
	r.Method(http.MethodGet, "/metrics", metrics.Handler(registry))
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a client that left needs no answer
}
