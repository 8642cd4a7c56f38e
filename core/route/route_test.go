package route

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
)

var start = time.Unix(1000, 0)

// yard is a fleet with its load.
type yard struct {
	table *load.Table
	view  *fleet.View
}

func newYard(workers ...fleet.Worker) *yard {
	for i := range workers {
		w := &workers[i]
		w.Models = []string{"m"}
		if w.Epoch == 0 {
			w.Epoch = 1
		}
		if w.Role == 0 {
			w.Role = fleet.RoleBoth
		}
	}
	return &yard{load.NewTable(&measure.Registry{}), fleet.NewView(1, workers)}
}

func (y *yard) lined() *load.Columns { return y.table.Columns(y.view) }

func (y *yard) slot(id fleet.WorkerID) *load.Slot { return y.lined().Slots[y.view.Find(id)] }

func (y *yard) decide(t *testing.T, r *Router, q Query, samples *fleet.Samples) *Decision {
	t.Helper()
	if q.Model == "" {
		q.Model = "m"
	}
	q.Now = start
	d, err := r.Decide(&q, y.lined(), samples, Caches{})
	if err != nil {
		t.Fatal(err)
	}
	return &d
}

func TestRoundRobinTakesTurns(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"}, fleet.Worker{ID: "c"})
	r := New(Config{Policy: RoundRobin{}, Mode: Never})
	var got strings.Builder
	for turn := range uint64(7) {
		d := y.decide(t, r, Query{Turn: turn}, nil)
		got.WriteString(string(d.Server().ID))
		if next := d.View.Workers[d.NextServe].ID; next == d.Server().ID {
			t.Errorf("runner-up %s is the first choice", next)
		}
	}
	if got.String() != "abcabca" {
		t.Errorf("order %q", got.String())
	}
}

// Eight requests that come at once over two workers go four to each: every
// decision sees the reservations before it.
func TestLeastRequestCountsOwnWorkAtOnce(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	r := New(Config{Mode: Never})
	for range 8 {
		d := y.decide(t, r, Query{}, nil)
		d.Slots[d.Serve].Reserve(load.Prefill, load.Work{Prompt: 10})
	}
	if a, b := y.slot("a").InFlight(), y.slot("b").InFlight(); a != 4 || b != 4 {
		t.Errorf("a %d, b %d", a, b)
	}
}

func TestTiesAreRandomAndSeeded(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"}, fleet.Worker{ID: "c"})
	run := func(seed uint64) (order string, counts map[fleet.WorkerID]int) {
		r := New(Config{Seed: seed, Mode: Never})
		counts = map[fleet.WorkerID]int{}
		var all strings.Builder
		for range 3000 {
			id := y.decide(t, r, Query{}, nil).Server().ID
			counts[id]++
			all.WriteString(string(id))
		}
		return all.String(), counts
	}
	one, counts := run(7)
	for id, n := range counts {
		if n < 850 || n > 1150 {
			t.Errorf("%s got %d of 3000", id, n)
		}
	}
	if again, _ := run(7); again != one {
		t.Error("the same seed decided otherwise")
	}
	if other, _ := run(8); other == one {
		t.Error("the seed makes no difference")
	}
}

func TestVetoes(t *testing.T) {
	y := newYard(
		fleet.Worker{ID: "drains", Draining: true},
		fleet.Worker{ID: "ejected"},
		fleet.Worker{ID: "prefill", Role: fleet.RolePrefill},
		fleet.Worker{ID: "tried"},
		fleet.Worker{ID: "well"},
	)
	y.slot("ejected").Eject(start, load.Backoff{First: time.Second, Longest: time.Second})
	r := New(Config{Mode: Never})
	tried := []load.Key{{ID: "tried", Epoch: 1}}
	for range 50 {
		if d := y.decide(t, r, Query{Tried: tried}, nil); d.Server().ID != "well" || d.NextServe != None || d.PassedBy {
			t.Fatalf("chose %s", d.Server().ID)
		}
	}
	// With nobody else left the ejected one is tried after all.
	tried = append(tried, load.Key{ID: "well", Epoch: 1})
	if d := y.decide(t, r, Query{Tried: tried}, nil); d.Server().ID != "ejected" || !d.PassedBy {
		t.Errorf("chose %s", d.Server().ID)
	}
	tried = append(tried, load.Key{ID: "ejected", Epoch: 1})
	if _, err := r.Decide(&Query{Model: "m", Now: start, Tried: tried}, y.lined(), nil, Caches{}); !errors.Is(err, ErrNoWorker) {
		t.Errorf("err %v", err)
	}
	if _, err := r.Decide(&Query{Model: "x", Now: start}, y.lined(), nil, Caches{}); !errors.Is(err, ErrUnknownModel) {
		t.Errorf("err %v", err)
	}
	// A worker that was tried in another incarnation is another worker.
	if d := y.decide(t, r, Query{Tried: []load.Key{{ID: "well", Epoch: 9}, {ID: "tried", Epoch: 1}}}, nil); d.Server().ID != "well" {
		t.Errorf("chose %s", d.Server().ID)
	}
}

