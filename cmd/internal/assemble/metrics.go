package assemble

import (
	"net/http"

	"github.com/yardmaster/yardmaster/server/metrics"
)

// withMetrics serves the process's metrics beside an engine's API.
func withMetrics(p Process, api http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(p.Registry))
	mux.Handle("/", api)
	return mux
}
