// Command go is the policy tenant-admission: it admits by a token bucket for each tenant. A request takes its prompt
// and its expected output from it. One that is short for a moment waits; one that is
// short for longer is refused, and told when to come back. One that would come too
// late for its client is refused before it costs anybody anything.
//
// The buckets are in the node's state, for instances of a policy share no memory. Two
// requests at the same instant may both be let through on one's tokens: state is read
// and written in two steps, and what one of them took is forgotten.
package main

import (
	"encoding/binary"
	"math"

	ym "github.com/yardmaster/yardmaster/plugins-sdk/go"
)

const mostMillis = 3_600_000

// key is "b" and the tenant, value a bucket's tokens and when that was. They are not
// local to a call, or each call would allocate them.
var (
	key   [9]byte
	value [16]byte
)

func admit(r *ym.AdmissionRequest, p *params) ym.Verdict {
	priority := uint8(min(r.Class, 255))
	if r.FirstMillis > r.DeadlineMillis { // false if either is unknown
		counterHopeless.Add(1)
		return ym.Reject(503, wholeMillis(float64(r.FirstMillis)-float64(r.DeadlineMillis)))
	}
	output := float64(r.Output)
	if r.Output == ym.Unknown {
		output = float64(p.UsualOutput)
	}
	// More than the bucket holds would never be served.
	need := min(float64(r.Prompt)+output, p.BurstTokens)

	now := ym.NowMillis()
	key[0] = 'b'
	binary.LittleEndian.PutUint64(key[1:], r.Tenant)
	left := filled(now, p) - need
	short := 0.0
	if left < 0 {
		short = -left * 1000 / p.TokensPerSecond
	}
	if short > p.QueueMs {
		counterRefused.Add(1)
		return ym.Reject(429, wholeMillis(short))
	}
	binary.LittleEndian.PutUint64(value[:], math.Float64bits(left))
	binary.LittleEndian.PutUint64(value[8:], uint64(now))
	ym.Set(ym.Local, key[:], value[:])
	if short > 0 {
		return ym.Queue(priority)
	}
	return ym.Admit(priority)
}

// filled is what the bucket under key holds by now.
func filled(now int64, p *params) float64 {
	if ym.Get(ym.Local, key[:], value[:]) != len(value) {
		return p.BurstTokens
	}
	tokens := math.Float64frombits(binary.LittleEndian.Uint64(value[:]))
	passed := max(now-int64(binary.LittleEndian.Uint64(value[8:])), 0)
	return min(tokens+float64(passed)*p.TokensPerSecond/1000, p.BurstTokens)
}

func wholeMillis(ms float64) uint32 {
	if !(ms < mostMillis) {
		return mostMillis
	}
	return uint32(math.Ceil(ms))
}
