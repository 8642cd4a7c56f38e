package assemble

import "net/http"

func withMetrics(p Process, next http.Handler) http.Handler { return next }
