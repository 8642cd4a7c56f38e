package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/sim"
	"github.com/yardmaster/yardmaster/core/sim/trace"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/policies/builtin"
	"github.com/yardmaster/yardmaster/server/admin"
)

// simulation is what `policy simulate` was asked for.
type simulation struct {
	trace             string
	requests          int
	workers           int
	prefill, decode   int
	engine            string
	kvTokens          int64
	speed             float64
	seed              uint64
	against           string
	address, forModel string
	out               output
}

func (a *app) policySimulate() *cobra.Command {
	var s simulation
	c := &cobra.Command{
		Use:   "simulate FILE|POLICY",
		Short: "Replay a trace in virtual time with a router, beside what decides now",
		Long: `Replay a trace in virtual time over modelled engines, once with a routing policy and
once with another, and compare: how often they would have placed a request
differently, what was found in caches, how evenly the work was spread, and times. The
policy is a module's file, with parameters in brackets where the manifest's defaults are
not meant, or the name of one of the binary; --against names another, or
"active", which asks a node for what is bound.

The router, the index and the policy's host are those of a gateway. The engines are
models of one GPU generation: the figures compare policies and promise nothing about
hardware.

A simulation knows each request's conversation: a generated trace says it, a row of a
file may ("session", a string or a number), and else it is told from the prompts' common
blocks. Of a request it knows also its class (all are standard), the output to expect
(the mean so far) and its wait. It knows no tenants, no wanted times, no adapters, no
failures and no second gateway: what a policy does about those cannot be judged here.

  DIFFERS    of the decisions, those in which it would have chosen another worker where
             the other policy decided
  CACHED     of the prompt tokens, those found in a cache
  SKEW       the busiest worker over the mean, in computed prompt tokens
  TTFT, ITL  time to the first token and between tokens, in milliseconds`,
		Example: `  yardmaster policy simulate least-loaded.wasm --against active
  yardmaster policy simulate least-loaded.wasm --trace conversation_trace.jsonl --workers 16 --speed 4
  yardmaster policy simulate "policy.wasm(stay=5)" --against policy.wasm
  yardmaster policy simulate kv-cost --against sticky --prefill 4 --decode 4`,
		Args: operand("FILE or POLICY"),
		RunE: func(c *cobra.Command, args []string) error { return a.simulate(c.Context(), args[0], &s) },
	}
	f := c.Flags()
	f.StringVar(&s.trace, "trace", "", "trace in Mooncake's format; default: a generated one with the same statistics")
	f.IntVar(&s.requests, "requests", 0, "only the first so many; default all, 12,000 generated ones")
	f.IntVar(&s.workers, "workers", 8, "workers that compute and generate")
	f.IntVar(&s.prefill, "prefill", 0, "workers that compute prompts only; with --decode in place of --workers")
	f.IntVar(&s.decode, "decode", 0, "workers that generate; with --prefill")
	f.StringVar(&s.engine, "engine", "llama-3.1-8b-bf16-h100x1", "model of an engine: "+strings.Join(cost.EngineNames(), ", "))
	f.Int64Var(&s.kvTokens, "kv-tokens", 0, "tokens that a worker's cache holds; default 300,000")
	f.Float64Var(&s.speed, "speed", 1, "how much faster than in the trace requests come")
	f.Uint64Var(&s.seed, "seed", 1, "of ties and of the generated trace")
	f.StringVar(&s.against, "against", "sticky", "policy to compare with: a file, its parameters in brackets behind it, a name, or active")
	f.StringVar(&s.forModel, "model", "", "with active: what is bound for this model")
	adminFlag(c, &s.address)
	s.out.flag(c)
	return c
}

// simulated is one policy's replay.
type simulated struct {
	Policy string `json:"policy"`
	*sim.Report
	Faults map[string]uint64 `json:"faults,omitempty"` // calls without an answer, by reason
}

// comparison is what `policy simulate` found.
type comparison struct {
	Candidate simulated `json:"candidate"`
	Against   simulated `json:"against"`
	// Differs is the part of the decisions of Against's replay in which the candidate
	// would have chosen another worker, and Parted the part of the requests that the
	// two replays served by different ones.
	Differs float64 `json:"differs"`
	Parted  float64 `json:"parted"`
}

func (a *app) simulate(ctx context.Context, what string, s *simulation) error {
	requests, err := s.load()
	if err != nil {
		return err
	}
	bench, err := newPolicyBench(ctx, a.err)
	if err != nil {
		return err
	}
	defer bench.close(context.WithoutCancel(ctx))
	candidate, err := bench.router(ctx, what)
	if err != nil {
		return err
	}
	against, err := a.opponent(ctx, bench, s)
	if err != nil {
		return err
	}
	c := comparison{Candidate: simulated{Policy: candidate.Name()}, Against: simulated{Policy: against.Name()}}
	if c.Against.Report, err = s.run(ctx, a.err, against, candidate, requests); err != nil {
		return err
	}
	if c.Candidate.Report, err = s.run(ctx, a.err, candidate, nil, requests); err != nil {
		return err
	}
	c.Differs, c.Parted = c.Against.ShadowDiffers, sim.Differing(c.Against.Report, c.Candidate.Report)
	c.Candidate.Faults, c.Against.Faults = faultsOf(candidate), faultsOf(against)
	return a.printComparison(&s.out, &c)
}

