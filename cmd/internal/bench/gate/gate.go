package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Options shape a measurement. Zero fields mean the defaults.
type Options struct {
	// Program is the yardmaster binary to run as the gateway.
	Program string
	// Args are further arguments of its gateway command.
	Args []string
	// Seconds is how long each measurement of a rate lasts; 3.
	Seconds int
}

// Result is what the gateway costs. CPU is of the gateway's process alone.
type Result struct {
	RequestUS      float64 `json:"request_cpu_us"`        // a whole answer, 64 clients at once
	PacedUS        float64 `json:"paced_event_cpu_us"`    // a streamed event, 32 streams, 5 ms apart
	BatchedUS      float64 `json:"batched_event_cpu_us"`  // a streamed event, 256 streams, 2 ms apart
	LongPromptMS   float64 `json:"long_prompt_cpu_ms"`    // a prompt of 48 KB with ten events
	AddedWholeMS   float64 `json:"added_whole_p50_ms"`    // time to a whole answer, over that without gateway; median pair
	AddedStreamMS  float64 `json:"added_stream_p50_ms"`   // time to a stream's first event, likewise, on used connections
	StreamKiB      float64 `json:"stream_kib"`            // resident memory per open stream, of 1,000
	FreshMiB       float64 `json:"fresh_rss_mib"`         // resident memory before any request
	AfterBurstMiB  float64 `json:"after_burst_rss_mib"`   // resident memory half a minute after all of this
	BodiesMiB      float64 `json:"bodies_rss_mib"`        // most resident memory that 50 bodies of 20 MB at once added
	BodiesServed   int     `json:"bodies_served"`         // of those 50
	BodiesRefused  int     `json:"bodies_refused"`        // with status 429
	StalledMiB     float64 `json:"stalled_rss_mib"`       // resident memory that a reader who stalls in a 64 MB stream added
	StalledSentMiB float64 `json:"stalled_engine_mib"`    // what the engine could send of that stream, kernels' buffers included
	RequestsPerS   float64 `json:"requests_per_s"`        // while RequestUS was measured; bounded by this process
	Pinned         bool    `json:"gateway_on_a_core_own"` // the gateway had a core of its own
}

// ErrFailed means that requests of a measurement failed.
var ErrFailed = errors.New("requests failed")

