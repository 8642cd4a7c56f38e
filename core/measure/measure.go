package measure

import (
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Type is the kind of a metric.
type Type uint8

// The metric types.
const (
	CounterType Type = iota
	GaugeType
	HistogramType
)

// Desc declares one metric family. Those of this repository stand in catalog.go.
type Desc struct {
	Name    string // full Prometheus name, unit as suffix
	Help    string
	Type    Type
	Labels  []string
	Buckets []float64 // ascending upper bounds, for histograms
	// MaxSeries bounds the label combinations; 0 means 256.
	MaxSeries int
}

const defaultMaxSeries = 256

// Other is the value of every label of a family's overflow series.
const Other = "other"

// Registry holds the families of one process (or of one test). The zero value
// is ready to use.
type Registry struct {
	mu       sync.Mutex
	families map[string]*family
}

type family struct {
	desc   Desc
	mu     sync.RWMutex
	series map[string]*series
}

type series struct {
	labels []string
	bits   atomic.Uint64 // counter or gauge value as float64 bits
	hist   *histogram
}

type histogram struct {
	bounds []float64
	counts []atomic.Uint64 // one more than bounds
	sum    atomic.Uint64   // float64 bits
}

func (r *Registry) family(d Desc) *family {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.families[d.Name]
	if f == nil {
		if r.families == nil {
			r.families = map[string]*family{}
		}
		f = &family{desc: d, series: map[string]*series{}}
		r.families[d.Name] = f
	}
	return f
}

func (f *family) get(values []string) *series {
	key := strings.Join(values, "\xff")
	f.mu.RLock()
	s := f.series[key]
	f.mu.RUnlock()
	if s != nil {
		return s
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s = f.series[key]; s != nil {
		return s
	}
	if len(f.series) >= f.cap() {
		values = slices.Repeat([]string{Other}, len(f.desc.Labels))
		key = strings.Join(values, "\xff")
		if s = f.series[key]; s != nil {
			return s
		}
	}
	s = &series{labels: slices.Clone(values)}
	if f.desc.Type == HistogramType {
		s.hist = &histogram{bounds: f.desc.Buckets, counts: make([]atomic.Uint64, len(f.desc.Buckets)+1)}
	}
	f.series[key] = s
	return s
}

func (f *family) cap() int {
	if f.desc.MaxSeries > 0 {
		return f.desc.MaxSeries
	}
	return defaultMaxSeries
}

func addFloat(bits *atomic.Uint64, delta float64) {
	for {
		old := bits.Load()
		if bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+delta)) {
			return
		}
	}
}

// Forget drops the series of family d whose label has the value: what a gauge
// said of a worker that is gone is no longer so. Whoever has such a series kept
// writes where nobody reads.
func (r *Registry) Forget(d Desc, label, value string) {
	at := slices.Index(d.Labels, label)
	if at < 0 {
		return
	}
	f := r.family(d)
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, s := range f.series {
		if s.labels[at] == value {
			delete(f.series, key)
		}
	}
}

// Counter is one rising series. Keep it; looking it up again costs a map read.
type Counter struct{ s *series }

// Counter returns the series of family d with the given label values, in the
// order of d.Labels.
func (r *Registry) Counter(d Desc, values ...string) Counter {
	return Counter{r.family(d).get(values)}
}

// Inc adds one.
func (c Counter) Inc() { addFloat(&c.s.bits, 1) }

// Add adds n, which must not be negative.
func (c Counter) Add(n float64) { addFloat(&c.s.bits, n) }

// Value is the count so far.
func (c Counter) Value() float64 { return math.Float64frombits(c.s.bits.Load()) }

// Gauge is one series that goes up and down.
type Gauge struct{ s *series }

// Gauge returns the series of family d with the given label values.
func (r *Registry) Gauge(d Desc, values ...string) Gauge {
	return Gauge{r.family(d).get(values)}
}

// Set replaces the value.
func (g Gauge) Set(v float64) { g.s.bits.Store(math.Float64bits(v)) }

// Add moves the value by delta.
func (g Gauge) Add(delta float64) { addFloat(&g.s.bits, delta) }

// Value is the current value.
func (g Gauge) Value() float64 { return math.Float64frombits(g.s.bits.Load()) }

// Histogram is one series of observations in buckets.
type Histogram struct{ s *series }

// Histogram returns the series of family d with the given label values.
func (r *Registry) Histogram(d Desc, values ...string) Histogram {
	return Histogram{r.family(d).get(values)}
}

// Observe adds one observation. NaN is dropped: it is not a number of anything.
func (h Histogram) Observe(v float64) {
	if math.IsNaN(v) {
		return
	}
	hist := h.s.hist
	hist.counts[sort.SearchFloat64s(hist.bounds, v)].Add(1)
	addFloat(&hist.sum, v)
}

// Family is a snapshot of one metric family.
type Family struct {
	Desc   Desc
	Series []Series
}

// Series is a snapshot of one series.
type Series struct {
	Labels []string // values in the order of Desc.Labels
	Value  float64  // counters and gauges
	Counts []uint64 // histograms: observations per bucket, not cumulative, the last is +Inf
	Sum    float64  // histograms
}

// Snapshot copies every family, ordered by name and then by labels.
func (r *Registry) Snapshot() []Family {
	r.mu.Lock()
	families := make([]*family, 0, len(r.families))
	for _, f := range r.families {
		families = append(families, f)
	}
	r.mu.Unlock()
	slices.SortFunc(families, func(a, b *family) int { return strings.Compare(a.desc.Name, b.desc.Name) })
	out := make([]Family, len(families))
	for i, f := range families {
		out[i] = f.snapshot()
	}
	return out
}

// Read copies one family. It has no series before somebody asks for one.
func (r *Registry) Read(d Desc) Family { return r.family(d).snapshot() }

func (f *family) snapshot() Family {
	f.mu.RLock()
	defer f.mu.RUnlock()
	out := Family{Desc: f.desc}
	for _, s := range f.series {
		snap := Series{Labels: s.labels, Value: math.Float64frombits(s.bits.Load())}
		if s.hist != nil {
			snap.Sum = math.Float64frombits(s.hist.sum.Load())
			for i := range s.hist.counts {
				snap.Counts = append(snap.Counts, s.hist.counts[i].Load())
			}
		}
		out.Series = append(out.Series, snap)
	}
	slices.SortFunc(out.Series, func(a, b Series) int { return slices.Compare(a.Labels, b.Labels) })
	return out
}