// load reads or makes the trace.
func (s *simulation) load() ([]trace.Request, error) {
	requests := trace.Generate(s.seed, s.count())
	if s.trace != "" {
		var err error
		if requests, err = readTrace(s.trace); err != nil {
			return nil, err
		}
	}
	if s.requests > 0 {
		requests = requests[:min(s.requests, len(requests))]
	}
	if len(requests) == 0 {
		return nil, usage(errors.New("the trace has no requests"))
	}
	return requests, nil
}

// usualTrace is how many requests are generated.
const usualTrace = 12_000

func (s *simulation) count() int {
	if s.requests > 0 {
		return s.requests
	}
	return usualTrace
}

// run replays the trace with a policy, and perhaps a shadow.
func (s *simulation) run(ctx context.Context, progress io.Writer, p, shadow route.Policy, requests []trace.Request) (*sim.Report, error) {
	engine, ok := cost.Engine(s.engine)
	if !ok {
		return nil, usage(fmt.Errorf("--engine %q is not one of %s", s.engine, strings.Join(cost.EngineNames(), ", ")))
	}
	pool := sim.Pool{Role: fleet.RoleBoth, Workers: s.workers, Engine: engine, KVTokens: unit.Tokens(s.kvTokens)}
	pools := []sim.Pool{pool}
	if s.prefill > 0 || s.decode > 0 {
		front, back := pool, pool
		front.Role, front.Workers = fleet.RolePrefill, s.prefill
		back.Role, back.Workers = fleet.RoleDecode, s.decode
		pools = []sim.Pool{front, back}
	}
	began := time.Now()
	r, err := sim.Run(ctx, sim.Config{
		Pools: pools, Route: route.Config{Policy: p}, Shadow: shadow, Speed: s.speed, Seed: s.seed,
	}, requests)
	if err != nil {
		return nil, usage(err)
	}
	fmt.Fprintf(progress, "%s: %d requests of %v in %v\n", p.Name(), r.Requests, r.Virtual.Round(time.Second), time.Since(began).Round(time.Millisecond))
	return r, nil
}

// opponent is the policy to compare with.
func (a *app) opponent(ctx context.Context, b *policyBench, s *simulation) (route.Policy, error) {
	if s.against != "active" {
		return b.router(ctx, s.against)
	}
	client, err := a.adminAt(s.address)
	if err != nil {
		return nil, err
	}
	var l admin.PolicyList
	if err := client.call(ctx, http.MethodGet, "/admin/policies", nil, &l); err != nil {
		return nil, err
	}
	var parts []admin.PolicyPart
	for _, binding := range l.Bindings {
		if binding.Kind == "router" && len(binding.Active) > 0 && (binding.Model == s.forModel || binding.Model == "" && parts == nil) {
			parts = binding.Active
		}
	}
	if parts == nil {
		fmt.Fprintln(a.err, "nothing is bound: comparing with sticky, the default of the configuration")
		return b.router(ctx, "sticky")
	}
	var blend route.Blend
	for _, part := range parts {
		p, err := b.part(ctx, client, &part)
		if err != nil {
			return nil, err
		}
		blend.Parts = append(blend.Parts, route.Weighted{Policy: p, Weight: part.Weight})
	}
	if len(blend.Parts) == 1 {
		return blend.Parts[0].Policy, nil
	}
	return blend, nil
}

func (a *app) printComparison(out *output, c *comparison) error {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	row := func(s *simulated, differs float64) []string {
		faults := uint64(0)
		for _, n := range s.Faults {
			faults += n
		}
		share := "-"
		if !math.IsNaN(differs) {
			share = fmt.Sprintf("%.1f%%", differs*100)
		}
		return []string{
			s.Policy, share, fmt.Sprintf("%.3f", s.HitRatio), fmt.Sprintf("%.2f", s.Skew),
			ms(s.First.Mean), ms(s.First.P50), ms(s.First.P99), ms(s.Between.P50), ms(s.Between.P99), strconv.FormatUint(faults, 10),
		}
	}
	heading := []string{"POLICY", "DIFFERS", "CACHED", "SKEW", "TTFT MEAN", "TTFT P50", "TTFT P99", "ITL P50", "ITL P99", "FAULTS"}
	return out.print(a.out, c, heading, [][]string{row(&c.Against, math.NaN()), row(&c.Candidate, c.Differs)})
}

// MarshalJSON leaves a share out that is not a number.
func (c *comparison) MarshalJSON() ([]byte, error) {
	type plain comparison
	out := struct {
		*plain
		Differs *float64 `json:"differs,omitempty"` // in place of plain's
	}{plain: (*plain)(c)}
	if !math.IsNaN(c.Differs) {
		out.Differs = &c.Differs
	}
	return json.Marshal(&out)
}

// isFile reports whether a policy is named by a module's file, or comes with the program.
func isFile(what string) bool {
	what, _ = native.CutParams(what)
	if strings.HasPrefix(what, builtin.Prefix) || strings.HasSuffix(what, ".wasm") || strings.ContainsRune(what, os.PathSeparator) {
		return true
	}
	about, err := os.Stat(what)
	return err == nil && about.Mode().IsRegular()
}
