package host

import (
	"time"

	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/policies/abi"
)

// Observer shows a policy in Wasm what became of requests, so that it can learn and
// write what it learnt into state. It belongs to one goroutine.
type Observer struct {
	*caller
	reads  []outcomeColumn // of the manifest's columns; empty ones are unknown
	filled uint64
}

// NewObserver makes an observer of a policy of that kind, which stays the caller's to
// close. Errors wrap [ErrColumn] or [ErrRefused].
func NewObserver(p *Policy) (*Observer, error) {
	c, err := p.callerOf(abi.Observer)
	if err != nil {
		return nil, err
	}
	o := &Observer{caller: c}
	o.reads, o.filled, err = columnsOf(p.manifest, outcomeColumns(), "is not collected of requests")
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Batch is what is shown at once.
type Batch struct {
	Now      time.Time
	Seed     uint64
	Leader   bool   // replicated state may be written here
	Lost     uint32 // outcomes that were dropped since the batch before
	Outcomes []dispatch.Observation
}

// Observe shows a batch, in several calls if the guest has less room. It ends at the
// first fault.
func (o *Observer) Observe(b *Batch) Fault {
	lost, rest := b.Lost, b.Outcomes
	for {
		n, fault := o.call(b, lost, rest)
		o.tally.add(fault)
		rest, lost = rest[n:], 0
		if fault != NoFault || len(rest) == 0 {
			return fault
		}
	}
}

// call shows as many outcomes as there is room for.
func (o *Observer) call(b *Batch, lost uint32, outcomes []dispatch.Observation) (n int, f Fault) {
	in := o.policy.Take()
	if in == nil {
		return 0, o.policy.none()
	}
	defer o.policy.Put(in)
	n = min(len(outcomes), in.Rows())
	for i, read := range o.reads {
		for k := range outcomes[:n] {
			switch {
			case read.number != nil:
				in.F32(i)[k] = float32(read.number(&outcomes[k]))
			case read.word != nil:
				in.U32(i)[k] = read.word(&outcomes[k])
			}
		}
	}
	r := abi.OutcomesRequest{NowMillis: uint64(b.Now.UnixMilli()), Seed: b.Seed, Columns: o.filled, Lost: lost}
	if b.Leader {
		r.Leader = 1
	}
	r.Put(in.Request())
	in.Seed(b.Seed)
	return n, faultOf(in.Observe(n))
}

// outcomeColumn reads one column of an outcome: as a number or as a word.
type outcomeColumn struct {
	number func(o *dispatch.Observation) float64
	word   func(o *dispatch.Observation) uint32
}

// outcomeColumns are what observers may read.
func outcomeColumns() map[string]outcomeColumn {
	number := func(f func(o *dispatch.Observation) float64) outcomeColumn { return outcomeColumn{number: f} }
	word := func(f func(o *dispatch.Observation) uint32) outcomeColumn { return outcomeColumn{word: f} }
	return map[string]outcomeColumn{
		"key_low":              word(func(o *dispatch.Observation) uint32 { return uint32(o.Worker) }),
		"key_high":             word(func(o *dispatch.Observation) uint32 { return uint32(o.Worker >> 32) }),
		"tenant_low":           word(func(o *dispatch.Observation) uint32 { return uint32(o.Tenant) }),
		"tenant_high":          word(func(o *dispatch.Observation) uint32 { return uint32(o.Tenant >> 32) }),
		"outcome":              word(func(o *dispatch.Observation) uint32 { return outcomeNumber(o.Outcome) }),
		"prompt_tokens":        number(func(o *dispatch.Observation) float64 { return o.Prompt }),
		"predicted_hit_tokens": number(func(o *dispatch.Observation) float64 { return o.PredictedHit }),
		"hit_tokens":           number(func(o *dispatch.Observation) float64 { return o.Hit }),
		"output_tokens":        number(func(o *dispatch.Observation) float64 { return o.Output }),
		"queued_ms":            number(func(o *dispatch.Observation) float64 { return 1000 * o.Queued }),
		"ttft_ms":              number(func(o *dispatch.Observation) float64 { return 1000 * o.First }),
		"itl_ms":               number(func(o *dispatch.Observation) float64 { return 1000 * o.Between }),
		"requests":             number(func(o *dispatch.Observation) float64 { return o.Requests }),
		"score":                number(func(o *dispatch.Observation) float64 { return o.Cost }),
	}
}

// outcomeNumber is an outcome's number in ym/1. What is no fault of client or worker
// but of this program is unknown.
func outcomeNumber(name string) uint32 {
	switch name {
	case "ok":
		return 0
	case "client_error":
		return 1
	case "saturated", "no_capacity":
		return 2
	case "upstream":
		return 3
	case "timeout":
		return 4
	case "canceled":
		return 5
	default:
		return abi.UnknownU32
	}
}