// An explanation tells a full worker from one that could not be reached.
func TestVetoesSayWhy(t *testing.T) {
	workers := []fleet.Worker{{ID: "ejected"}, {ID: "full", Capacity: fleet.Capacity{MaxRunning: 1}}, {ID: "refused"}, {ID: "doubted"}, {ID: "well"}}
	y := newYard(workers...)
	y.slot("ejected").Eject(start, load.Backoff{First: time.Second, Longest: time.Second})
	for range 2 {
		y.slot("full").Reserve(load.Prefill, load.Work{})
	}
	y.slot("refused").Refused(start)
	y.slot("doubted").Reserve(load.Decode, load.Work{})
	y.slot("doubted").Doubt(start)
	r := New(Config{Mode: Never})
	d := y.decide(t, r, Query{}, nil)
	var e Explanation
	r.Explain(d, &e)
	got := map[fleet.WorkerID]string{}
	for _, v := range e.Vetoed {
		got[v.Worker] = v.Why
	}
	want := map[fleet.WorkerID]string{"ejected": VetoEjected, "full": VetoFull, "refused": VetoRefused, "doubted": VetoDoubted}
	if !maps.Equal(got, want) || d.Server().ID != "well" {
		t.Errorf("vetoed %v, served by %s", got, d.Server().ID)
	}
}

type nanPolicy struct{ only int }

func (nanPolicy) Name() string { return "nan" }

func (p nanPolicy) Score(_ *Query, _ *Columns, cost []float64) {
	for i := range cost {
		if cost[i] = math.NaN(); i == p.only {
			cost[i] = 5
		}
	}
}

func TestNaNIsIneligible(t *testing.T) {
	y := newYard(fleet.Worker{ID: "a"}, fleet.Worker{ID: "b"})
	if d := y.decide(t, New(Config{Policy: nanPolicy{1}, Mode: Never}), Query{}, nil); d.Server().ID != "b" || d.NextServe != None {
		t.Errorf("chose %s", d.Server().ID)
	}
	r := New(Config{Policy: nanPolicy{-1}, Mode: Never})
	if _, err := r.Decide(&Query{Model: "m"}, y.lined(), nil, Caches{}); !errors.Is(err, ErrNoWorker) {
		t.Errorf("all NaN: %v", err)
	}
}

