package policy

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/host"
)

// scorer is kv-cost by vectors of four, 700 bytes. The test builds it from text.
//
//go:embed scorer.wasm
var scorer []byte

// Scorer is a small router, kv-cost by vectors of four. It is not to be changed.
func Scorer() []byte { return scorer }

// Options shape a measurement. Zero fields mean the defaults.
type Options struct {
	Counts []int  // candidates; 16, 256, 1024 and 4096
	Module []byte // a router with the formula of kv-cost; the one built in
	Go     []byte // another one, built by Go; none
	Rounds int    // of which the median counts; 201
	Seed   uint64
}

// Result is what a decision costs, in microseconds by number of candidates.
type Result struct {
	Policy   string             `json:"policy"` // of the module
	Counts   []int              `json:"candidates"`
	WasmUS   map[string]float64 `json:"wasm_us"`
	NativeUS map[string]float64 `json:"native_us"`           // kv-cost over columns
	UsualUS  map[string]float64 `json:"usual_us"`            // over a slice of pointers, with a call per worker
	GoUS     map[string]float64 `json:"go_us,omitempty"`     // of the module built by Go
	Fuel     map[string]int64   `json:"fuel"`                // units that the module uses
	GoFuel   map[string]int64   `json:"go_fuel,omitempty"`   // likewise
	Allocs   float64            `json:"allocs"`              // a decision by the module, the most of any count
	GoAllocs float64            `json:"go_allocs,omitempty"` // likewise
}

// ErrOther says that a module decides otherwise than the native policy.
var ErrOther = errors.New("the policy decides otherwise than kv-cost")

// Run measures.
func Run(ctx context.Context, o Options) (r *Result, err error) {
	o.fill()
	h, err := host.New(ctx, idle{}, host.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close(context.WithoutCancel(ctx))) }()
	wasm, err := load(ctx, h, o.Module)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, wasm.close(ctx)) }()
	r = &Result{
		Policy: wasm.router.Name(), Counts: o.Counts, WasmUS: map[string]float64{}, NativeUS: map[string]float64{}, UsualUS: map[string]float64{}, Fuel: map[string]int64{},
	}
	var built *guest
	if o.Go != nil {
		if built, err = load(ctx, h, o.Go); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, built.close(ctx)) }()
		r.GoUS, r.GoFuel = map[string]float64{}, map[string]int64{}
	}
	for _, n := range o.Counts {
		if err := r.measure(ctx, &o, n, wasm, built); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (o *Options) fill() {
	if len(o.Counts) == 0 {
		o.Counts = []int{16, 256, 1024, 4096}
	}
	if o.Module == nil {
		o.Module = scorer
	}
	if o.Rounds <= 0 {
		o.Rounds = 201
	}
}

// guest is a module under measurement.
type guest struct {
	policy *host.Policy
	router *host.Router
}

func load(ctx context.Context, h *host.Host, module []byte) (*guest, error) {
	p, err := h.Load(ctx, module, 2*runtime.GOMAXPROCS(0), nil)
	if err != nil {
		return nil, err
	}
	r, err := host.NewRouter(p, route.RoundRobin{})
	if err != nil {
		return nil, errors.Join(err, p.Close(ctx))
	}
	return &guest{p, r}, nil
}

func (g *guest) close(ctx context.Context) error { return g.policy.Close(context.WithoutCancel(ctx)) }

// form is one way to decide.
type form struct {
	decide func() int // returns the candidate's place
	us     map[string]float64
	times  []float64
}

// measure takes the time of all forms for n candidates, in turns.
func (r *Result) measure(ctx context.Context, o *Options, n int, wasm, built *guest) error {
	f := newFleet(n, o.Seed)
	forms := []*form{
		{decide: f.native, us: r.NativeUS},
		{decide: f.usual, us: r.UsualUS},
		{decide: func() int { return f.by(wasm.router) }, us: r.WasmUS},
	}
	if built != nil {
		forms = append(forms, &form{decide: func() int { return f.by(built.router) }, us: r.GoUS})
	}
	want := f.native()
	for _, m := range forms {
		if got := m.decide(); got != want {
			return fmt.Errorf("%w: of %d candidates it picks %d instead of %d", ErrOther, n, got, want)
		}
	}
	key := strconv.Itoa(n)
	// A round is about 100 µs, so that few are disturbed by others.
	each := max(20_000/(n+100), 4)
	for range o.Rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, m := range forms {
			m.decide()
			start := time.Now()
			for range each {
				m.decide()
			}
			m.times = append(m.times, float64(time.Since(start).Nanoseconds())/1000/float64(each))
		}
	}
	for _, m := range forms {
		slices.Sort(m.times)
		m.us[key] = round(m.times[len(m.times)/2])
	}
	r.Fuel[key] = f.fuel(wasm)
	r.Allocs = max(r.Allocs, allocations(forms[2].decide))
	if built != nil {
		r.GoFuel[key] = f.fuel(built)
		r.GoAllocs = max(r.GoAllocs, allocations(forms[3].decide))
	}
	return r.answered(wasm, built)
}

// answered checks that no fallback decided in a guest's place.
func (r *Result) answered(guests ...*guest) error {
	for _, g := range guests {
		if g == nil {
			continue
		}
		c := g.router.Counts()
		for _, f := range host.Faults() {
			if c.Faults[f] > 0 {
				return fmt.Errorf("bench policy: %s did not answer %d times: %s", g.router.Name(), c.Faults[f], f)
			}
		}
	}
	return nil
}

// round keeps a nanosecond.
func round(us float64) float64 { return float64(int64(us*1000+.5)) / 1000 }

// allocations is how many there are in one call.
func allocations(f func() int) float64 {
	const calls = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64((after.Mallocs - before.Mallocs) / calls)
}

// idle offers guests nothing.
type idle struct{}

func (idle) Log(string, int, []byte)                       {}
func (idle) Count(string, int, int64)                      {}
func (idle) Observe(string, int, float64)                  {}
func (idle) NowMillis() int64                              { return time.Now().UnixMilli() }
func (idle) Get(string, bool, []byte, []byte) int          { return -1 }
func (idle) Set(string, bool, []byte, []byte) bool         { return false }
func (idle) Add(string, bool, []byte, int64) (int64, bool) { return 0, false }

// draw is a source of made-up numbers.
func draw(seed uint64) *rand.Rand {
	return rand.New(rand.NewPCG(seed, 11)) //nolint:gosec // a workload needs no secrecy
}
