package metrics

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/yardmaster/yardmaster/core/measure"
)

func TestRendering(t *testing.T) {
	var r measure.Registry
	r.Counter(measure.Desc{Name: "a_total", Type: measure.CounterType, Labels: []string{"l"}, Help: "A."}, "x\"\n\\").Add(2)
	r.Gauge(measure.Desc{Name: "b", Type: measure.GaugeType, Help: "B."}).Set(-1.5)
	h := r.Histogram(measure.Desc{Name: "c_seconds", Type: measure.HistogramType, Buckets: []float64{1, 2}, Help: "C."})
	for _, v := range []float64{.5, 1.5, 1.5, 9} {
		h.Observe(v)
	}
	rec := httptest.NewRecorder()
	Handler(&r).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	body, _ := io.ReadAll(rec.Body)
	for _, want := range []string{
		"# HELP a_total A.\n# TYPE a_total counter\na_total{l=\"x\\\"\\n\\\\\"} 2\n",
		"# TYPE b gauge\nb -1.5\n",
		"# TYPE c_seconds histogram\nc_seconds_bucket{le=\"1\"} 1\nc_seconds_bucket{le=\"2\"} 3\nc_seconds_bucket{le=\"+Inf\"} 4\nc_seconds_sum 12.5\nc_seconds_count 4\n",
		"go_goroutines ",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("lacks %q", want)
		}
	}
}

// A label that is not UTF-8 spoils its own series, not the scrape.
func TestBadLabel(t *testing.T) {
	var r measure.Registry
	d := measure.Desc{Name: "a_total", Type: measure.CounterType, Labels: []string{"l"}, Help: "A."}
	r.Counter(d, "\xff").Inc()
	r.Counter(d, "good").Inc()
	rec := httptest.NewRecorder()
	Handler(&r).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if !strings.Contains(rec.Body.String(), `a_total{l="good"} 1`) {
		t.Errorf("%d %s", rec.Code, rec.Body.String()[:200])
	}
}

func TestCatalogIsAcceptable(t *testing.T) {
	var r measure.Registry
	r.Counter(measure.Requests, "m", "chat", "ok").Inc()
	r.Histogram(measure.TTFT, "m", "aggregated").Observe(1)
	r.Gauge(measure.WorkerInFlight, "w", "decode").Set(1)
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(Collector{&r}); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
}
