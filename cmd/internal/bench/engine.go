package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
)

// EngineOptions shape a measurement. Zero fields mean the defaults.
type EngineOptions struct {
	Prompt int // tokens of the prefill measurement; 512
	Output int // tokens of the decode measurements; 128
	Runs   int // of each; 5
	Seed   uint64
}

func (o EngineOptions) withDefaults() EngineOptions {
	if o.Prompt <= 0 {
		o.Prompt = 512
	}
	if o.Output <= 1 {
		o.Output = 128
	}
	if o.Runs <= 0 {
		o.Runs = 5
	}
	return o
}

// EngineResult is the engine's speed, medians of Runs.
type EngineResult struct {
	PrefillTokS      float64 `json:"prefill_tok_s"`       // prompt tokens a second, one prompt
	DecodeTokS       float64 `json:"decode_tok_s"`        // one stream
	DecodeTokSBatch8 float64 `json:"decode_tok_s_batch8"` // eight streams together
	PromptTokens     int     `json:"prompt_tokens"`
	OutputTokens     int     `json:"output_tokens"`
	Runs             int     `json:"runs"`
	Prefill          []Run   `json:"prefill_runs"`
	Decode           []Run   `json:"decode_runs"`
	DecodeBatch8     []Run   `json:"decode_batch8_runs"`
}

// Run is one measured run.
type Run struct {
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
	TokS    float64 `json:"tok_s"`
}

// decodePrompt is short, so that decoding is measured and not attention over a
// long context, as other engines' benchmarks do.
const decodePrompt = 16

// Engine measures e, which must be idle. vocab bounds the token ids of the
// made-up prompts. The first run of each kind warms up and does not count.
func Engine(ctx context.Context, e *batch.Engine, vocab int, opts EngineOptions) (EngineResult, error) {
	opts = opts.withDefaults()
	m := &engineMeter{engine: e, random: rand.New(rand.NewPCG(opts.Seed, 1)), vocab: vocab}
	r := EngineResult{PromptTokens: opts.Prompt, OutputTokens: opts.Output, Runs: opts.Runs}
	var err error
	measure := func(out *[]Run, once func(context.Context) (Run, error)) float64 {
		if err != nil {
			return 0
		}
		var rates []float64
		for i := range opts.Runs + 1 {
			var run Run
			if run, err = once(ctx); err != nil {
				return 0
			}
			if i > 0 {
				*out = append(*out, run)
				rates = append(rates, run.TokS)
			}
		}
		return median(rates)
	}
	r.PrefillTokS = measure(&r.Prefill, func(ctx context.Context) (Run, error) { return m.prefill(ctx, opts.Prompt) })
	r.DecodeTokS = measure(&r.Decode, func(ctx context.Context) (Run, error) { return m.decode(ctx, 1, opts.Output) })
	r.DecodeTokSBatch8 = measure(&r.DecodeBatch8, func(ctx context.Context) (Run, error) { return m.decode(ctx, 8, opts.Output) })
	return r, err
}

type engineMeter struct {
	engine *batch.Engine
	random *rand.Rand
	vocab  int
}

func (m *engineMeter) prompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = m.random.Int32N(int32(m.vocab))
	}
	return ids
}

// prefill is one prompt of n tokens, from Submit to its first token.
func (m *engineMeter) prefill(ctx context.Context, n int) (Run, error) {
	prompt := m.prompt(n)
	began := time.Now()
	arrivals, err := m.generate(ctx, prompt, 1)
	if err != nil {
		return Run{}, err
	}
	return newRun(n, arrivals[0].Sub(began)), nil
}

// decode is streams side by side; counted is what arrives between the moment
// all have begun and the moment the first one ends.
func (m *engineMeter) decode(ctx context.Context, streams, output int) (Run, error) {
	all := make([][]time.Time, streams)
	faults := make([]error, streams)
	var wg sync.WaitGroup
	for i := range streams {
		prompt := m.prompt(decodePrompt)
		wg.Go(func() { all[i], faults[i] = m.generate(ctx, prompt, output) })
	}
	wg.Wait()
	if err := errors.Join(faults...); err != nil {
		return Run{}, err
	}
	return window(all), nil
}

func window(all [][]time.Time) Run {
	begin, end := all[0][0], all[0][len(all[0])-1]
	for _, arrivals := range all {
		if arrivals[0].After(begin) {
			begin = arrivals[0]
		}
		if last := arrivals[len(arrivals)-1]; last.Before(end) {
			end = last
		}
	}
	tokens := 0
	for _, arrivals := range all {
		for _, at := range arrivals {
			if at.After(begin) && !at.After(end) {
				tokens++
			}
		}
	}
	return newRun(tokens, end.Sub(begin))
}

// generate is one greedy request; it returns when each token arrived.
func (m *engineMeter) generate(ctx context.Context, prompt []int32, output int) ([]time.Time, error) {
	stream, err := m.engine.Submit(ctx, &batch.Request{Prompt: prompt, MaxTokens: output, IgnoreEOS: true})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer stream.Close()
	arrivals := make([]time.Time, 0, output)
	for {
		ev, err := stream.Recv(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		if ev.Token != batch.NoToken {
			arrivals = append(arrivals, time.Now())
		}
		switch {
		case ev.Finish == "":
			continue
		case ev.Finish != batch.FinishLength || len(arrivals) != output:
			return nil, fmt.Errorf("bench: request ended with %s after %d of %d tokens: %w", ev.Finish, len(arrivals), output, ev.Err)
		default:
			return arrivals, nil
		}
	}
}

func newRun(tokens int, d time.Duration) Run {
	r := Run{Tokens: tokens, Seconds: d.Seconds()}
	if d > 0 {
		r.TokS = float64(tokens) / d.Seconds()
	}
	return r
}

// median is the middle of values, 0 without any. It sorts them.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

// BatchOptions are the options of an engine to be measured: a step takes a
// whole prompt, and blocks are never short.
func BatchOptions(context int) batch.Options {
	const streams, block = 8, 16
	return batch.Options{KVBlocks: 2 * max(context, streams*1024) / block, MaxContext: context, TokenBudget: 512}
}