func TestPath(t *testing.T) {
	pair := func() *yard {
		return newYard(
			fleet.Worker{ID: "d", Role: fleet.RoleDecode, Compat: "c", Transfer: "t", Labels: []fleet.Label{{Key: LabelKVTokenBytes, Value: "1000000"}}},
			fleet.Worker{ID: "p", Role: fleet.RolePrefill, Compat: "c", Transfer: "t"},
		)
	}
	rates := func(d, p float64) *fleet.Samples {
		sample := func(id fleet.WorkerID, rate float64) fleet.Sample {
			return fleet.Sample{ID: id, Epoch: 1, Stats: fleet.Stats{PrefillTokensPerSecond: fleet.Report(rate)}}
		}
		return fleet.NewSamples([]fleet.Sample{sample("d", d), sample("p", p)})
	}
	busy := func(y *yard, id fleet.WorkerID, tokens unit.Tokens) *yard {
		y.slot(id).Reserve(load.Prefill, load.Work{Prompt: tokens})
		return y
	}
	tests := []struct {
		name    string
		yard    *yard
		cfg     Config
		prompt  unit.Tokens
		samples *fleet.Samples
		path    Path
		reason  string
	}{
		{"short", pair(), Config{}, 255, nil, Aggregated, ReasonShortPrompt},
		{"long, nothing measured", pair(), Config{}, 256, nil, Disaggregated, ReasonLongPrompt},
		{"off", pair(), Config{Mode: Never}, 5000, nil, Aggregated, ReasonOff},
		{"forced", pair(), Config{Mode: Always}, 1, nil, Disaggregated, ReasonForced},
		{"prefill queue too long", busy(pair(), "p", 5000), Config{}, 1000, nil, Aggregated, ReasonPrefillBusy},
		{"both queues long", busy(busy(pair(), "p", 5000), "d", 2000), Config{}, 1000, nil, Disaggregated, ReasonLongPrompt},
		{"one rate unknown", pair(), Config{}, 1000, rates(0, 1e4), Disaggregated, ReasonLongPrompt},
		{"one gauge broken", pair(), Config{}, 1000, rates(math.NaN(), 1e4), Disaggregated, ReasonLongPrompt},
		// 1,000 tokens at 1,000/s take 1 s, their 1 GB of KV 1 s behind it: 1 ms shows.
		{"equal rates", pair(), Config{}, 1000, rates(1e3, 1e3), Disaggregated, ReasonPredictedFaster},
		// At 10,000/s the prompt takes .1 s, and .9 s of transfer shows.
		{"link too slow", pair(), Config{}, 1000, rates(1e4, 1e4), Aggregated, ReasonPredictedSlower},
		{"slow prefill worker", pair(), Config{}, 1000, rates(2e3, 1e3), Aggregated, ReasonPredictedSlower},
		{"prefill worker queues", busy(pair(), "p", 1000), Config{}, 1000, rates(1e3, 1e3), Aggregated, ReasonPredictedSlower},
		{"decode worker queues", busy(pair(), "d", 2000), Config{}, 1000, rates(1e4, 1e4), Aggregated, ReasonPredictedSlower},
		{"decode worker queues a lot", busy(pair(), "d", 20000), Config{}, 1000, rates(1e4, 1e4), Disaggregated, ReasonPredictedFaster},
		{"no prefill worker", newYard(fleet.Worker{ID: "d", Role: fleet.RoleDecode, Compat: "c", Transfer: "t"}), Config{}, 1000, nil, Aggregated, ReasonNoPrefillWorker},
		{"other group", newYard(fleet.Worker{ID: "d", Role: fleet.RoleDecode, Compat: "c", Transfer: "t"}, fleet.Worker{ID: "p", Role: fleet.RolePrefill, Compat: "e", Transfer: "t"}), Config{}, 1000, nil, Aggregated, ReasonNoPrefillWorker},
		{"empty group pairs with nobody", newYard(fleet.Worker{ID: "d", Role: fleet.RoleDecode, Transfer: "t"}, fleet.Worker{ID: "p", Role: fleet.RolePrefill, Transfer: "t"}), Config{}, 1000, nil, Aggregated, ReasonNoTransfer},
		{"alone in both roles", newYard(fleet.Worker{ID: "d", Compat: "c", Transfer: "t"}), Config{}, 1000, nil, Aggregated, ReasonNoPrefillWorker},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := tt.yard.decide(t, New(tt.cfg), Query{Prompt: tt.prompt}, tt.samples)
			if d.Path != tt.path || d.Reason != tt.reason {
				t.Errorf("%v %s, want %v %s", d.Path, d.Reason, tt.path, tt.reason)
			}
			if d.Server().ID != "d" || (d.Prefiller() != nil) != (tt.path == Disaggregated) {
				t.Errorf("serve %s, prefill %v", d.Server().ID, d.Prefiller())
			}
		})
	}
}

