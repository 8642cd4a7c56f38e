package vet

import (
	"math"
	"math/rand/v2"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// request writes the request block of a call.
func (c testCase) request(block []byte, m *abi.Manifest, rng *rand.Rand) {
	v := values{c.pattern, rng}
	columns := uint64(1)<<len(m.Columns) - 1
	switch c.kind {
	case abi.Router:
		r := abi.RouterRequest{
			Seed: c.seed, Model: rng.Uint64(), Tenant: rng.Uint64(), Session: rng.Uint64(), Columns: columns,
			Prompt: v.count(100_000), Output: v.count(4000), BlockTokens: 16, Class: v.count(4), Phase: rng.Uint32N(3),
			SLOFirst: v.number(1000), SLOBetween: v.number(100), WaitedMillis: v.number(1000),
		}
		r.Put(block)
	case abi.Admission:
		r := abi.AdmissionRequest{
			Seed: c.seed, Model: rng.Uint64(), Tenant: rng.Uint64N(16),
			Prompt: v.count(100_000), Output: v.count(4000), Class: v.count(4), Queued: v.count(1000), TenantQueued: v.count(100),
			TenantRunning: v.count(100), Workers: v.count(64), Waiting: v.count(1000),
			TenantTokens: v.number(1e6), TenantService: v.number(1e6), LeastService: v.number(1e6), KVUsage: v.number(1),
			FirstMillis: v.number(5000), SLOFirst: v.number(1000), DeadlineMillis: v.number(60_000), WaitedMillis: v.number(1000),
		}
		r.Put(block)
	case abi.Autoscaler:
		r := abi.PoolsRequest{
			NowMillis: baseMillis, Seed: c.seed, Columns: columns,
			Pools: uint32(c.rows), Samples: uint32(c.samples), IntervalMillis: 5000, Budget: v.count(1000),
		}
		r.Put(block)
	case abi.Observer:
		r := abi.OutcomesRequest{NowMillis: baseMillis, Seed: c.seed, Columns: columns, Leader: rng.Uint32N(2), Lost: v.count(10)}
		r.Put(block)
	}
}

// values draws the values of a request by a pattern.
type values struct {
	pattern pattern
	rng     *rand.Rand
}

func (v values) count(below uint32) uint32 {
	return [...]uint32{0, abi.UnknownU32 - 1, abi.UnknownU32, v.rng.Uint32N(below)}[v.pattern]
}

func (v values) number(below float32) float32 {
	return [...]float32{0, math.MaxFloat32, float32(math.NaN()), v.rng.Float32() * below}[v.pattern]
}
