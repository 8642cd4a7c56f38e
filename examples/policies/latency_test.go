package policies

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/yardmaster/yardmaster/policies/golden"
)

// What the observer learns from noisy outcomes lets the router find the worker whose
// first token really comes first.
func TestLatencyIsLearnt(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	truth := func(uncached, requests float64) float64 { return 35 + uncached*0.08 + 9*requests }
	learner := open(t, "latency/learner")
	state := golden.State{}
	for range 20 {
		c := &golden.Call{Request: object(map[string]int{"leader": 1}), Columns: map[string][]*float64{}}
		for range 100 {
			prompt, requests := float64(random.IntN(20_000)), float64(random.IntN(40))
			hit := float64(int(prompt * random.Float64()))
			seen := truth(prompt-hit, requests) * (0.8 + 0.4*random.Float64())
			for name, v := range map[string]float64{"outcome": 0, "prompt_tokens": prompt, "hit_tokens": hit, "requests": requests, "ttft_ms": seen} {
				c.Columns[name] = append(c.Columns[name], &v)
			}
		}
		got, _, err := learner.Call(c)
		if err != nil || got.Fault != "" {
			t.Fatalf("%+v, %v", got, err)
		}
		state = got.State
	}
	router, err := program(t, "latency/router").Open(nil, state)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := router.Close(); err != nil {
			t.Error(err)
		}
	}()
	const decisions = 300
	wrong := 0
	for range decisions {
		prompt, rows := random.IntN(20_000), 8
		c := &golden.Call{Request: fmt.Appendf(nil, `{"prompt":%d}`, prompt), Columns: map[string][]*float64{}}
		best, least := -1, 0.0
		var times []float64
		for row := range rows {
			hit, queued, requests := float64(int(float64(prompt)*random.Float64())), float64(random.IntN(8000)), float64(random.IntN(40))
			for name, v := range map[string]float64{"hit_tokens": hit, "queued_tokens": queued, "requests": requests} {
				c.Columns[name] = append(c.Columns[name], &v)
			}
			took := truth(queued+float64(prompt)-hit, requests)
			times = append(times, took)
			if best < 0 || took < least {
				best, least = row, took
			}
		}
		got, _, err := router.Call(c)
		if err != nil || got.Pick == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		if *got.Pick != best && times[*got.Pick] > least*1.02 {
			wrong++
		}
	}
	if wrong > decisions/50 {
		t.Errorf("%d of %d picks were more than 2 %% slower than the best", wrong, decisions)
	}
}