// What the serving worker holds is computed by nobody, and what the prefill
// worker holds is computed already.
func TestPathCountsUncachedTokens(t *testing.T) {
	tests := []struct {
		name          string
		serve, helper int // blocks of 100 that the two hold
		samples       bool
		path          Path
		reason        string
	}{
		{"nobody holds any", 0, 0, true, Disaggregated, ReasonPredictedFaster},
		{"the serving worker holds nearly all", 88, 0, true, Aggregated, ReasonCached},
		{"the serving worker holds half", 48, 0, true, Aggregated, ReasonPredictedSlower},
		{"the prefill worker holds as much", 48, 64, true, Disaggregated, ReasonPredictedFaster},
		{"rates unknown", 48, 0, false, Disaggregated, ReasonLongPrompt},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			y := newYard(
				fleet.Worker{ID: "d", Role: fleet.RoleDecode, Compat: "c", Transfer: "t"},
				fleet.Worker{ID: "p", Role: fleet.RolePrefill, Compat: "c", Transfer: "t"},
			)
			var samples *fleet.Samples
			if tt.samples {
				samples = samplesOf(y)
			}
			tracker := prefix.NewTracker(prefix.TrackerOptions{})
			tracker.Follow(y.view)
			chain := text(1, 100)
			tracker.Dispatched("d", 1, chain[:tt.serve])
			tracker.Dispatched("p", 1, chain[:tt.helper])
			q := Query{Model: "m", Prompt: 1600, Chain: chain, BlockTokens: 16, Now: start}
			d, err := New(Config{}).Decide(&q, y.lined(), samples, Caches{Guess: tracker.Table()})
			if err != nil || d.Path != tt.path || d.Reason != tt.reason {
				t.Errorf("%v %s %v, want %v %s", d.Path, d.Reason, err, tt.path, tt.reason)
			}
			if want := unit.Tokens(16 * tt.serve); d.ServeHit != want {
				t.Errorf("hit %d, want %d", d.ServeHit, want)
			}
		})
	}
}

// The events' index answers for the workers it knows, with this gateway's own
// decisions of the last seconds on top; a number that comes to mean another
// incarnation takes none of them over.
func TestSourcesOfHits(t *testing.T) {
	y := newYard(fleet.Worker{ID: "told"}, fleet.Worker{ID: "guessed"})
	state := prefix.NewState(prefix.Options{})
	state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: "told", Epoch: 1})
	row, _ := state.Table().Find("told", 1)
	chain := text(1, 16)
	state.Table().Index.Store(row.Worker, chain[:4])
	tracker := prefix.NewTracker(prefix.TrackerOptions{})
	tracker.Follow(y.view)
	tracker.Dispatched("told", 1, chain) // never asked
	tracker.Dispatched("guessed", 1, chain[:8])
	r := New(Config{Mode: Never})
	decide := func() (*Query, Decision, map[fleet.WorkerID]float64) {
		q := &Query{Model: "m", Prompt: 256, Chain: chain, BlockTokens: 16, Now: start}
		d, err := r.Decide(q, y.lined(), nil, Caches{Events: state.Table(), Guess: tracker.Table()})
		if err != nil {
			t.Fatal(err)
		}
		var e Explanation
		r.Explain(&d, &e)
		hits := map[fleet.WorkerID]float64{}
		for _, c := range e.Serving {
			hits[c.Worker] = c.Hit
		}
		return q, d, hits
	}
	q, d, hits := decide()
	if hits["told"] != 64 || hits["guessed"] != 128 || d.Server().ID != "guessed" {
		t.Fatalf("%v, chose %s", hits, d.Server().ID)
	}
	d.Serve = y.view.Find("told")
	presence := r.Commit(q, &d)
	presence.Leave()
	if _, _, hits = decide(); hits["told"] != 256 {
		t.Errorf("an own decision does not count: %v", hits)
	}
	// Another incarnation gets the number.
	state.Apply(&prefix.Frame{Kind: prefix.FrameDetach, Worker: "told", Epoch: 1})
	y.view = fleet.NewView(2, []fleet.Worker{
		{ID: "told", Epoch: 2, Role: fleet.RoleBoth, Models: []string{"m"}},
		{ID: "guessed", Epoch: 1, Role: fleet.RoleBoth, Models: []string{"m"}},
	})
	state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: "told", Epoch: 2})
	if again, _ := state.Table().Find("told", 2); again.Worker != row.Worker {
		t.Skip("the number was not given again")
	}
	if _, _, hits = decide(); hits["told"] != 0 {
		t.Errorf("a new incarnation inherited a guess: %v", hits)
	}
}

