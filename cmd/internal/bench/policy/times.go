package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
)

// TimesOptions shape a measurement of one module. Zero fields mean the defaults.
type TimesOptions struct {
	Module []byte             // a policy of any kind
	Params map[string]float64 // those left out have their defaults
	Counts []int              // rows; 16, 256, 1024 and 4096, of an autoscaler 1, 16 and 64 pools, of admission 1
	Rounds int                // of which the median counts; 101
	Seed   uint64
}

// Times are what a module's decisions cost, by number of rows.
type Times struct {
	Policy  string                        `json:"policy"`
	Kind    string                        `json:"kind"`
	Counts  []int                         `json:"rows"`
	Room    int                           `json:"room"`      // rows that the guest has room for; 0 where there are none
	US      map[string]float64            `json:"wasm_us"`   // a decision, medians
	Native  map[string]map[string]float64 `json:"native_us"` // the binary's own policies, by name
	FuelP50 map[string]int64              `json:"fuel_p50"`
	FuelP99 map[string]int64              `json:"fuel_p99"`
	Budget  int64                         `json:"fuel_budget"`
	Allocs  float64                       `json:"allocs"` // in a decision, the most of any count
	// Faults is how many decisions of all those made a fallback had to make, by reason.
	Faults    map[string]uint64 `json:"faults,omitempty"`
	Decisions uint64            `json:"decisions"`
	// Unanswered is what the guest had no answer for, by number of rows. A time is the
	// guest's own only where there is nothing here.
	Unanswered map[string]Unanswered `json:"unanswered,omitempty"`
}

// Unanswered is a part of the decisions of one size, and why they had no answer: the
// faults, the most frequent first.
type Unanswered struct {
	Share float64  `json:"share"`
	Why   []string `json:"why"`
}

// situations is how many made-up situations there are of each size, in turn: fuel and
// time differ with what the columns hold.
const situations = 64

// ErrRoom says that a guest has room for none of the sizes asked for.
var ErrRoom = errors.New("the policy has room for fewer rows than any size measured")

// Measure times a policy of any kind on made-up situations, beside the binary's own
// policies of that kind. Errors are the host's, or wrap [ErrRoom].
func Measure(ctx context.Context, o TimesOptions) (t *Times, err error) {
	h, err := host.New(ctx, idle{}, host.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close(context.WithoutCancel(ctx))) }()
	metered, err := host.Prepare(o.Module)
	if err != nil {
		return nil, err
	}
	values, err := valuesOf(metered.Manifest, o.Params)
	if err != nil {
		return nil, err
	}
	// One instance: the fuel of the last call is that of whoever is lent next.
	p, err := h.Load(ctx, o.Module, 1, values)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	b, err := benchOf(p)
	if err != nil {
		return nil, err
	}
	o.fill(metered.Manifest.Kind)
	t = &Times{
		Policy: metered.Manifest.Name + "@" + metered.Manifest.Version, Kind: string(metered.Manifest.Kind), Budget: metered.Manifest.Fuel,
		US: map[string]float64{}, Native: map[string]map[string]float64{}, FuelP50: map[string]int64{}, FuelP99: map[string]int64{},
	}
	if metered.Manifest.Kind != abi.Admission {
		in := p.Take()
		t.Room = in.Rows()
		p.Put(in)
	}
	for _, n := range o.Counts {
		if t.Room > 0 && n*b.rows > t.Room {
			continue // the fallback decides there
		}
		t.Counts = append(t.Counts, n)
		before := b.counts()
		if err := t.measure(ctx, &o, n, p, b); err != nil {
			return nil, err
		}
		t.miss(keyOf(n), before, b.counts())
	}
	if len(t.Counts) == 0 {
		return nil, fmt.Errorf("%w: %d", ErrRoom, t.Room)
	}
	t.tally(b.counts())
	return t, nil
}

func (o *TimesOptions) fill(kind abi.Kind) {
	if len(o.Counts) == 0 {
		switch kind {
		case abi.Admission:
			o.Counts = []int{1}
		case abi.Autoscaler:
			o.Counts = []int{1, 16, 64}
		case abi.Router, abi.Observer:
			o.Counts = []int{16, 256, 1024, 4096}
		}
	}
	if o.Rounds <= 0 {
		o.Rounds = 101
	}
}

