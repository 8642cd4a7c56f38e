package scrape

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/server/metrics"
)

func TestSumOfWhatAProcessExports(t *testing.T) {
	var r measure.Registry
	r.Counter(measure.PhaseBusy, "prefill").Add(1.5)
	r.Counter(measure.PhaseBusy, "decode").Add(2)
	r.Gauge(measure.EngineRunning).Set(3)
	r.Histogram(measure.TransferExposed, "tcp").Observe(0.25)
	r.Histogram(measure.TransferExposed, "tcp").Observe(0.5)
	srv := httptest.NewServer(metrics.Handler(&r))
	defer srv.Close()
	m, err := Read(t.Context(), srv.Client(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		desc   measure.Desc
		values []string
		want   float64
	}{
		{measure.PhaseBusy, nil, 3.5},
		{measure.PhaseBusy, []string{"prefill"}, 1.5},
		{measure.PhaseBusy, []string{"neither"}, 0},
		{measure.EngineRunning, nil, 3},
		{measure.TransferExposed, []string{"tcp"}, 0.75},
		{measure.Recomputes, nil, 0},
	} {
		if got := m.Sum(tt.desc, tt.values...); got != tt.want {
			t.Errorf("%s %v: got %v, want %v", tt.desc.Name, tt.values, got, tt.want)
		}
	}
}

func TestReadFailures(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"status":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"garbage": func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{{{")) }, //nolint:errcheck // a test's server
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(handler)
			defer srv.Close()
			if _, err := Read(t.Context(), srv.Client(), srv.URL); err == nil {
				t.Error("no error")
			}
		})
	}
}
