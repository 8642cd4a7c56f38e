package ym

import "math"

// Unknown is a uint32 that is not known.
const Unknown = ^uint32(0)

// Known tells a number from NaN, which is unknown.
func Known(v float32) bool { return v == v }

// NotNegative is v, 0 if v is below, and NaN for NaN and -Inf. It has no branch, which
// costs a loop in a guest more than the arithmetic.
func NotNegative(v float32) float32 {
	d := float64(v) // twice a float32 is always one of these
	return float32((d + math.Abs(d)) / 2)
}

// RouterRequest is the request that a router finds a worker for. Times are in
// milliseconds, NaN if unknown.
type RouterRequest struct {
	Seed    uint64 // of this decision's random numbers
	Model   uint64 // hash of the model's name
	Tenant  uint64 // hash of the tenant
	Session uint64 // hash of the session, 0 if there is none
	Columns uint64 // bit i: the manifest's column i is filled

	Prompt       uint32 // tokens of the prompt
	Output       uint32 // tokens of output expected, or Unknown
	BlockTokens  uint32 // tokens of a KV block, 0 if unknown
	Class        uint32 // priority, 0 the least urgent
	Phase        uint32 // 0 both, 1 prefill, 2 decode
	SLOFirst     float32
	SLOBetween   float32
	WaitedMillis float32 // in the gateway's queue so far
}

// AdmissionRequest is the request that an admission policy lets in or not. Times are
// in milliseconds; they and quotas are NaN if unknown.
type AdmissionRequest struct {
	Seed   uint64
	Model  uint64
	Tenant uint64

	Prompt         uint32
	Output         uint32 // or Unknown
	Class          uint32
	Queued         uint32 // requests in this gateway's queue
	TenantQueued   uint32 // those of the tenant
	TenantRunning  uint32 // the tenant's requests being served
	Workers        uint32 // that could serve the request
	Waiting        uint32 // requests that wait at those
	TenantTokens   float32
	TenantService  float32 // the tenant's weighted service, in tokens
	LeastService   float32 // the least of any tenant that waits
	KVUsage        float32 // KV blocks held over those there are
	FirstMillis    float32 // predicted time to first token
	SLOFirst       float32 // wanted time to first token
	DeadlineMillis float32 // until the client gives up
	WaitedMillis   float32
	BetweenMillis  float32 // predicted time between tokens
	SLOBetween     float32 // wanted time between tokens
}

// PoolsRequest is what an autoscaler knows beside its samples. Row pool × Samples +
// sample of the table is a sample of a pool, the newest last.
type PoolsRequest struct {
	NowMillis uint64 // Unix time
	Seed      uint64
	Columns   uint64

	Pools          uint32
	Samples        uint32
	IntervalMillis uint32 // between samples
	Budget         uint32 // replicas of all pools together
}

// OutcomesRequest is what an observer knows beside the outcomes.
type OutcomesRequest struct {
	NowMillis uint64 // Unix time
	Seed      uint64
	Columns   uint64

	Leader uint32 // 1 where replicated state may be written
	Lost   uint32 // outcomes that were dropped since the last call
}

// Verdict is what becomes of a request. The zero value admits it.
type Verdict uint64

// Admit serves the request; the greater priority goes first.
func Admit(priority uint8) Verdict { return Verdict(priority) << 8 }

// Queue lets the request wait.
func Queue(priority uint8) Verdict { return Verdict(priority)<<8 | 1 }

// Reject refuses the request with status 429 or 503.
func Reject(status uint16, retryAfterMillis uint32) Verdict {
	return Verdict(retryAfterMillis)<<32 | Verdict(status)<<16 | 2
}

// Degrade serves the request with a shorter output.
func Degrade(priority uint8) Verdict { return Verdict(priority)<<8 | 3 }
