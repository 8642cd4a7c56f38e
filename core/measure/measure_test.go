package measure

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
)

func TestSeriesCapOverflowsIntoOther(t *testing.T) {
	var r Registry
	d := Desc{Name: "x_total", Labels: []string{"a", "b"}, MaxSeries: 10}
	for i := range 10_000 {
		r.Counter(d, strconv.Itoa(i), "b").Inc()
	}
	fam := r.Snapshot()[0]
	if len(fam.Series) != 11 {
		t.Fatalf("%d series, want 10 and one overflow", len(fam.Series))
	}
	var total, other float64
	for _, s := range fam.Series {
		total += s.Value
		if s.Labels[0] == Other && s.Labels[1] == Other {
			other = s.Value
		}
	}
	if total != 10_000 || other != 9_990 {
		t.Errorf("total %v, other %v", total, other)
	}
}

func TestHistogram(t *testing.T) {
	var r Registry
	h := r.Histogram(Desc{Name: "h_seconds", Type: HistogramType, Buckets: []float64{1, 2}})
	for _, v := range []float64{0.5, 1, 1.5, 3, math.NaN()} {
		h.Observe(v)
	}
	s := r.Snapshot()[0].Series[0]
	if want := []uint64{2, 1, 1}; !slices.Equal(s.Counts, want) || s.Sum != 6 {
		t.Errorf("counts %v sum %v, want %v and 6", s.Counts, s.Sum, want)
	}
}

func TestGaugeBalancesUnderContention(t *testing.T) {
	var r Registry
	g := r.Gauge(Desc{Name: "g", Type: GaugeType})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				g.Add(1)
				g.Add(-1)
			}
		})
	}
	wg.Wait()
	if g.Value() != 0 {
		t.Errorf("gauge = %v", g.Value())
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	var r Registry
	c := r.Counter(Requests, "m", "chat", "ok")
	h := r.Histogram(ITL, "m")
	if n := testing.AllocsPerRun(100, func() { c.Inc(); h.Observe(.01) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Twenty models, each with its routes and outcomes, have series of their own.
func TestModelsKeepTheirSeries(t *testing.T) {
	var r Registry
	for model := range 20 {
		for route := range 4 {
			for outcome := range 8 {
				r.Counter(Requests, fmt.Sprint("m", model), fmt.Sprint("r", route), fmt.Sprint("o", outcome)).Inc()
			}
		}
	}
	if n := len(r.Snapshot()[0].Series); n != 20*4*8 {
		t.Errorf("%d series, want %d", n, 20*4*8)
	}
}

func TestForget(t *testing.T) {
	var r Registry
	kept := r.Gauge(WorkerInFlight, "b", "prefill")
	kept.Set(1)
	for _, phase := range []string{"prefill", "decode"} {
		r.Gauge(WorkerInFlight, "a", phase).Set(2)
	}
	r.Forget(WorkerInFlight, "worker", "a")
	r.Forget(WorkerInFlight, "model", "b") // it has no such label
	if all := r.Snapshot()[0].Series; len(all) != 1 || all[0].Labels[0] != "b" || kept.Value() != 1 {
		t.Errorf("%+v", all)
	}
	if v := r.Gauge(WorkerInFlight, "a", "decode").Value(); v != 0 {
		t.Errorf("a forgotten gauge begins with %v", v)
	}
}

// Counters finds the very series that the registry has, and stays bounded when a
// label is made up by somebody outside.
func TestCounters(t *testing.T) {
	d := Desc{Name: "x_total", Type: CounterType, Labels: []string{"model", "route", "outcome"}, MaxSeries: 8}
	r := new(Registry)
	c := r.Counters(d, "m")
	for range 2 {
		c.Of("chat", "ok").Inc()
	}
	if n := r.Counter(d, "m", "chat", "ok").Value(); n != 2 {
		t.Errorf("%v counted", n)
	}
	for i := range 100 {
		c.Of("chat", strconv.Itoa(i)).Inc()
	}
	if n := len(*c.known.Load()); n > 8 {
		t.Errorf("%d remembered", n)
	}
	if n := r.Counter(d, Other, Other, Other).Value(); n < 90 {
		t.Errorf("%v of what is too many", n)
	}
	if n := testing.AllocsPerRun(100, func() { c.Of("chat", "ok").Inc() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
