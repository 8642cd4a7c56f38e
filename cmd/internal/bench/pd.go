package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/scrape"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/eventstream"
)

// PDTarget is a running, otherwise idle system of one prefill and one decode
// worker behind two gateways: one disaggregates every request, the other none.
type PDTarget struct {
	Disaggregated, Aggregated string // gateways' URLs
	Prefill, Decode           string // workers' URLs
	Model                     string
	Vocab                     int // token ids of made-up prompts are below it
}

// PDOptions shape a measurement. Zero fields mean the defaults.
type PDOptions struct {
	Prompts []int // tokens; 512 and 2048
	Runs    int   // of each; 7
	Seed    uint64
}

func (o PDOptions) withDefaults() PDOptions {
	if len(o.Prompts) == 0 {
		o.Prompts = []int{512, 2048}
	}
	if o.Runs <= 0 {
		o.Runs = 7
	}
	return o
}

// PDResult is the price of disaggregation, the worst over the prompt lengths.
// The control overhead is not shown below zero; what it is made of is.
type PDResult struct {
	ControlOverheadMS    float64  `json:"control_overhead_ms"`
	ExposedTransferShare float64  `json:"exposed_transfer_share"`
	Prompts              []PDPart `json:"prompts"`
}

// PDPart is what the figures are made of for one prompt length, medians over
// Runs, in milliseconds.
//
// A request's time to first token is compute (what the engines were busy), the
// transfer not hidden behind it, and the rest: control. The control overhead is
// the control of a disaggregated request less that of an aggregated one.
// Compute is taken off each request by itself, because it varies from run to
// run by more than all the rest. The exposed transfer ends with the decode
// worker's acknowledgement, which competes with its first step for the cores
// and may come late: AddedOther, exposed transfer and control overhead together,
// has no such doubt.
type PDPart struct {
	PromptTokens         int     `json:"prompt_tokens"`
	Runs                 int     `json:"runs"`
	TTFTAggregated       float64 `json:"ttft_aggregated_ms"`
	TTFTDisaggregated    float64 `json:"ttft_disaggregated_ms"`
	AddedTTFT            float64 `json:"added_ttft_ms"`
	Prefill              float64 `json:"prefill_ms"` // compute of the prefill worker
	ExposedTransfer      float64 `json:"exposed_transfer_ms"`
	ExposedTransferShare float64 `json:"exposed_transfer_share"` // of Prefill
	ControlAggregated    float64 `json:"control_aggregated_ms"`
	ControlDisaggregated float64 `json:"control_disaggregated_ms"`
	ControlOverhead      float64 `json:"control_overhead_ms"`
	AddedOther           float64 `json:"added_other_than_compute_ms"`
	TransferredBytes     float64 `json:"transferred_bytes"`
}

// ErrNotMeasured means that a request did not take the path it was to take, so
// that its time says nothing.
var ErrNotMeasured = errors.New("a request was not placed as the measurement needs it")

// PD measures t.
func PD(ctx context.Context, t PDTarget, opts PDOptions) (PDResult, error) {
	opts = opts.withDefaults()
	m := &pdMeter{target: t, random: rand.New(rand.NewPCG(opts.Seed, 2)), client: &http.Client{Transport: &http.Transport{}}}
	defer m.client.CloseIdleConnections()
	var out PDResult
	for _, n := range opts.Prompts {
		part, err := m.part(ctx, n, opts.Runs)
		if err != nil {
			return out, err
		}
		out.Prompts = append(out.Prompts, part)
		out.ControlOverheadMS = max(out.ControlOverheadMS, part.ControlOverhead)
		out.ExposedTransferShare = max(out.ExposedTransferShare, part.ExposedTransferShare)
	}
	return out, nil
}

type pdMeter struct {
	target PDTarget
	random *rand.Rand
	client *http.Client
}

// reading is what the workers' counters say.
type reading struct {
	prefillBusy, decodeBusy float64 // seconds, both workers' both phases
	exposed                 float64 // seconds
	bytes                   float64
}

// trial is one measured request.
type trial struct {
	ttft, control, prefill, exposed, bytes float64 // milliseconds, but for bytes
}

