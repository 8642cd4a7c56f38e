package host

import (
	"math"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// Autoscaler says by a policy in Wasm how many replicas pools should have. It is a
// [scale.Policy] and belongs to one goroutine.
type Autoscaler struct {
	*caller
	last   Fault
	reads  []func(p *scale.Pool, s *scale.Sample) float64 // of the manifest's columns; nil is unknown
	words  []bool                                         // which of them are u32
	filled uint64
}

// NewAutoscaler makes an autoscaler of a policy of that kind, which stays the caller's
// to close. When the guest cannot answer, every pool keeps what it has. Errors wrap
// [ErrColumn] or [ErrRefused].
func NewAutoscaler(p *Policy) (*Autoscaler, error) {
	c, err := p.callerOf(abi.Autoscaler)
	if err != nil {
		return nil, err
	}
	a := &Autoscaler{caller: c}
	if a.reads, a.filled, err = columnsOf(p.manifest, poolColumns(), "is not collected of pools"); err != nil {
		return nil, err
	}
	for _, c := range p.manifest.Columns {
		a.words = append(a.words, c.Name == "role")
	}
	return a, nil
}

// Last is what became of the last tick.
func (a *Autoscaler) Last() Fault { return a.last }

// Tick asks the guest. Where there is not room for all samples of all pools it sees
// the newest ones of each.
func (a *Autoscaler) Tick(w *scale.Window, want []scale.Want) {
	a.last = a.ask(w, want)
	a.tally.add(a.last)
	if a.last == NoFault {
		return
	}
	for i := range want {
		want[i] = scale.Want{Keep: true, Reason: a.name + " has no answer: " + a.last.String()}
	}
}

func (a *Autoscaler) ask(w *scale.Window, want []scale.Want) Fault {
	in := a.policy.Take()
	if in == nil {
		return a.policy.none()
	}
	defer a.policy.Put(in)
	pools := len(w.Pools)
	if pools == 0 {
		return NoFault
	}
	if pools > in.Rows() {
		return FaultRows
	}
	samples := math.MaxInt
	for i := range w.Pools {
		samples = min(samples, len(w.Pools[i].Samples))
	}
	samples = min(samples, in.Rows()/pools)
	a.fill(in, w, samples)
	request := abi.PoolsRequest{
		NowMillis: uint64(w.Now.UnixMilli()), Seed: w.Seed, Columns: a.filled, Pools: uint32(pools), Samples: uint32(samples),
		IntervalMillis: uint32(w.Interval.Milliseconds()), Budget: w.Budget,
	}
	request.Put(in.Request())
	in.Seed(w.Seed)
	desired, reasons, err := in.Tick(pools)
	if err != nil {
		return faultOf(err)
	}
	for i := range want[:pools] {
		want[i] = scale.Want{Replicas: desired[i], Reason: a.policy.manifest.Name + " reason " + strconv.FormatUint(uint64(reasons[i]), 10)}
		if desired[i] == abi.UnknownU32 {
			want[i] = scale.Want{Keep: true, Reason: want[i].Reason}
		}
	}
	return NoFault
}

// fill writes the newest samples of each pool.
func (a *Autoscaler) fill(in *Instance, w *scale.Window, samples int) {
	for column, read := range a.reads {
		if read == nil {
			continue
		}
		row := 0
		for p := range w.Pools {
			pool := &w.Pools[p]
			for i := range pool.Samples[len(pool.Samples)-samples:] {
				v := read(pool, &pool.Samples[len(pool.Samples)-samples+i])
				if a.words[column] {
					in.U32(column)[row] = uint32(v)
				} else {
					in.F32(column)[row] = float32(v)
				}
				row++
			}
		}
	}
}

// poolColumns are what autoscalers may read of a sample.
func poolColumns() map[string]func(p *scale.Pool, s *scale.Sample) float64 {
	type read = func(p *scale.Pool, s *scale.Sample) float64
	of := func(field func(s *scale.Sample) float64) read {
		return func(_ *scale.Pool, s *scale.Sample) float64 { return field(s) }
	}
	return map[string]read{
		"role":          func(p *scale.Pool, _ *scale.Sample) float64 { return roleOf(p.Role) },
		"replicas":      of(func(s *scale.Sample) float64 { return s.Planned }),
		"ready":         of(func(s *scale.Sample) float64 { return s.Ready }),
		"pending":       of(func(s *scale.Sample) float64 { return s.Pending }),
		"draining":      of(func(s *scale.Sample) float64 { return s.Draining }),
		"least":         func(p *scale.Pool, _ *scale.Sample) float64 { return float64(p.Least) },
		"most":          func(p *scale.Pool, _ *scale.Sample) float64 { return orUnbounded(p.Most) },
		"arrivals":      of(func(s *scale.Sample) float64 { return s.Arrivals }),
		"prompt_tokens": of(func(s *scale.Sample) float64 { return s.PromptTokens }),
		"output_tokens": of(func(s *scale.Sample) float64 { return s.OutputTokens }),
		"hit_ratio":     of(func(s *scale.Sample) float64 { return s.HitRatio }),
		"queued":        of(func(s *scale.Sample) float64 { return s.Queued }),
		"running":       of(func(s *scale.Sample) float64 { return s.Running }),
		"waiting":       of(func(s *scale.Sample) float64 { return s.Waiting }),
		"kv_usage":      of(func(s *scale.Sample) float64 { return s.KVUsage }),
		"ttft_p50_ms":   of(func(s *scale.Sample) float64 { return s.FirstP50 }),
		"ttft_p95_ms":   of(func(s *scale.Sample) float64 { return s.FirstP95 }),
		"itl_p50_ms":    of(func(s *scale.Sample) float64 { return s.BetweenP50 }),
		"itl_p95_ms":    of(func(s *scale.Sample) float64 { return s.BetweenP95 }),
		"slo_ttft_ms":   func(p *scale.Pool, _ *scale.Sample) float64 { return orNone(p.First) },
		"slo_itl_ms":    func(p *scale.Pool, _ *scale.Sample) float64 { return orNone(p.Between) },
		"prefill_rate":  of(func(s *scale.Sample) float64 { return s.PrefillRate }),
		"decode_rate":   of(func(s *scale.Sample) float64 { return s.DecodeRate }),
		"kv_tokens":     of(func(s *scale.Sample) float64 { return s.KVTokens }),
	}
}

// roleOf is a role's number in ym/1.
func roleOf(r fleet.Role) float64 {
	switch r {
	case fleet.RolePrefill:
		return 1
	case fleet.RoleDecode:
		return 2
	default:
		return 0
	}
}

// orUnbounded is a bound, or NaN where there is none.
func orUnbounded(n uint32) float64 {
	if n == 0 {
		return math.NaN()
	}
	return float64(n)
}

// orNone is a time in milliseconds, or NaN where none is wanted.
func orNone(d time.Duration) float64 {
	if d <= 0 {
		return math.NaN()
	}
	return d.Seconds() * 1000
}
