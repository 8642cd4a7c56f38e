package assemble

import (
	"io"
	"net/http"

	"github.com/yardmaster/yardmaster/server/metrics"
)

// alive says that the process serves.
func alive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n") // an error here means that the client left
}

// beside serves the process's metrics and probes beside an engine's API, whose
// /health says whether it takes requests.
func beside(p Process, api http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(p.Registry))
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		asked := r.Clone(r.Context())
		asked.URL.Path = "/health"
		api.ServeHTTP(w, asked)
	})
	mux.Handle("/", api)
	return mux
}
