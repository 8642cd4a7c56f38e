package cases

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// share is how many requests each engine got.
func share(engines []*scripted.Engine) []int { return shareOf(engines, "") }

// shareOf is how many requests with word in their body each engine got. A record
// is entered when a request has ended, which may be after its client went on.
func shareOf(engines []*scripted.Engine, word string) []int {
	out := make([]int, len(engines))
	for i, e := range engines {
		for _, r := range asked(e) {
			if strings.Contains(string(r.Body), word) {
				out[i]++
			}
		}
	}
	return out
}

func sum(n []int) (total int) {
	for _, v := range n {
		total += v
	}
	return total
}

// Case 13. Symptom: a miss goes to the worker with the smallest tree, however
// loaded it is; one path never counts load, so the first worker takes all.
// Right: what nobody holds goes where least is going on, on every path.
func TestMissesGoToTheIdleWorker(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"sticky", "kv-cost", "lmetric", "least-request", "bounded-hash"} {
		for path, extra := range map[string]string{"streamed": `,"stream":true`, "whole": ""} {
			t.Run(policy+"/"+path, func(t *testing.T) {
				t.Parallel()
				slow, fast := one(t, `rules: [{match: {route: /v1/comp*}, do: {generate: {tokens: 4, first_token: 400ms}}}]`), one(t, "")
				g := serve(t, []*scripted.Engine{slow, fast}, func(c *config.Gateway) { c.Policy = policyNamed(t, policy) })
				wantGood(t, lanes(80, 6, func(i int) reply {
					time.Sleep(5 * time.Millisecond)
					return g.ask(completionPath, unlike(i, extra))
				})...)
				if n := share([]*scripted.Engine{slow, fast}); float64(n[0]) > .3*float64(sum(n)) {
					t.Errorf("slow and fast engine got %v", n)
				}
			})
		}
	}
}

// policyNamed skips the test when the gateway has no such policy.
func policyNamed(t *testing.T, name string) string {
	t.Helper()
	e, err := config.Load(config.Sources{Env: []string{"YARDMASTER_GATEWAY_POLICY=" + name}})
	if err != nil {
		t.Skipf("the policy is missing: %v", err)
	}
	return e.Config.Gateway.Policy
}

// Case 13: among equals chance decides; no worker is the first for ever.
func TestTiesAreBrokenByChance(t *testing.T) {
	t.Parallel()
	// With fair dice one of four gets more than 25 of 40 once in ten million runs,
	// and all of 12 once in four million.
	fleets, most := 40, 25
	if raceEnabled {
		fleets, most = 12, 11
	}
	first := make([]int, 4)
	for range fleets {
		engines := several(t, 4, "")
		g := serve(t, engines)
		wantGood(t, g.ask(completionPath, prompt))
		first[slices.Index(share(engines), 1)]++
	}
	if slices.Max(first) > most {
		t.Errorf("the first request went to %v", first)
	}
}

// Case 14. Symptom: affinity dies under imbalance, or hot keys pile up on one
// worker. Right: sessions find their cache again, and no worker gets much more
// than its share, whoever is heavy.
func TestSessionsKeepTheirCacheAndTheLoadIsSpread(t *testing.T) {
	t.Parallel()
	const sessions, turns = 12, 8
	engines := several(t, 4, "engine: {kv_blocks: 16384, max_context: 65536}\nrules: [{match: {route: /v1/comp*}, do: {generate: {tokens: 8, token: 2ms}}}]")
	g := serve(t, engines)
	var all sync.WaitGroup
	for s := range sessions {
		all.Go(func() {
			text := unlikeText(s, 2000)
			if s == 0 {
				text = unlikeText(s, 30_000) // the heavy one
			}
			random := rand.New(rand.NewPCG(uint64(s), 1))
			for turn := range turns {
				r := g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","max_tokens":8,"prompt":"%s"}`, text))
				if !r.good() {
					t.Errorf("session %d, turn %d: status %d, %s", s, turn, r.status, r.body)
					return
				}
				text += strings.Repeat("abcd", 50+random.IntN(50))
			}
		})
	}
	all.Wait()
	prompts, cached := 0, 0
	requests := share(engines)
	for _, e := range engines {
		for _, r := range asked(e) {
			prompts, cached = prompts+r.Prompt, cached+r.Cached
		}
	}
	if hit := float64(cached) / float64(prompts); hit < .75 {
		t.Errorf("%.2f of the prompt tokens were cached, %.2f can be", hit, .87)
	}
	if most := 2 * sum(requests) / len(requests); slices.Max(requests) > most {
		t.Errorf("requests by engine: %v", requests)
	}
}

// Case 15. Symptom: between two polls of the workers' load all requests go to
// one. Right: what was just sent counts at once; a burst spreads evenly.
func TestABurstSpreadsEvenly(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"sticky", "least-request", "round-robin", "kv-cost", "lmetric"} {
		for _, n := range []int{2, 3, 8} {
			t.Run(fmt.Sprintf("%s/%d", policy, n), func(t *testing.T) {
				t.Parallel()
				engines := several(t, n, `rules: [{match: {route: /v1/comp*}, do: {generate: {tokens: 2, first_token: 700ms}}}]`)
				g := serve(t, engines, func(c *config.Gateway) { c.Policy = policyNamed(t, policy) })
				const each = 4
				wantGood(t, together(each*n, func(i int) reply { return g.ask(completionPath, unlike(i, "")) })...)
				if got := share(engines); slices.Max(got) > each+1 || slices.Min(got) < each-1 {
					t.Errorf("%d requests at once went %v", each*n, got)
				}
			})
		}
	}
}

