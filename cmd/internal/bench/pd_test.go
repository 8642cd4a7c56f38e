package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/server/metrics"
)

// fakeLine answers like a gateway and two workers that spend made-up times.
func fakeLine(t *testing.T, path string) PDTarget {
	t.Helper()
	var prefill, decode measure.Registry
	gateway := func(path string, work func(tokens int)) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body struct{ Prompt []int }
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			work(len(body.Prompt))
			w.Header().Set("X-Yardmaster-Path", path)
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]\n\n")
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	worker := func(r *measure.Registry) string {
		srv := httptest.NewServer(metrics.Handler(r))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	return PDTarget{
		Disaggregated: gateway(path, func(tokens int) {
			prefill.Counter(measure.PhaseBusy, "prefill").Add(float64(tokens))
			prefill.Histogram(measure.TransferExposed, "tcp").Observe(0.5)
			decode.Counter(measure.TransferBytes, "tcp", "received").Add(1000)
		}),
		Aggregated: gateway("aggregated; reason=off", func(tokens int) {
			decode.Counter(measure.PhaseBusy, "prefill").Add(float64(tokens))
		}),
		Prefill: worker(&prefill), Decode: worker(&decode), Model: "m", Vocab: 10,
	}
}

func TestPDTakesTheTimesApart(t *testing.T) {
	target := fakeLine(t, "disaggregated; kv=moved")
	r, err := PD(t.Context(), target, PDOptions{Prompts: []int{4, 8}, Runs: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i, tokens := range []float64{4, 8} {
		p := r.Prompts[i]
		if p.Prefill != 1000*tokens || p.ExposedTransfer != 500 || p.ExposedTransferShare != 0.5/tokens || p.TransferredBytes != 1000 {
			t.Errorf("%+v", p)
		}
		// What is told to be compute or transfer is taken off the real time.
		if rest := p.ControlDisaggregated + 1000*tokens + 500; rest < 0 || rest > 10_000 {
			t.Errorf("control is %v", p.ControlDisaggregated)
		}
	}
	if r.ExposedTransferShare != 0.125 || r.ControlOverheadMS < 0 {
		t.Errorf("%+v", r)
	}
}

func TestPDRefusesWhatWasPlacedOtherwise(t *testing.T) {
	for _, path := range []string{"aggregated; reason=prefill_busy", "disaggregated; kv=recomputed, timeout"} {
		if _, err := PD(t.Context(), fakeLine(t, path), PDOptions{Prompts: []int{4}, Runs: 1}); !errors.Is(err, ErrNotMeasured) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
