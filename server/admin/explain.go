package admin

import (
	"math"
	"time"

	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/route"
)

// Explanation is how a request was placed, each of its attempts in order.
type Explanation struct {
	RequestID  string      `json:"request_id"`
	Model      string      `json:"model"`
	Placements []Placement `json:"placements"`
}

// Placement is one attempt. Tokens are the prompt's.
type Placement struct {
	At           time.Time   `json:"at"`
	Path         string      `json:"path"`
	Reason       string      `json:"reason"`
	Policy       string      `json:"policy"`
	PolicyDigest string      `json:"policy_digest,omitempty"`
	PolicyIndex  uint64      `json:"policy_index,omitempty"` // of the log entry that bound it
	Canary       bool        `json:"canary,omitempty"`
	Fallback     string      `json:"fallback,omitempty"`    // why another policy answered in its place
	Seed         uint64      `json:"seed,omitempty,string"` // of its random numbers
	Parts        []string    `json:"parts,omitempty"`       // of a policy that combines several
	Shadow       string      `json:"shadow,omitempty"`      // what was tried beside it
	Worker       string      `json:"worker"`
	Prefill      string      `json:"prefill,omitempty"`
	Next         string      `json:"next,omitempty"`
	PromptTokens int         `json:"prompt_tokens"`
	Exact        bool        `json:"exact"` // else PromptTokens is an estimate
	HitTokens    int         `json:"hit_tokens"`
	CachedTokens *int        `json:"cached_tokens,omitempty"` // as the engine reported
	Outcome      string      `json:"outcome,omitempty"`
	Candidates   []Candidate `json:"candidates"` // the cheapest first
	CandidatesOf int         `json:"candidates_of"`
	Prefilling   []Candidate `json:"prefill_candidates,omitempty"`
	Vetoed       []Vetoed    `json:"vetoed,omitempty"`
	VetoedOf     int         `json:"vetoed_of"`
}

// Candidate is a worker with what the policy saw of it. Numbers that are not
// known are left out; a candidate without a cost is ineligible.
type Candidate struct {
	Worker         string   `json:"worker"`
	Cost           *float64 `json:"cost,omitempty"`
	HitTokens      *float64 `json:"hit_tokens,omitempty"`
	QueuedTokens   *float64 `json:"queued_tokens,omitempty"`
	InFlight       *float64 `json:"in_flight,omitempty"`
	Requests       *float64 `json:"requests,omitempty"`
	Siblings       *float64 `json:"siblings,omitempty"`
	Running        *float64 `json:"running,omitempty"`
	Waiting        *float64 `json:"waiting,omitempty"`
	ActiveBlocks   *float64 `json:"active_blocks,omitempty"`
	CapacityBlocks *float64 `json:"capacity_blocks,omitempty"`
	TokensPerSec   *float64 `json:"prefill_tokens_per_second,omitempty"`
	Share          *float64 `json:"share,omitempty"`
	// Parts is what each of Placement.Parts found, and ShadowCost what its shadow did.
	Parts      []*float64 `json:"parts,omitempty"`
	ShadowCost *float64   `json:"shadow_cost,omitempty"`
}

// Vetoed is a worker that was no candidate.
type Vetoed struct {
	Worker string `json:"worker"`
	Why    string `json:"why"`
}

func explanationOf(all []dispatch.Explained) Explanation {
	out := Explanation{RequestID: all[0].RequestID, Model: all[0].Model}
	for i := range all {
		out.Placements = append(out.Placements, placementOf(&all[i]))
	}
	return out
}

func placementOf(e *dispatch.Explained) Placement {
	p := &e.Placement
	out := Placement{
		At: e.At, Path: p.Path, Reason: p.Reason, Policy: p.Policy, PolicyDigest: p.Digest, PolicyIndex: p.Index,
		Canary: p.Canary, Fallback: p.Fallback, Seed: e.Seed, Parts: e.Policies, Shadow: e.Shadow,
		Worker: string(p.Serve), Prefill: string(p.Prefill), Next: string(p.NextServe),
		PromptTokens: int(p.Prompt), Exact: p.Exact, HitTokens: int(p.Hit), Outcome: e.Outcome,
		Candidates: candidatesOf(e.Serving), CandidatesOf: e.Candidates,
		Prefilling: candidatesOf(e.Prefilling), VetoedOf: e.Vetoes,
	}
	if e.CachedKnown {
		cached := int(e.Cached)
		out.CachedTokens = &cached
	}
	for _, v := range e.Vetoed {
		out.Vetoed = append(out.Vetoed, Vetoed{string(v.Worker), v.Why})
	}
	return out
}

func candidatesOf(all []route.Candidate) (out []Candidate) {
	for _, c := range all {
		out = append(out, Candidate{
			Worker: string(c.Worker), Cost: known(c.Cost), HitTokens: known(c.Hit), QueuedTokens: known(c.Queued),
			InFlight: known(c.InFlight), Requests: known(c.Requests), Siblings: known(c.Siblings),
			Running: known(c.Running), Waiting: known(c.Waiting), ActiveBlocks: known(c.Active), CapacityBlocks: known(c.Capacity),
			TokensPerSec: known(c.Rate), Share: known(c.Share), Parts: partsOf(c.Parts), ShadowCost: known(c.Shadow),
		})
	}
	return out
}

func partsOf(all []float64) (out []*float64) {
	for _, v := range all {
		out = append(out, known(v))
	}
	return out
}

// known is a number that JSON can hold, or nil.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
