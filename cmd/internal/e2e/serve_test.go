package e2e

import (
	"math/rand/v2"
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