// Run starts a gateway and measures it. progress hears what is being done.
func Run(ctx context.Context, o Options, progress func(string)) (r Result, err error) {
	if o.Seconds == 0 {
		o.Seconds = 3
	}
	e, err := startEngine()
	if err != nil {
		return r, err
	}
	defer e.close()
	m := &measurement{ctx: ctx, engine: e, direct: newClients(e.addr), result: &r}
	defer m.direct.close()
	defer func() { err = errors.Join(err, m.stop()) }()
	for _, step := range []struct {
		what string
		run  func() error
	}{
		{"memory at rest, and of open streams", func() error { return inTurn(func() error { return m.restart(o) }, m.fresh, m.openStreams) }},
		{"a reader that stalls", func() error { return inTurn(func() error { return m.restart(o) }, m.fresh, m.stalled) }},
		{"added latency", m.latency},
		{"CPU of a request", func() error { return m.requests(time.Duration(o.Seconds) * time.Second) }},
		{"CPU of a paced event", func() error { return m.events(&r.PacedUS, 32, 5*time.Millisecond, o.Seconds) }},
		{"CPU of a batched event", func() error { return m.events(&r.BatchedUS, 256, 2*time.Millisecond, o.Seconds) }},
		{"CPU of a long prompt", func() error { return m.longPrompts(time.Duration(o.Seconds) * time.Second) }},
		{"large bodies at once", m.bodies},
		{"memory after the burst", m.afterBurst},
	} {
		progress(step.what)
		if err := step.run(); err != nil {
			return r, fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return r, nil
}

// inTurn runs steps up to the first that fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// measurement is one gateway being measured.
type measurement struct {
	ctx             context.Context //nolint:containedctx // the life of the whole measurement
	engine          *mock
	process         *process
	gateway, direct *clients
	result          *Result
}

const mib = 1 << 20

// restart begins with a fresh gateway: memory that was in use once hides what
// the next measurement needs.
func (m *measurement) restart(o Options) error {
	if err := m.stop(); err != nil {
		return err
	}
	p, err := startProcess(m.ctx, o, m.engine.url())
	if err != nil {
		return err
	}
	m.process, m.gateway, m.result.Pinned = p, newClients(p.addr), p.pinned
	return nil
}

func (m *measurement) stop() error {
	if m.process == nil {
		return nil
	}
	m.gateway.close()
	p := m.process
	m.process = nil
	return p.stop()
}

func (m *measurement) fresh() error {
	if err := m.gateway.post(m.ctx, body(0, false, 1), nil); err != nil {
		return err
	}
	rss, err := m.process.resident()
	m.result.FreshMiB = float64(rss) / mib
	return err
}

// latency sends pairs, one directly and one through the gateway, in turns.
func (m *measurement) latency() error {
	for _, kind := range []struct {
		stream bool
		out    *float64
	}{{false, &m.result.AddedWholeMS}, {true, &m.result.AddedStreamMS}} {
		var added []float64
		for i := range 400 {
			b := body(i, kind.stream, 4)
			both := [2]*clients{m.direct, m.gateway}
			var took [2]time.Duration
			for j := range 2 {
				which := (i + j) % 2
				start := time.Now()
				err := both[which].post(m.ctx, b, func() {
					if took[which] == 0 {
						took[which] = time.Since(start)
					}
				})
				if err != nil {
					return err
				}
			}
			added = append(added, (took[1]-took[0]).Seconds()*1e3)
		}
		slices.Sort(added)
		*kind.out = added[len(added)/2]
	}
	return nil
}

func (m *measurement) requests(d time.Duration) error {
	start := time.Now()
	n, cpu, err := m.loop(64, d, func(i int) []byte { return body(i, false, 1) })
	if err != nil {
		return err
	}
	m.result.RequestUS = cpu.Seconds() * 1e6 / float64(n)
	m.result.RequestsPerS = float64(n) / time.Since(start).Seconds()
	return nil
}

// events runs rounds of streams of 200 events each.
func (m *measurement) events(out *float64, streams int, pace time.Duration, seconds int) error {
	m.engine.pace.Store(int64(pace))
	defer m.engine.pace.Store(0)
	const events = 200
	rounds := max(1, int(time.Duration(seconds)*time.Second/(events*pace)))
	before, err := m.process.cpu()
	if err != nil {
		return err
	}
	if err := inParallel(streams, func(i int) error {
		for round := range rounds {
			if err := m.gateway.post(m.ctx, body(i*rounds+round, true, events), nil); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	after, err := m.process.cpu()
	*out = (after - before).Seconds() * 1e6 / float64(streams*rounds*events)
	return err
}

func (m *measurement) longPrompts(d time.Duration) error {
	n, cpu, err := m.loop(4, d, func(i int) []byte { return longBody(i, 48_000, 10) })
	if err == nil {
		m.result.LongPromptMS = cpu.Seconds() * 1e3 / float64(n)
	}
	return err
}

// loop keeps clients busy for d and reports how many requests were answered and
// what they cost the gateway.
func (m *measurement) loop(clients int, d time.Duration, next func(i int) []byte) (n int, cpu time.Duration, err error) {
	before, err := m.process.cpu()
	if err != nil {
		return 0, 0, err
	}
	end := time.Now().Add(d)
	counts := make([]int, clients)
	err = inParallel(clients, func(i int) error {
		for time.Now().Before(end) {
			if err := m.gateway.post(m.ctx, next(i+counts[i]*clients), nil); err != nil {
				return err
			}
			counts[i]++
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	after, err := m.process.cpu()
	for _, c := range counts {
		n += c
	}
	return n, after - before, err
}

func (m *measurement) openStreams() error {
	const streams = 1000
	before, err := m.process.resident()
	if err != nil {
		return err
	}
	m.engine.pace.Store(int64(time.Second))
	defer m.engine.pace.Store(0)
	peak := m.process.watch()
	err = inParallel(streams, func(i int) error { return m.gateway.post(m.ctx, body(i, true, 6), nil) })
	m.result.StreamKiB = float64(peak()-before) / streams / 1024
	return err
}

// bodies sends large prompts at once, and afterwards a small one: a gateway that
// refused some must have recovered.
func (m *measurement) bodies() error {
	const count, size = 50, 20 << 20
	before, err := m.process.resident()
	if err != nil {
		return err
	}
	served, refused := make([]bool, count), make([]bool, count)
	peak := m.process.watch()
	shared := longBody(0, size, 1)
	err = inParallel(count, func(i int) error {
		err := m.gateway.post(m.ctx, shared, nil)
		served[i], refused[i] = err == nil, isStatus(err, 429)
		if refused[i] {
			return nil
		}
		return err
	})
	m.result.BodiesMiB = float64(peak()-before) / mib
	for i := range count {
		if served[i] {
			m.result.BodiesServed++
		}
		if refused[i] {
			m.result.BodiesRefused++
		}
	}
	if err != nil {
		return err
	}
	return m.gateway.post(m.ctx, body(1, false, 1), nil)
}

// stalled opens a stream of 64 MB and reads nothing of it for two seconds.
func (m *measurement) stalled() error {
	before, err := m.process.resident()
	if err != nil {
		return err
	}
	m.engine.sent.Store(0)
	peak := m.process.watch()
	err = m.gateway.stall(m.ctx, body(7, true, bulkEvents), 2*time.Second)
	m.result.StalledMiB = float64(peak()-before) / mib
	m.result.StalledSentMiB = float64(m.engine.sent.Load()) / mib
	return err
}

// afterBurst waits for the memory to come back, for half a minute at most.
func (m *measurement) afterBurst() error {
	for range 60 {
		rss, err := m.process.resident()
		if err != nil {
			return err
		}
		m.result.AfterBurstMiB = float64(rss) / mib
		if m.result.AfterBurstMiB < 1.5*m.result.FreshMiB {
			return nil
		}
		select {
		case <-m.ctx.Done():
			return m.ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}