// What the crowd counts goes back to nothing, and never to less than the truth
// meanwhile.
func TestCrowdBalances(t *testing.T) {
	var c crowd
	chain := text(1, 100)
	var in []Presence
	for i := range 50 {
		in = append(in, c.enter(append(slices.Clone(chain), text(10+i, 60)...), 7))
		in = append(in, c.enter(text(100+i, 300), 7))
	}
	of := func(chain []prefix.Hash, blocks int, worker uint64) int {
		h, ok := leading(chain, blocks)
		if !ok {
			return 0
		}
		return c.of(h, worker)
	}
	for _, blocks := range []int{1, 2, 99, 100} {
		if n := of(chain, blocks, 7); n < 50 || n > 55 {
			t.Errorf("%d share %d blocks", n, blocks)
		}
	}
	if of(chain, 0, 7) != 0 || of(chain, 100, 8) > 5 || of(nil, 0, 7) != 0 {
		t.Error("counted those that share nothing")
	}
	for i := range in {
		in[i].Leave()
		in[i].Leave()
	}
	for r := range c.rows {
		for i := range c.rows[r] {
			if n := c.rows[r][i].Load(); n != 0 {
				t.Fatalf("cell %d of row %d is %d", i, r, n)
			}
		}
	}
}

func TestEjectedPrefillWorkerIsNotPaired(t *testing.T) {
	y := newYard(
		fleet.Worker{ID: "d", Role: fleet.RoleDecode, Compat: "c", Transfer: "t"},
		fleet.Worker{ID: "p", Role: fleet.RolePrefill, Compat: "c", Transfer: "t"},
	)
	y.slot("p").Eject(start, load.Backoff{First: time.Second, Longest: time.Second})
	if d := y.decide(t, New(Config{}), Query{Prompt: 1000}, nil); d.Path != Aggregated || d.Reason != ReasonNoPrefillWorker {
		t.Errorf("%v %s", d.Path, d.Reason)
	}
}

func TestValidateReportsEverything(t *testing.T) {
	err := Config{Mode: 9, MinPrompt: -1, Slack: math.NaN(), BusyTokens: -1}.Validate()
	if err == nil || len(err.(interface{ Unwrap() []error }).Unwrap()) != 4 {
		t.Errorf("%v", err)
	}
	if err := (Config{}).Validate(); err != nil {
		t.Error(err)
	}
	for _, m := range []Mode{Auto, Never, Always} {
		if got, err := ParseMode(m.String()); got != m || err != nil {
			t.Errorf("%v: %v %v", m, got, err)
		}
	}
	if _, err := PolicyNamed("best"); err == nil {
		t.Error("unknown policy accepted")
	}
}

func bigYard(n int) *yard {
	var workers []fleet.Worker
	for i := range n {
		workers = append(workers, fleet.Worker{ID: fleet.WorkerID(fmt.Sprintf("w%03d", i)), Role: fleet.RoleBoth, Compat: "c", Transfer: "t"})
	}
	return newYard(workers...)
}

// known makes a yard of 256 workers whose caches events tell, and prompts of 512
// blocks that some of them hold, all of it or its beginning.
func known(tb testing.TB) (*yard, Caches, [][]prefix.Hash) {
	tb.Helper()
	y := bigYard(256)
	state := prefix.NewState(prefix.Options{})
	prompts := make([][]prefix.Hash, 64)
	for i := range prompts {
		prompts[i] = text(i, 512)
		copy(prompts[i], text(-1, 64)) // all begin alike
	}
	for i, w := range y.view.Workers {
		frame := prefix.Frame{Kind: prefix.FrameAttach, Worker: w.ID, Epoch: w.Epoch}
		if out := state.Apply(&frame); out != prefix.Applied {
			tb.Fatal(out)
		}
		row, _ := state.Table().Find(w.ID, w.Epoch)
		for k := range prompts {
			if (i+k)%32 == 0 {
				state.Table().Index.Store(row.Worker, prompts[k][:128+(i*k)%384])
			}
		}
	}
	return y, Caches{Events: state.Table()}, prompts
}