func (m *pdMeter) part(ctx context.Context, prompt, runs int) (PDPart, error) {
	p := PDPart{PromptTokens: prompt, Runs: runs}
	var apart, together []trial
	for i := range runs + 1 {
		a, err := m.trial(ctx, m.target.Disaggregated, prompt, "disaggregated", "kv=moved")
		if err != nil {
			return p, err
		}
		b, err := m.trial(ctx, m.target.Aggregated, prompt, "aggregated", "")
		if err != nil {
			return p, err
		}
		if i > 0 { // the first one makes connections
			apart, together = append(apart, a), append(together, b)
		}
	}
	pick := func(trials []trial, f func(trial) float64) float64 {
		values := make([]float64, len(trials))
		for i, t := range trials {
			values[i] = f(t)
		}
		return median(values)
	}
	p.TTFTAggregated = pick(together, func(t trial) float64 { return t.ttft })
	p.TTFTDisaggregated = pick(apart, func(t trial) float64 { return t.ttft })
	p.AddedTTFT = p.TTFTDisaggregated - p.TTFTAggregated
	p.Prefill = pick(apart, func(t trial) float64 { return t.prefill })
	p.ExposedTransfer = pick(apart, func(t trial) float64 { return t.exposed })
	p.ExposedTransferShare = pick(apart, func(t trial) float64 { return t.exposed / t.prefill })
	p.ControlAggregated = pick(together, func(t trial) float64 { return t.control })
	p.ControlDisaggregated = pick(apart, func(t trial) float64 { return t.control })
	p.ControlOverhead = p.ControlDisaggregated - p.ControlAggregated
	p.AddedOther = pick(apart, func(t trial) float64 { return t.control + t.exposed }) - p.ControlAggregated
	p.TransferredBytes = pick(apart, func(t trial) float64 { return t.bytes })
	return p, nil
}

// trial sends one request for one token and reads the counters around it.
func (m *pdMeter) trial(ctx context.Context, gateway string, prompt int, wantPath, wantKV string) (trial, error) {
	before, err := m.read(ctx)
	if err != nil {
		return trial{}, err
	}
	ttft, path, err := m.firstToken(ctx, gateway, prompt)
	if err != nil {
		return trial{}, err
	}
	if !strings.HasPrefix(path, wantPath) || !strings.Contains(path, wantKV) {
		return trial{}, fmt.Errorf("bench: %w: want %s %s, got %q", ErrNotMeasured, wantPath, wantKV, path)
	}
	after, err := m.read(ctx)
	if err != nil {
		return trial{}, err
	}
	const ms = 1000
	t := trial{
		ttft: ttft.Seconds() * ms, prefill: (after.prefillBusy - before.prefillBusy) * ms,
		exposed: (after.exposed - before.exposed) * ms, bytes: after.bytes - before.bytes,
	}
	compute := t.prefill + (after.decodeBusy-before.decodeBusy)*ms
	t.control = t.ttft - compute - t.exposed
	return t, nil
}

// firstToken is the time from sending a request to its first token, and how the
// gateway placed it.
func (m *pdMeter) firstToken(ctx context.Context, gateway string, prompt int) (ttft time.Duration, path string, err error) {
	ids := make([]int, prompt)
	for i := range ids {
		ids[i] = m.random.IntN(m.target.Vocab)
	}
	body, err := json.Marshal(map[string]any{
		"model": m.target.Model, "prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": true, "stream": true,
	})
	if err != nil {
		return 0, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Yardmaster-Explain", "1")
	began := time.Now()
	resp, err := m.client.Do(req)
	if err != nil {
		return 0, "", fmt.Errorf("bench: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return 0, "", errors.Join(fmt.Errorf("bench: status %d: %s", resp.StatusCode, text), err)
	}
	reader := eventstream.NewReader(nil, 1<<20)
	for {
		err := reader.Fill(resp.Body)
		for e, ok := reader.Next(); ok; e, ok = reader.Next() {
			if ttft == 0 && gjson.GetBytes(e.Data, "choices.0").Exists() {
				ttft = time.Since(began)
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && ttft > 0:
			return ttft, resp.Header.Get("X-Yardmaster-Path"), nil
		default:
			return 0, "", fmt.Errorf("bench: no token came: %w", err)
		}
	}
}

// settle is how long the workers' counters may lag behind an answer.
const settle = 5 * time.Second

// read sums the workers' counters once both are idle.
func (m *pdMeter) read(ctx context.Context) (reading, error) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		var r reading
		running := 0.0
		for _, url := range []string{m.target.Prefill, m.target.Decode} {
			seen, err := scrape.Read(ctx, m.client, url)
			if err != nil {
				return r, err
			}
			r.prefillBusy += seen.Sum(measure.PhaseBusy, "prefill")
			r.decodeBusy += seen.Sum(measure.PhaseBusy, "decode")
			r.exposed += seen.Sum(measure.TransferExposed)
			r.bytes += seen.Sum(measure.TransferBytes, "received")
			running += seen.Sum(measure.EngineRunning) + seen.Sum(measure.EngineWaiting)
		}
		if running == 0 {
			return r, nil
		}
	}
}
