package dispatch

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

// What a decode worker calls cached may have been moved to it: cached is what the
// prefill worker found.
func TestCachedTokensOfTwoLegs(t *testing.T) {
	const decoded = `data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":999}}}` + "\n\n"
	prefilled := func(details string) string {
		return `{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":1` + details + `}}`
	}
	for name, tt := range map[string]struct {
		prefill, kv string
		want        float64
		known       bool
	}{
		"moved":      {prefilled(`,"prompt_tokens_details":{"cached_tokens":64}`), "moved", 64, true},
		"lied":       {prefilled(`,"prompt_tokens_details":{"cached_tokens":6400}`), "moved", 1000, true},
		"unsaid":     {prefilled(``), "moved", 0, false},
		"no usage":   {`{}`, "", 0, false},
		"too long":   {strings.Repeat(" ", 100<<10) + prefilled(`,"prompt_tokens_details":{"cached_tokens":64}`), "", 0, false},
		"local":      {prefilled(`,"prompt_tokens_details":{"cached_tokens":0}`), "local", 999, true},
		"recomputed": {prefilled(`,"prompt_tokens_details":{"cached_tokens":0}`), "recomputed; timeout", 999, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := pairOf(t)
				decode := streamOf(evRole, evHi, evHi, evHi, evStop, decoded, evDone)
				decode.kv = tt.kv
				y.plays(map[fleet.WorkerID]script{"p": {status: 200, plain: true, body: []part{{text: tt.prefill}}}, "d": decode})
				s := sink{write: func([]byte) { synctest.Wait() }} // the prefill leg gets to its end first
				o := y.serve(t.Context(), long(), &s)
				if o.Name != "ok" || o.Placement.Path != "disaggregated" || o.Usage.CachedKnown != tt.known || float64(o.Usage.Cached) != tt.want {
					t.Errorf("%s: %+v", o.Name, o.Usage)
				}
				if got := y.counter(measure.CachedTokens); got != tt.want {
					t.Errorf("counted %v, want %v", got, tt.want)
				}
				y.balanced()
			})
		})
	}
}
