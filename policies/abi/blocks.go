package abi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// RouterRequest is the request block of routers. Unknown times are NaN.
type RouterRequest struct {
	Seed         uint64  // of this decision's random numbers
	Model        uint64  // hash of the model's name
	Tenant       uint64  // hash of the tenant
	Session      uint64  // hash of the session, 0 if there is none
	Columns      uint64  // bit i says that the manifest's column i is filled
	Prompt       uint32  // tokens of the prompt
	Output       uint32  // tokens of output expected, all ones if unknown
	BlockTokens  uint32  // tokens of a KV block
	Class        uint32  // priority, 0 the least urgent
	Phase        uint32  // 0 both, 1 prefill, 2 decode
	SLOFirst     float32 // wanted time to first token, in milliseconds
	SLOBetween   float32 // wanted time between tokens, in milliseconds
	WaitedMillis float32 // in the gateway's queue so far
}

// AdmissionRequest is the request block of admission policies.
type AdmissionRequest struct {
	Seed           uint64
	Model          uint64
	Tenant         uint64
	Prompt         uint32
	Output         uint32
	Class          uint32
	Queued         uint32  // requests in this gateway's queue
	TenantQueued   uint32  // those of the tenant
	TenantRunning  uint32  // the tenant's requests being served, cluster-wide as far as known
	Workers        uint32  // that could serve the request
	Waiting        uint32  // requests that wait at those
	TenantTokens   float32 // tokens left of the tenant's quota, NaN without one
	TenantService  float32 // the tenant's weighted service, in tokens
	LeastService   float32 // the least of any tenant that waits
	KVUsage        float32 // KV blocks held over those there are, NaN if unknown
	FirstMillis    float32 // predicted time to first token, NaN if unknown
	SLOFirst       float32
	DeadlineMillis float32 // until the client gives up, NaN if unknown
	WaitedMillis   float32
	BetweenMillis  float32 // predicted time between tokens, NaN if unknown
	SLOBetween     float32
}

// PoolsRequest is the request block of autoscalers.
type PoolsRequest struct {
	NowMillis      uint64 // Unix time
	Seed           uint64
	Columns        uint64 // bit i says that the manifest's column i is filled
	Pools          uint32
	Samples        uint32 // of each pool, the newest last
	IntervalMillis uint32 // between samples
	Budget         uint32 // replicas of all pools together
}

// OutcomesRequest is the request block of observers.
type OutcomesRequest struct {
	NowMillis uint64
	Seed      uint64
	Columns   uint64
	Leader    uint32 // 1 where replicated state may be written
	Lost      uint32 // outcomes that were dropped since the last call
}

// The sizes of the request blocks in bytes.
const (
	RouterRequestSize    = 72
	AdmissionRequestSize = 96
	PoolsRequestSize     = 40
	OutcomesRequestSize  = 32
)

// RequestSize is the size of the kind's request block in bytes.
func (k Kind) RequestSize() uint32 {
	switch k {
	case Router:
		return RouterRequestSize
	case Admission:
		return AdmissionRequestSize
	case Autoscaler:
		return PoolsRequestSize
	case Observer:
		return OutcomesRequestSize
	}
	return 0
}

// block writes one value after the other.
type block struct {
	b  []byte
	at int
}

func (w *block) u64(v ...uint64) {
	for _, v := range v {
		binary.LittleEndian.PutUint64(w.b[w.at:], v)
		w.at += 8
	}
}

func (w *block) u32(v ...uint32) {
	for _, v := range v {
		binary.LittleEndian.PutUint32(w.b[w.at:], v)
		w.at += 4
	}
}

func (w *block) f32(v ...float32) {
	for _, v := range v {
		w.u32(math.Float32bits(v))
	}
}

// Put writes the block in the order of its fields. b has RouterRequestSize bytes.
func (r *RouterRequest) Put(b []byte) {
	w := block{b: b}
	w.u64(r.Seed, r.Model, r.Tenant, r.Session, r.Columns)
	w.u32(r.Prompt, r.Output, r.BlockTokens, r.Class, r.Phase)
	w.f32(r.SLOFirst, r.SLOBetween, r.WaitedMillis)
}

// Put writes the block in the order of its fields. b has AdmissionRequestSize bytes.
func (r *AdmissionRequest) Put(b []byte) {
	w := block{b: b}
	w.u64(r.Seed, r.Model, r.Tenant)
	w.u32(r.Prompt, r.Output, r.Class, r.Queued, r.TenantQueued, r.TenantRunning, r.Workers, r.Waiting)
	w.f32(r.TenantTokens, r.TenantService, r.LeastService, r.KVUsage, r.FirstMillis, r.SLOFirst, r.DeadlineMillis, r.WaitedMillis, r.BetweenMillis, r.SLOBetween)
}

// Put writes the block in the order of its fields. b has PoolsRequestSize bytes.
func (r *PoolsRequest) Put(b []byte) {
	w := block{b: b}
	w.u64(r.NowMillis, r.Seed, r.Columns)
	w.u32(r.Pools, r.Samples, r.IntervalMillis, r.Budget)
}

// Put writes the block in the order of its fields. b has OutcomesRequestSize bytes.
func (r *OutcomesRequest) Put(b []byte) {
	w := block{b: b}
	w.u64(r.NowMillis, r.Seed, r.Columns)
	w.u32(r.Leader, r.Lost)
}

// PutParams writes the parameter block: 8 bytes for each of the manifest's
// parameters, in its order. values has one for each, of which [Param.Accepts] all.
func PutParams(b []byte, params []Param, values []float64) {
	w := block{b: b}
	for i, p := range params {
		if p.Type == Float {
			w.u64(math.Float64bits(values[i]))
		} else {
			w.u64(uint64(int64(values[i])))
		}
	}
}

// Action is what becomes of a request.
type Action uint8

// The actions of an admission policy.
const (
	Admit   Action = iota // serve it
	Queue                 // wait
	Reject                // refuse it, with a status
	Degrade               // serve it with less: the host shortens its output
)

// Verdict is what an admission policy answers.
type Verdict struct {
	Action     Action
	Priority   uint8  // the greater, the sooner
	Status     uint16 // of a refusal: 429 or 503
	RetryAfter uint32 // milliseconds
}

// ErrVerdict says that an admission policy's answer is none.
var ErrVerdict = errors.New("bad verdict")

// ReadVerdict unpacks what ym_admit returns: action in bits 0 to 7, priority in 8 to
// 15, status in 16 to 31, milliseconds to retry after in 32 to 63. Errors are
// [ErrVerdict].
func ReadVerdict(v uint64) (Verdict, error) {
	out := Verdict{Action(v), uint8(v >> 8), uint16(v >> 16), uint32(v >> 32)}
	switch {
	case out.Action > Degrade:
		return Verdict{}, fmt.Errorf("%w: action %d is unknown", ErrVerdict, out.Action)
	case out.Action == Reject && out.Status != 429 && out.Status != 503:
		return Verdict{}, fmt.Errorf("%w: a refusal has status %d; it is 429 or 503", ErrVerdict, out.Status)
	}
	return out, nil
}