// ErrParams says that a policy does not have a parameter.
var ErrParams = errors.New("no such parameter")

// valuesOf are the values for a manifest's parameters, in its order.
func valuesOf(m *abi.Manifest, params map[string]float64) ([]float64, error) {
	values, found := make([]float64, len(m.Params)), 0
	for i, p := range m.Params {
		values[i] = p.Default
		v, ok := params[p.Name]
		if !ok {
			continue
		}
		if err := p.Accepts(v); err != nil {
			return nil, err
		}
		values[i] = v
		found++
	}
	if found != len(params) {
		return nil, fmt.Errorf("%w: %v has one that %s does not have", ErrParams, params, m.Name)
	}
	return values, nil
}

// contestant is one policy on the bench.
type contestant struct {
	name   string // empty is the guest
	decide func(situation int)
}

// bench is what a kind is measured with.
type bench struct {
	rows int // of a guest's columns for one of the sizes asked for
	// prepare makes the situations of a size and returns who decides them, the guest
	// first.
	prepare func(n int, seed uint64) []contestant
	counts  func() host.Counts
}

// measure takes the time of all contestants for one size, in turns.
func (t *Times) measure(ctx context.Context, o *TimesOptions, n int, p *host.Policy, b *bench) error {
	all := b.prepare(n, o.Seed)
	key, each := keyOf(n), max(20_000/(n+100), 4)
	t.fuel(key, p, all[0])
	times := make([][]float64, len(all))
	for range o.Rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for k, c := range all {
			c.decide(0)
			start := time.Now()
			for i := range each {
				c.decide(i % situations)
			}
			times[k] = append(times[k], float64(time.Since(start).Nanoseconds())/1000/float64(each))
		}
	}
	for k, c := range all {
		slices.Sort(times[k])
		median := round(times[k][len(times[k])/2])
		if c.name == "" {
			t.US[key] = median
			continue
		}
		if t.Native[c.name] == nil {
			t.Native[c.name] = map[string]float64{}
		}
		t.Native[c.name][key] = median
	}
	t.Allocs = max(t.Allocs, allocations(func() int { all[0].decide(0); return 0 }))
	return nil
}

// fuel decides every situation once and notes what it took.
func (t *Times) fuel(key string, p *host.Policy, guest contestant) {
	used := make([]int64, 0, situations)
	for i := range situations {
		guest.decide(i)
		if in := p.Take(); in != nil {
			used = append(used, in.Used())
			p.Put(in)
		}
	}
	if len(used) == 0 {
		return // every instance was lost to faults, which the tally shows
	}
	slices.Sort(used)
	t.FuelP50[key], t.FuelP99[key] = used[len(used)/2], used[len(used)*99/100]
}

func (t *Times) tally(c host.Counts) {
	t.Decisions = c.Answered
	for _, f := range host.Faults() {
		if n := c.Faults[f]; n > 0 {
			if t.Faults == nil {
				t.Faults = map[string]uint64{}
			}
			t.Faults[f.String()] = n
			t.Decisions += n
		}
	}
}

// miss notes what one size had no answers for.
func (t *Times) miss(key string, before, after host.Counts) {
	var why []host.Fault
	times := func(f host.Fault) uint64 { return after.Faults[f] - before.Faults[f] }
	missed := uint64(0)
	for _, f := range host.Faults() {
		if n := times(f); n > 0 {
			why, missed = append(why, f), missed+n
		}
	}
	if missed == 0 {
		return
	}
	slices.SortStableFunc(why, func(a, b host.Fault) int { return cmp.Compare(times(b), times(a)) })
	out := Unanswered{Share: round(float64(missed) / float64(missed+after.Answered-before.Answered))}
	for _, f := range why {
		out.Why = append(out.Why, f.String())
	}
	if t.Unanswered == nil {
		t.Unanswered = map[string]Unanswered{}
	}
	t.Unanswered[key] = out
}

// fallbackFor is the router that answers where a guest has no answer.
func fallbackFor(m *abi.Manifest) route.Policy {
	if p, err := route.PolicyNamed(m.Fallback); err == nil {
		return p
	}
	return route.Policies()[0]
}

// keyOf is a number of rows as a key of the results.
func keyOf(n int) string { return strconv.Itoa(n) }
