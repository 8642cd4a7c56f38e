package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/native/nativetest"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// scored is what a policy makes of some fleet, the same for the same seed.
func scored(p Policy, seed uint64) []float64 {
	rng := rand.New(rand.NewPCG(seed, 0))
	const n = 12
	c := columns(n)
	upTo := func(most float64) float64 { return math.Floor(rng.Float64() * most) }
	for i := range n {
		c.Requests[i], c.Queued[i], c.Hit[i], c.Active[i] = upTo(12), upTo(30000), upTo(4000), upTo(500)
		c.Siblings[i], c.Share[i], c.Running[i], c.Waiting[i] = upTo(c.Requests[i]), rng.Float64(), upTo(9), upTo(9)
		c.Rate[i], c.Capacity[i], c.Step[i], c.TokenBytes[i] = 1+upTo(9000), 1000, rng.Float64(), 1000
		c.Group[i], c.Adapters[i], c.AdapterSlots[i], c.Lately[i] = 1, 2, 1, upTo(1000)
		c.Missed[i], c.Found[i] = upTo(90000), upTo(90000)
	}
	q := &Query{Prompt: 4000, BlockTokens: 16, Draw: rng.Uint64()}
	for range 250 {
		q.Chain = append(q.Chain, prefix.Hash(rng.Uint64()))
	}
	cost := make([]float64, n)
	p.Score(q, c, cost)
	return cost
}

// A parameter's stated default is what the policy does without it, and each
// parameter does something.
func TestTune(t *testing.T) {
	nativetest.Tune(t, Policies(), PolicyWith, func(p Policy) string {
		var out strings.Builder
		for seed := range uint64(200) {
			fmt.Fprintln(&out, scored(p, seed))
		}
		return out.String()
	})
	p, err := PolicyNamed("sticky=2(hold=40 max_wait_seconds=.5), kv-cost(requests=3)")
	if err != nil {
		t.Fatal(err)
	}
	parts := p.(Blend).Parts
	if s := parts[0].Policy.(Sticky); s.Hold != 40 || s.MaxWait.Seconds() != .5 || parts[0].Weight != 2 {
		t.Errorf("%+v", parts[0])
	}
	if k := parts[1].Policy.(KVCost); k.Requests != 3 || k.Scale != 8 {
		t.Errorf("%+v", parts[1])
	}
	if p, err := PolicyNamed("sticky(hold=0)"); err == nil {
		t.Errorf("%+v", p)
	}
}
