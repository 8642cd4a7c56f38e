package traffic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
)

var start = time.Unix(1_000_000, 0)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func TestReadIsWhatTheGatewayCounted(t *testing.T) {
	var r measure.Registry
	r.Counter(measure.Arrivals, "m").Add(3)
	r.Counter(measure.Arrivals, "").Inc() // of no model
	r.Counter(measure.PromptTokens, "m").Add(1000)
	r.Counter(measure.CachedTokens, "m").Add(250)
	r.Counter(measure.OutputTokens, "m").Add(70)
	r.Gauge(measure.Waiting, "m").Set(2)
	r.Histogram(measure.TTFT, "m", "aggregated").Observe(.02)
	r.Histogram(measure.TTFT, "m", "disaggregated").Observe(1000)
	r.Histogram(measure.ITL, "m").Observe(.0002)
	got := Read(&r)
	want := []Totals{{Model: "m", Arrivals: 3, Prompt: 1000, Cached: 250, Output: 70, Waiting: 2}}
	want[0].First, want[0].Between = make([]uint64, len(measure.TTFT.Buckets)+1), make([]uint64, len(measure.ITL.Buckets)+1)
	want[0].First[2], want[0].First[len(measure.TTFT.Buckets)], want[0].Between[1] = 1, 1, 1
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := got[0].Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateRefusesWhatNoGatewaySays(t *testing.T) {
	for name, bad := range map[string]Totals{
		"no model":     {},
		"a long name":  {Model: strings.Repeat("m", MaxName+1)},
		"a huge count": {Model: "m", Output: 1 << 60},
		"half a histogram": {
			Model: "m", First: []uint64{1, 2},
		},
		"a huge bucket": {Model: "m", Between: append(make([]uint64, len(measure.ITL.Buckets)), 1<<60)},
	} {
		if err := bad.Validate(); !errors.Is(err, ErrReport) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReporterTellsWhatChanged(t *testing.T) {
	now := []Totals{{Model: "a", Arrivals: 1}, {Model: "b"}}
	r := NewReporter(func() []Totals { return now })
	steps := []struct {
		change func()
		want   int
	}{
		{func() {}, 2},
		{func() {}, 0},
		{func() { now[0].Waiting = 1 }, 1},
		{func() { now[1].First = make([]uint64, 16) }, 1},
		{func() { now = append(now, Totals{Model: "c"}) }, 1},
	}
	for i, step := range steps {
		step.change()
		if got := r.News(); len(got) != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

// A gateway's first word is where counting begins, and no gap counts twice.
func TestMeter(t *testing.T) {
	b, m := NewBook(), NewMeter()
	read := func(arrivals float64, known bool) {
		t.Helper()
		served, ok := m.Read(b)
		got := 0.0
		if s := served["m"]; s != nil {
			got = s.Arrivals
		}
		if ok != known || math.Abs(got-arrivals) > 1e-9 {
			t.Errorf("%v arrivals/s, %v, want %v, %v", got, ok, arrivals, known)
		}
	}
	say := func(p *Page, seconds float64, arrivals uint64) {
		if err := p.Update(at(seconds), []Totals{{Model: "m", Arrivals: arrivals}}); err != nil {
			t.Fatal(err)
		}
	}
	read(0, false)
	one := b.Open("g1", 1)
	read(0, false) // it is there, and has said nothing
	say(one, 0, 500)
	read(0, false)
	say(one, 5, 600)
	read(20, true)
	read(20, true) // no word since
	if err := one.Update(at(10), nil); err != nil {
		t.Fatal(err)
	}
	read(0, true) // zero is data
	two := b.Open("g2", 7)
	say(two, 10, 1_000_000)
	read(0, true)
	say(one, 15, 650)
	say(two, 15, 1_000_100)
	read(10+20, true)
	// The link is lost and made anew between two looks: nothing is lost of the count.
	two.Close()
	two = b.Open("g2", 7)
	say(two, 20, 1_000_200)
	say(one, 20, 650)
	read(20, true)
	two = b.Open("g2", 8) // it restarted
	say(two, 25, 40)
	say(one, 25, 650)
	read(0, true)
	say(two, 30, 90)
	read(10, true)
	say(two, 35, 10) // a liar
	read(0, true)
	say(two, 40, 20)
	read(2, true)
	one.Close()
	two.Close()
	read(0, false)
}

func TestQuantile(t *testing.T) {
	var r measure.Registry
	h := r.Histogram(measure.TTFT, "m", "aggregated")
	b, m := NewBook(), NewMeter()
	p := b.Open("g", 1)
	say := func(seconds float64) *Served {
		if err := p.Update(at(seconds), Read(&r)); err != nil {
			t.Fatal(err)
		}
		served, _ := m.Read(b)
		return served["m"]
	}
	h.Observe(100) // before anybody looked
	say(0)
	for range 50 {
		h.Observe(.03) // of the bucket from 25 to 50 ms
	}
	for range 50 {
		h.Observe(.2) // from 100 to 250 ms
	}
	s := say(5)
	for q, want := range map[float64]float64{.25: 37.5, .5: 50, .75: 175, 1: 250} {
		if got := s.First.Quantile(q); math.Abs(got-want) > 1e-6 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := s.Between.Quantile(.5); !math.IsNaN(got) {
		t.Errorf("no gap between tokens was seen: %v", got)
	}
	for range 10 {
		h.Observe(1e6)
	}
	if got := say(10).First.Quantile(.5); got != 300_000 {
		t.Errorf("beyond the last bound: %v", got)
	}
}

// Whatever gateways do, what the meter adds up is not more than what they counted.
func TestMeterNeitherLeaksNorDoubles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type gateway struct {
			page        *Page
			incarnation uint64
			count       uint64
		}
		b, m := NewBook(), NewMeter()
		gateways := make([]gateway, 3)
		now, served, counted := 0.0, 0.0, 0.0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, len(gateways)-1).Draw(t, "gateway")
			g := &gateways[i]
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0: // it dies, and another incarnation comes
				if g.page != nil {
					g.page.Close()
				}
				*g = gateway{page: b.Open(fmt.Sprint("g", i), g.incarnation+1), incarnation: g.incarnation + 1}
			case 1: // it goes
				if g.page != nil {
					g.page.Close()
					g.page = nil
				}
			default:
				if g.page == nil {
					g.page = b.Open(fmt.Sprint("g", i), g.incarnation)
				}
				n := rapid.Uint64Range(0, 100).Draw(t, "requests")
				g.count += n
				counted += float64(n)
			}
			now++
			for j := range gateways {
				if g := &gateways[j]; g.page != nil {
					if err := g.page.Update(at(now), []Totals{{Model: "m", Arrivals: g.count}}); err != nil {
						t.Fatal(err)
					}
				}
			}
			all, _ := m.Read(b)
			if s := all["m"]; s != nil {
				served += s.Arrivals // times one second
			}
			if served > counted+1e-6 {
				t.Fatalf("%v served of %v counted", served, counted)
			}
		}
	})
}

func TestBookIsBounded(t *testing.T) {
	p := NewBook().Open("g", 1)
	for i := range MaxModels {
		if err := p.Update(start, []Totals{{Model: strconv.Itoa(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Update(start, []Totals{{Model: "one more"}}); !errors.Is(err, ErrReport) {
		t.Error(err)
	}
	if err := p.Update(start, []Totals{{Model: "7", Arrivals: 2}}); err != nil {
		t.Error(err)
	}
}

func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := NewBook(), NewMeter()
		var r measure.Registry
		arrivals := r.Counter(measure.Arrivals, "m")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { Keep(ctx, clock.Real{}, b, "gateway", func() []Totals { return Read(&r) }) })
		synctest.Wait()
		m.Read(b)
		arrivals.Add(10)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if served, known := m.Read(b); !known || served["m"].Arrivals != 5 {
			t.Errorf("%+v, %v", served["m"], known)
		}
		cancel()
		wg.Wait()
		if _, known := m.Read(b); known {
			t.Error("a page outlived its gateway")
		}
	})
}
