package cluster

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// watch gathers what clients see, by phase.
type watch struct {
	result *Streams

	mu     sync.Mutex
	phases []*seen
	errs   []error // the first few
}

// seen is a phase as it is gathered.
type seen struct {
	name          string
	took          []time.Duration // of requests that were answered
	failed        int
	gap           time.Duration
	streamsFailed int
}

func newWatch(r *Streams) *watch {
	return &watch{result: r, phases: []*seen{{name: "start"}}}
}

// phase begins one.
func (w *watch) phase(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phases = append(w.phases, &seen{name: name})
}

// now is the phase that is under way.
func (w *watch) now() *seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phases[len(w.phases)-1]
}

// token counts tokens that came gap after those before them.
func (w *watch) token(tokens int, gap time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.result.Tokens += int64(tokens)
	p := w.phases[len(w.phases)-1]
	p.gap = max(p.gap, gap)
}

// streamed counts a stream that ended.
func (w *watch) streamed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.result.Whole++
		return
	}
	w.result.Failed++
	p := w.phases[len(w.phases)-1]
	p.streamsFailed++
	w.keep(fmt.Errorf("stream, %s: %w", p.name, err))
}

// asked counts a request that began in the phase and has ended.
func (w *watch) asked(p *seen, took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.result.RequestsOK++
		p.took = append(p.took, took)
		return
	}
	w.result.RequestsFail++
	p.failed++
	w.keep(fmt.Errorf("request, %s, after %v: %w", p.name, took, err))
}

func (w *watch) keep(err error) {
	if len(w.errs) < maxErrors {
		w.errs = append(w.errs, err)
	}
}

// sum fills the result in when the clients have ended.
func (w *watch) sum() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.phases {
		if len(p.took)+p.failed == 0 && p.gap == 0 {
			continue
		}
		w.result.Phases = append(w.result.Phases, Phase{
			Name: p.name, Requests: len(p.took) + p.failed, Failed: p.failed,
			P50MS: milliseconds(quantile(p.took, 0.5)), P99MS: milliseconds(quantile(p.took, 0.99)), MaxMS: milliseconds(quantile(p.took, 1)),
			LongestGapMS: milliseconds(p.gap), StreamsFailed: p.streamsFailed,
		})
		w.result.LongestGapMS = max(w.result.LongestGapMS, milliseconds(p.gap))
	}
	for _, err := range w.errs {
		w.result.Errors = append(w.result.Errors, err.Error())
	}
}

// fault is what went wrong for the clients, if anything did.
func (w *watch) fault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}
