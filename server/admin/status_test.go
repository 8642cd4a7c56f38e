package admin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/measure"
)

func TestStatus(t *testing.T) {
	registry := &measure.Registry{}
	registry.Counter(measure.LeaseExpiries).Inc()
	var fault error
	h := Handler(Parts{Registry: registry, Ready: func() error { return fault }})
	get := func(host, path string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+path, http.NoBody)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]string{"/livez": "ok", "/readyz": "ok", "/metrics": measure.LeaseExpiries.Name} {
		if status, body := get("127.0.0.1:1", path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	fault = errors.New("no leader")
	if status, body := get("localhost", "/readyz"); status != http.StatusServiceUnavailable || body != "no leader\n" {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := get("localhost", "/livez"); status != http.StatusOK {
		t.Errorf("livez is %d", status)
	}
	if status, body := get("localhost", "/admin/cluster/status"); status != http.StatusNotFound || !strings.Contains(body, "no_cluster") {
		t.Errorf("outside a cluster: %d %s", status, body)
	}
	if status, body := get("localhost", "/admin/explain/x"); status != http.StatusNotFound || !strings.Contains(body, "no_gateway") {
		t.Errorf("without a gateway: %d %s", status, body)
	}
	if status, _ := get("evil.example", "/metrics"); status != http.StatusForbidden {
		t.Errorf("another host gets %d", status)
	}
}