// A decision allocates nothing, look-up, speculation and explanation included.
func TestDecideDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	y, caches, prompts := known(t)
	prompts = prompts[:8]
	samples := samplesOf(y)
	overlay := prefix.NewOverlay(time.Hour, 64<<20)
	for i := range y.view.Workers { // it grows no more
		for _, chain := range prompts {
			overlay.Add(prefix.Worker(i), chain, start)
		}
	}
	for _, policy := range append(Policies(), Blend{[]Weighted{{Sticky{}, 1}, {LMetric{}, 1}}}) {
		r := New(Config{Policy: policy})
		r.overlay = overlay
		lined := y.lined()
		var e Explanation
		i := 0
		decide := func() {
			i++
			q := &Query{Model: "m", Prompt: 8192, Chain: prompts[i%len(prompts)], BlockTokens: 16, Now: start}
			d, err := r.Decide(q, lined, samples, caches)
			if err != nil {
				t.Fatal(err)
			}
			p := r.Commit(q, &d)
			r.Explain(&d, &e)
			p.Leave()
		}
		for range 3 * len(prompts) {
			decide() // scratch grows
		}
		if n := testing.AllocsPerRun(100, decide); n != 0 {
			t.Errorf("%s: %v allocations", policy.Name(), n)
		}
	}
}

// samplesOf has a word of every worker.
func samplesOf(y *yard) *fleet.Samples {
	var out []fleet.Sample
	for _, w := range y.view.Workers {
		out = append(out, fleet.Sample{ID: w.ID, Epoch: w.Epoch, At: start, Stats: fleet.Stats{
			Running: fleet.Report(3), Waiting: fleet.Report(0), PrefillTokensPerSecond: fleet.Report(1e4),
		}})
	}
	return fleet.NewSamples(out)
}

// BenchmarkDecide is a decision among 256 workers for a prompt of 512 blocks,
// some of which 8 of them hold, with the look-up and the choice of the path.
func BenchmarkDecide(b *testing.B) {
	y, caches, prompts := known(b)
	samples := samplesOf(y)
	for i, slot := range y.lined().Slots {
		for range i % 6 {
			slot.Reserve(load.Prefill, load.Work{Prompt: 100})
		}
	}
	for _, overlay := range []bool{false, true} {
		for _, policy := range Policies() {
			b.Run(fmt.Sprintf("%s/overlay=%v", policy.Name(), overlay), func(b *testing.B) {
				r := New(Config{Policy: policy, Mode: Never})
				lined := y.lined()
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					i++
					q := &Query{Model: "m", Prompt: 8192, Chain: prompts[i%len(prompts)], BlockTokens: 16, Now: start}
					d, err := r.Decide(q, lined, samples, caches)
					if err != nil {
						b.Fatal(err)
					}
					if overlay && i <= len(prompts) {
						r.speculate(q, d.Serve)
					}
				}
			})
		}
	}
}

// BenchmarkDecideCommit is a decision that is carried out and has ended, 1,000 a
// second, with what the decision lock covers of it. The last blocks of the
// prompt of 512 are new each time.
func BenchmarkDecideCommit(b *testing.B) {
	for _, fresh := range []int{0, 64, 512} {
		b.Run(fmt.Sprintf("new=%d", fresh), func(b *testing.B) {
			y, caches, prompts := known(b)
			samples, lined := samplesOf(y), y.lined()
			r := New(Config{Mode: Never})
			chain := make([]prefix.Hash, 512)
			i := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				i++
				copy(chain, prompts[i%uint64(len(prompts))])
				for k := len(chain) - fresh; k < len(chain); k++ {
					chain[k] = prefix.Hash(mix.Bits(i<<10 | uint64(k)))
				}
				q := &Query{Model: "m", Prompt: 8192, Chain: chain, BlockTokens: 16, Now: start.Add(time.Duration(i) * time.Millisecond)}
				d, err := r.Decide(q, lined, samples, caches)
				if err != nil {
					b.Fatal(err)
				}
				work := d.Slots[d.Serve].Reserve(load.Prefill, load.Work{Prompt: q.Prompt - d.ServeHit})
				presence := r.Commit(q, &d)
				presence.Leave()
				work.Close()
			}
		})
	}
}
