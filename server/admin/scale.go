package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/yardmaster/yardmaster/core/scale"
)

// ErrScaleConflict means that the plan was changed meanwhile. Code conflict, status
// 409.
var ErrScaleConflict = errors.New("the plan was changed meanwhile")

// Scale is the sizes of pools, as operators see and change them. It is safe for
// concurrent use.
type Scale interface {
	// Status is from memory.
	Status() ScaleStatus
	// Change brings a change into force. Errors wrap [ErrInvalid], [ErrScaleConflict]
	// or those of the cluster.
	Change(ctx context.Context, c ScaleChange) error
}

// ScaleStatus is the plan in force and the pools as the asked node knows them.
type ScaleStatus struct {
	Policy   string     `json:"policy"`   // as configured on the asked node; off sizes nothing
	Actuator string     `json:"actuator"` // of the asked node
	Budget   uint32     `json:"budget"`   // of all pools together, as configured there; 0 is none
	Plan     *ScalePlan `json:"plan,omitempty"`
	// Pools are by model and role: those of the plan, of the fleet, and configured ones.
	Pools []ScalePool `json:"pools"`
	// Leader is what the leader saw last; only it knows.
	Leader *ScaleTick `json:"leader,omitempty"`
}

// ScalePlan is a plan without its pools.
type ScalePlan struct {
	Index  uint64    `json:"index"` // of the log
	Policy string    `json:"policy"`
	Budget uint32    `json:"budget"`
	Held   bool      `json:"held"` // by an operator: no policy changes it
	At     time.Time `json:"at"`
}

// ScalePool is one pool. What nobody knows is left out.
type ScalePool struct {
	Model    string       `json:"model"`
	Role     string       `json:"role"`
	Desired  *uint32      `json:"desired,omitempty"` // none outside the plan
	Ready    uint32       `json:"ready"`
	Draining uint32       `json:"draining"`
	Least    uint32       `json:"least"`
	Most     uint32       `json:"most"` // 0 is no bound but the budget
	Reason   string       `json:"reason,omitempty"`
	Wanted   *uint32      `json:"wanted,omitempty"` // by the policy, at the leader's last look
	Sample   *ScaleSample `json:"sample,omitempty"` // at the leader
}

// ScaleSample is what the leader measured of a pool: see core/scale.Sample, whose
// units these are. What is unknown is left out.
type ScaleSample struct {
	Arrivals     *float64 `json:"arrivals_per_s,omitempty"`
	PromptTokens *float64 `json:"prompt_tokens_per_s,omitempty"`
	OutputTokens *float64 `json:"output_tokens_per_s,omitempty"`
	HitRatio     *float64 `json:"hit_ratio,omitempty"`
	Queued       *float64 `json:"queued,omitempty"`
	Running      *float64 `json:"running,omitempty"`
	Waiting      *float64 `json:"waiting,omitempty"`
	KVUsage      *float64 `json:"kv_usage,omitempty"`
	TTFTP95      *float64 `json:"ttft_p95_ms,omitempty"`
	ITLP95       *float64 `json:"itl_p95_ms,omitempty"`
	PrefillRate  *float64 `json:"prefill_tokens_per_s,omitempty"` // of one replica
	DecodeRate   *float64 `json:"decode_tokens_per_s,omitempty"`  // of one replica
}

// ScaleTick is the leader's last look.
type ScaleTick struct {
	At     time.Time `json:"at"`
	Policy string    `json:"policy"`
	Fault  string    `json:"fault,omitempty"` // why the plan stays though another is wanted
}

// ScaleChange is what an operator wants. Verb is set, hold or release; set has a pool
// and its size, and holds the plan.
type ScaleChange struct {
	Verb    string  `json:"verb"`
	Model   string  `json:"model,omitempty"`
	Role    string  `json:"role,omitempty"`
	Desired *uint32 `json:"desired,omitempty"`
}

// check reports what makes a change unusable, as [ErrInvalid].
func (c *ScaleChange) check() error {
	switch c.Verb {
	case "set":
		if c.Model == "" || c.Role == "" || c.Desired == nil || *c.Desired > scale.MaxReplicas {
			return fmt.Errorf("%w: set needs a model, a role and a size of at most %d", ErrInvalid, scale.MaxReplicas)
		}
	case "hold", "release":
		if c.Model != "" || c.Role != "" || c.Desired != nil {
			return fmt.Errorf("%w: %s is about the whole plan", ErrInvalid, c.Verb)
		}
	default:
		return fmt.Errorf("%w: %q is not one of set, hold, release", ErrInvalid, c.Verb)
	}
	return nil
}

// scaleAPI serves /admin/scale.
type scaleAPI struct{ scale Scale } // nil where there is none

func (a *scaleAPI) mount(r chi.Router) {
	r.Group(func(r chi.Router) {
		r.Use(present(a.scale != nil, "no_scale", "this process sizes no pools: ask a planner"))
		r.Get("/admin/scale", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.scale.Status()) })
		r.Post("/admin/scale", a.change)
	})
}

func (a *scaleAPI) change(w http.ResponseWriter, r *http.Request) {
	var want ScaleChange
	if !read(w, r, &want) {
		return
	}
	err := want.check()
	if err == nil {
		ctx, cancel := lasting(r.Context(), changeTime)
		defer cancel()
		extend(w, changeTime+time.Second)
		err = a.scale.Change(ctx, want)
	}
	switch {
	case errors.Is(err, ErrScaleConflict):
		fail(w, http.StatusConflict, "conflict", err.Error())
	case err != nil:
		failWith(w, err)
	default:
		answer(w, http.StatusOK, a.scale.Status())
	}
}
