package e2e

import (
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/core/measure"
)

// TestDisaggregatedTextIsAggregatedText asks the same greedy questions of a
// disaggregated system and of one worker alone: the texts must be equal, token
// for token, and the KV must really have moved.
func TestDisaggregatedTextIsAggregatedText(t *testing.T) {
	s := startStack(t)
	alone := startStack(t, assemble.DevWorker{ID: "both-0", Role: "both"})
	c := client(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 15, 16, 17, 100, 511, 1200} {
		p := prompt(random, n)
		apart := complete(t.Context(), c, s.Gateway.URL(), s.Model(), p, 24)
		together := complete(t.Context(), c, alone.aggregating.URL(), alone.Model(), p, 24)
		if !apart.whole || !together.whole {
			t.Fatalf("prompt of %d tokens: disaggregated %+v, aggregated %+v", n, apart, together)
		}
		if apart.text == "" || apart.text != together.text {
			t.Errorf("prompt of %d tokens: disaggregated text %q, aggregated %q", n, apart.text, together.text)
		}
		// Up to one block there is nothing whose move would pay.
		if want := map[bool]string{true: "kv=moved", false: "kv=local"}[n > 16]; !strings.HasPrefix(apart.path, "disaggregated") || !strings.Contains(apart.path, want) {
			t.Errorf("prompt of %d tokens was placed %q", n, apart.path)
		}
		if !strings.HasPrefix(together.path, "aggregated") {
			t.Errorf("prompt of %d tokens was placed %q", n, together.path)
		}
	}
	decode, _ := s.Worker("decode-0")
	if moved := metric(t, c, decode.URL, measure.TransferBytes, "received"); moved == 0 {
		t.Error("no KV was moved")
	}
	if again := metric(t, c, decode.URL, measure.Recomputes); again != 0 {
		t.Errorf("%v prompts were recomputed", again)
	}
	s.idle(t, c)
	alone.idle(t, c)
}

// TestSeveralPrompts asks for several prompts in one request, of a gateway that
// disaggregates whatever it can: every prompt is answered, and a single one in a
// list is disaggregated like any other.
func TestSeveralPrompts(t *testing.T) {
	s := startStack(t)
	c := client(t)
	more := map[string]int{"": 1, `,"stream":true`: 1, `,"n":2`: 2} // answers to each prompt
	for prompts, n := range map[string]int{`["a","b"]`: 2, `[[1],[2],[3]]`: 3, `["a"]`: 1, `[[1,2]]`: 1, `[1,2]`: 1} {
		for more, each := range more {
			body := `{"model":"` + s.Model() + `","max_tokens":3,"ignore_eos":true,"prompt":` + prompts + more + "}"
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Gateway.URL()+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Yardmaster-Explain", "1")
			resp, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			path, want := resp.Header.Get("X-Yardmaster-Path"), "disaggregated"
			if n > 1 {
				want = "aggregated; reason=many_prompts"
			}
			if err != nil || resp.StatusCode != http.StatusOK || strings.Count(string(text), `"finish_reason":"length"`) != n*each || !strings.HasPrefix(path, want) {
				t.Errorf("%s: %d by %q: %s %v", body, resp.StatusCode, path, text, err)
			}
		}
	}
	s.idle(t, c)
}
