package traffic

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/measure"
)

// Bounds of what a gateway may say.
const (
	MaxModels = 1024
	MaxName   = 512 // bytes of a model's name

	mostCount = 1 << 53 // that a float64 still counts by ones
)

// ErrReport means that a report says what no gateway can mean.
var ErrReport = errors.New("malformed traffic report")

// Totals is what a gateway has counted of one model since its start. Times are in
// seconds, in the buckets of measure.TTFT and measure.ITL.
type Totals struct {
	Model    string   // as requests name it
	Arrivals uint64   // requests
	Prompt   uint64   // tokens, of requests that have ended
	Cached   uint64   // tokens of those prompts that engines had in their caches
	Output   uint64   // tokens, of requests that have ended
	Waiting  uint64   // requests that wait for a worker at the moment
	First    []uint64 // times to first token by bucket; nil: none yet
	Between  []uint64 // gaps between tokens by bucket; nil: none yet
}

// Validate reports what makes received totals unusable, as [ErrReport].
func (t *Totals) Validate() error {
	if t.Model == "" || len(t.Model) > MaxName {
		return fmt.Errorf("%w: a model's name of %d bytes", ErrReport, len(t.Model))
	}
	for _, n := range [...]uint64{t.Arrivals, t.Prompt, t.Cached, t.Output, t.Waiting} {
		if n > mostCount {
			return fmt.Errorf("%w: a count of %d", ErrReport, n)
		}
	}
	for _, h := range [...]struct {
		counts []uint64
		bounds []float64
	}{{t.First, measure.TTFT.Buckets}, {t.Between, measure.ITL.Buckets}} {
		if len(h.counts) != 0 && len(h.counts) != len(h.bounds)+1 {
			return fmt.Errorf("%w: a histogram of %d buckets", ErrReport, len(h.counts))
		}
		for _, n := range h.counts {
			if n > mostCount {
				return fmt.Errorf("%w: a count of %d", ErrReport, n)
			}
		}
	}
	return nil
}

// same reports whether both say the same.
func (t *Totals) same(o *Totals) bool {
	return t.Model == o.Model && t.Arrivals == o.Arrivals && t.Prompt == o.Prompt && t.Cached == o.Cached &&
		t.Output == o.Output && t.Waiting == o.Waiting && slices.Equal(t.First, o.First) && slices.Equal(t.Between, o.Between)
}

// Read is what the gateway of this process has counted, by model. Models beyond
// [MaxModels] are left out, the last by name.
func Read(r *measure.Registry) []Totals {
	by := map[string]*Totals{}
	of := func(model string) *Totals {
		t := by[model]
		if t == nil {
			t = &Totals{Model: model}
			by[model] = t
		}
		return t
	}
	count := func(d measure.Desc, field func(*Totals) *uint64) {
		for _, s := range r.Read(d).Series {
			*field(of(s.Labels[0])) += uint64(math.Max(s.Value, 0))
		}
	}
	count(measure.Arrivals, func(t *Totals) *uint64 { return &t.Arrivals })
	count(measure.PromptTokens, func(t *Totals) *uint64 { return &t.Prompt })
	count(measure.CachedTokens, func(t *Totals) *uint64 { return &t.Cached })
	count(measure.OutputTokens, func(t *Totals) *uint64 { return &t.Output })
	count(measure.Waiting, func(t *Totals) *uint64 { return &t.Waiting })
	observe := func(d measure.Desc, field func(*Totals) *[]uint64) {
		for _, s := range r.Read(d).Series {
			into := field(of(s.Labels[0]))
			if *into == nil {
				*into = make([]uint64, len(s.Counts))
			}
			for i, n := range s.Counts {
				(*into)[i] += n
			}
		}
	}
	observe(measure.TTFT, func(t *Totals) *[]uint64 { return &t.First })
	observe(measure.ITL, func(t *Totals) *[]uint64 { return &t.Between })
	out := make([]Totals, 0, len(by))
	for model, t := range by {
		if model != "" && model != measure.Other && len(model) <= MaxName {
			out = append(out, *t)
		}
	}
	slices.SortFunc(out, func(a, b Totals) int { return strings.Compare(a.Model, b.Model) })
	return out[:min(len(out), MaxModels)]
}

// Reporter tells what changed since it last did. It belongs to one goroutine, and to
// one listener: another has to hear all.
type Reporter struct {
	read func() []Totals
	told map[string]Totals
}

// NewReporter is a reporter that has told nothing.
func NewReporter(read func() []Totals) *Reporter {
	return &Reporter{read: read, told: map[string]Totals{}}
}

// News is the models whose totals changed. They belong to the listener.
func (r *Reporter) News() []Totals {
	var out []Totals
	for _, t := range r.read() {
		if before, ok := r.told[t.Model]; ok && before.same(&t) {
			continue
		}
		if _, known := r.told[t.Model]; !known && len(r.told) >= MaxModels {
			continue
		}
		r.told[t.Model] = t
		out = append(out, t)
	}
	return out
}