// Measured of both Rust routers: one hot prefix, 24 calls at once on 4 engines,
// all on one. Right: the busiest gets at most 1.5 times the mean.
func TestAHotPrefixIsSpread(t *testing.T) {
	t.Parallel()
	hot := unlikeText(1, 8000)
	for name, warm := range map[string]int{"cold": 0, "warm": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engines := several(t, 4, `rules: [{match: {route: /v1/comp*, body: burst}, do: {generate: {tokens: 4, first_token: 1s}}}]`)
			g := serve(t, engines)
			for i := range warm {
				wantGood(t, g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","max_tokens":4,"prompt":"%s %d"}`, hot, i)))
			}
			wantGood(t, together(24, func(i int) reply {
				return g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","user":"burst","max_tokens":4,"prompt":"%s other %d"}`, hot, i))
			})...)
			if got := shareOf(engines, "burst"); slices.Max(got) > 9 {
				t.Errorf("24 calls at once went %v", got)
			}
		})
	}
}

// Measured of both Rust routers: at light load, one request after another, they
// pile up on few engines and overflow their caches. Right: spread also then.
func TestLightLoadIsSpread(t *testing.T) {
	t.Parallel()
	const groups, turns = 24, 4
	engines := several(t, 4, "")
	g := serve(t, engines)
	for turn := range turns {
		for group := range groups {
			wantGood(t, g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","max_tokens":4,"prompt":"%s%s"}`,
				unlikeText(group, 2000), strings.Repeat(fmt.Sprintf("turn %03d", group), 5*turn))))
		}
	}
	got := share(engines)
	if mean := float64(sum(got)) / float64(len(got)); float64(slices.Max(got)) > 1.5*mean {
		t.Errorf("requests one after another went %v", got)
	}
	cached, prompts := 0, 0
	for _, e := range engines {
		for _, r := range asked(e) {
			cached, prompts = cached+r.Cached, prompts+r.Prompt
		}
	}
	if hit := float64(cached) / float64(prompts); hit < .6 {
		t.Errorf("%.2f of the prompt tokens were cached", hit)
	}
}

// Case 17. Symptom: blocks that match in the middle of a prompt count as its
// prefix. Right: a hit ends at the first block that differs.
func TestOnlyAPrefixIsAHit(t *testing.T) {
	t.Parallel()
	a, b, c, d := unlikeText(1, 2048), unlikeText(2, 2048), unlikeText(3, 2048), unlikeText(4, 2048)
	for how, change := range map[string]func(*config.Gateway){
		"by bytes":  func(*config.Gateway) {},
		"by tokens": func(c *config.Gateway) { c.Tokenizers = []string{"scripted=scripted"} },
	} {
		tests := []struct {
			name, prompt string
			least, most  int // percent of the prompt that is a hit
		}{
			{"the same", a + b + c, 90, 100},
			{"its beginning", a + b, 85, 100},
			{"another end", a + b + d, 55, 67},
			{"a hole in the middle", a + d + c, 25, 34},
			{"another beginning", d + b + c, 0, 0},
			{"the middle alone", b + c, 0, 0},
			{"shifted", "x" + a + b + c, 0, 0},
		}
		for _, tt := range tests {
			t.Run(how+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				engines := several(t, 1, "")
				g := serve(t, engines, change)
				wantGood(t, g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","max_tokens":4,"prompt":"%s"}`, a+b+c)))
				r := g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","max_tokens":4,"prompt":"%s"}`, tt.prompt), "X-Yardmaster-Explain", "1")
				wantGood(t, r)
				placed := r.header.Get("X-Yardmaster-Path")
				hit, of := 0, 1
				if _, rest, ok := strings.Cut(placed, "hit="); ok {
					if _, err := fmt.Sscanf(rest, "%d/%d", &hit, &of); err != nil {
						t.Fatalf("%q: %v", placed, err)
					}
				}
				if percent := 100 * hit / of; percent < tt.least || percent > tt.most {
					t.Errorf("%d %% are a hit, want %d to %d: %q", percent, tt.least, tt.most, placed)
				}
				if found := gjson.Get(r.body, "usage.prompt_tokens_details.cached_tokens").Int(); tt.most == 0 && found != 0 {
					t.Errorf("the engine itself found %d tokens", found)
				}
			})
		}
	}
}

// Case 17, tenants: a prompt with another salt is another prompt.
func TestAnotherSaltIsNoHit(t *testing.T) {
	t.Parallel()
	g := serve(t, several(t, 1, ""))
	ask := func(salt string) string {
		r := g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","max_tokens":4,"cache_salt":%q,"prompt":"%s"}`, salt, unlikeText(1, 4000)), "X-Yardmaster-Explain", "1")
		wantGood(t, r)
		return r.header.Get("X-Yardmaster-Path")
	}
	ask("one")
	if placed := ask("one"); !strings.Contains(placed, "hit=") {
		t.Errorf("the same salt: %q", placed)
	}
	if placed := ask("two"); strings.Contains(placed, "hit=") {
		t.Errorf("another salt: %q", placed)
	}
}
