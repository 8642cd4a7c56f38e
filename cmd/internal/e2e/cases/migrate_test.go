package cases

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// Cases 8 and 24, engines that take tokens: a stream whose worker is lost goes
// on elsewhere, and its client sees one stream: the right text, one finish
// reason, one usage event, no field that it did not ask for.
func TestALostStreamGoesOnAsOneStream(t *testing.T) {
	t.Parallel()
	const question = `{"model":"scripted","stream":true,"stream_options":{"include_usage":true},"prompt":"hello there","max_tokens":40,"ignore_eos":true}`
	alone := ask(t.Context(), newClient(t), one(t, "").URL()+completionPath, question)
	for _, how := range []string{"reset", "close", "end"} {
		for _, tokens := range []int{1, 7, 30} {
			t.Run(fmt.Sprintf("%s/%d", how, tokens), func(t *testing.T) {
				t.Parallel()
				// Each first answer of either engine breaks off after some events.
				breaks := fmt.Sprintf(`rules: [{match: {route: /v1/comp*}, times: 1, do: {cut: {at: %d, how: %s}}}]`, 230*tokens+100, how)
				f := newFleet()
				a, b := one(t, breaks), one(t, "")
				f.register("a", fleet.RoleBoth, a)
				f.register("b", fleet.RoleBoth, b, func(w *fleet.Worker) { w.Draining = true })
				g := serveFleet(t, f, func(c *config.Gateway) { c.HoldTime = patience })
				f.register("b", fleet.RoleBoth, b)
				for range 4 { // both are known to continue streams, and a is met
					r := g.ask(completionPath, question)
					wantGood(t, r)
					checkOneStream(t, r, alone)
				}
				broken := 0
				for _, r := range asked(a) {
					if r.Outcome == scripted.Broken {
						broken++
					}
				}
				if broken != 1 {
					t.Errorf("%d streams were lost, want 1", broken)
				}
			})
		}
	}
}

func checkOneStream(t *testing.T, r, alone reply) {
	t.Helper()
	if r.text() != alone.text() {
		t.Errorf("text %q, want %q", r.text(), alone.text())
	}
	finishes, usages := 0, 0
	for _, e := range r.events() {
		if gjson.Get(e, "choices.0.finish_reason").Type == gjson.String {
			finishes++
		}
		if gjson.Get(e, "usage.prompt_tokens").Exists() {
			usages++
		}
	}
	if finishes != 1 || usages != 1 || strings.Contains(r.body, "token_ids") {
		t.Errorf("%d finish reasons, %d usage events: %s", finishes, usages, r.body)
	}
}
