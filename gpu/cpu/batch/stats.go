package batch

import (
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
)

// Stats is a snapshot for the lease renewal. A zero rate is unknown.
type Stats struct {
	Running int // requests being computed, or held for an exporter
	Waiting int // accepted and not running, decode legs whose KV is on its way included
	// BlocksTotal and BlocksFree count KV blocks; cached ones are free.
	BlocksTotal, BlocksFree int
	// PrefillTokensPerSecond is the recent speed on prompts.
	PrefillTokensPerSecond float64
	// DecodeStep is the recent time of a step that generates.
	DecodeStep time.Duration
}

// Stats returns the present figures.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	live := e.live
	e.mu.Unlock()
	c := e.cache.Counts()
	r := e.rates.Load()
	running := min(int(e.running.Load()), live)
	return Stats{
		Running: running, Waiting: live - running, BlocksTotal: c.Total, BlocksFree: c.Free,
		PrefillTokensPerSecond: r.prefill, DecodeStep: time.Duration(r.decode * float64(time.Second)),
	}
}

// rates are moving averages.
type rates struct {
	prefill float64 // tokens/s
	decode  float64 // seconds per step
}

// load is what a step computes, in tokens.
type load struct{ prefill, decode int }

func (l *load) add(s *sequence, n int) {
	if n == 1 && s.decoding() {
		l.decode++
	} else {
		l.prefill += n
	}
}

// recency is the weight of the newest step in the averages.
const recency = 0.1

// account charges a step's time to the phases, in proportion to their tokens.
func (e *Engine) account(l load, took time.Duration) {
	seconds := took.Seconds()
	whole := l.prefill + l.decode
	if whole == 0 {
		whole, l.decode = 1, 1 // the first token after an import
	}
	prefill := seconds * float64(l.prefill) / float64(whole)
	e.meters.prefillBusy.Add(prefill)
	e.meters.decodeBusy.Add(seconds - prefill)
	e.meters.prefillTokens.Add(float64(l.prefill))
	e.meters.decodeTokens.Add(float64(l.decode))
	if seconds <= 0 {
		return
	}
	r := *e.rates.Load()
	if l.prefill > 0 {
		r.prefill = average(r.prefill, float64(l.prefill)/prefill)
	}
	if l.decode > 0 {
		r.decode = average(r.decode, seconds)
	}
	e.rates.Store(&r)
}

func average(old, now float64) float64 {
	if old == 0 {
		return now
	}
	return old + recency*(now-old)
}

// publish sets the gauges to the loop's state.
func (e *Engine) publish() {
	running := len(e.run) + len(e.held)
	e.running.Store(int64(running))
	c := e.cache.Counts()
	m := &e.meters
	m.running.Set(float64(running))
	m.waiting.Set(float64(len(e.waiting) + len(e.importing) + len(e.ready)))
	m.used.Set(float64(c.Held))
	m.cached.Set(float64(c.Cached))
	m.free.Set(float64(c.Free))
}

type meters struct {
	registry                    *measure.Registry
	running, waiting            measure.Gauge
	used, cached, free          measure.Gauge
	prefixQueries, prefixHits   measure.Counter
	preemptions                 measure.Counter
	prefillBusy, decodeBusy     measure.Counter
	prefillTokens, decodeTokens measure.Counter
}

func newMeters(r *measure.Registry) meters {
	return meters{
		registry: r,
		running:  r.Gauge(measure.EngineRunning), waiting: r.Gauge(measure.EngineWaiting),
		used: r.Gauge(measure.KVBlocksUsed), cached: r.Gauge(measure.KVBlocksCached), free: r.Gauge(measure.KVBlocksFree),
		prefixQueries: r.Counter(measure.PrefixQueries), prefixHits: r.Counter(measure.PrefixHits),
		preemptions: r.Counter(measure.Preemptions),
		prefillBusy: r.Counter(measure.PhaseBusy, "prefill"), decodeBusy: r.Counter(measure.PhaseBusy, "decode"),
		prefillTokens: r.Counter(measure.PhaseTokens, "prefill"), decodeTokens: r.Counter(measure.PhaseTokens, "decode"),
	}
}

func (m *meters) finished(f Finish) { m.registry.Counter(measure.EngineRequests, string(f)).Inc() }

func (m *meters) recomputed(reason string) { m.registry.Counter(measure.Recomputes, reason).Inc() }
