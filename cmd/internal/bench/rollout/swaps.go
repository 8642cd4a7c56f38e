package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/policy"
	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
	"github.com/yardmaster/yardmaster/server/admin"
)

// Swaps is what requests saw while a policy was promoted and rolled back under them.
type Swaps struct {
	Changes   int     `json:"changes"` // of the binding
	Decisions int     `json:"decisions"`
	PerS      float64 `json:"decisions_per_s"`
	Failed    int     `json:"failed"` // requests without a good answer, or decided by no bound policy
	// Wrong is how many decisions named another policy than the one that was bound at
	// their index, and Back how many were made under an older binding than the decision
	// that the same client saw before.
	Wrong    int `json:"wrong"`
	Back     int `json:"back"`
	Bindings int `json:"bindings_seen"`
	// Late is how many requests began after the change of their binding had been
	// answered and were still decided by it, for gateways follow the log: how long after.
	Late      int     `json:"late"`
	LateP99MS float64 `json:"late_p99_ms"`
	LateMaxMS float64 `json:"late_max_ms"`
	// ChangeP50MS and ChangeMaxMS are how long a change took to be answered.
	ChangeP50MS float64  `json:"change_p50_ms"`
	ChangeMaxMS float64  `json:"change_max_ms"`
	Errors      []string `json:"errors,omitempty"` // the first few
}

func (b *bench) swaps(ctx context.Context) error {
	s := &Swaps{}
	b.result.Swaps = s
	refs, err := b.prepared(ctx, 2)
	if err != nil {
		return err
	}
	index, err := b.fleet.change(ctx, "promote", admin.PolicyPartWant{Policy: refs[0]})
	if err != nil {
		return err
	}
	if err := b.fleet.follow(ctx, index); err != nil {
		return err
	}
	b.say(fmt.Sprintf("promoting and rolling back %d times under %d requests a second", b.Swaps, b.Rate))
	l := b.startLoad(ctx)
	took, last, err := b.swing(ctx, refs[1])
	if err == nil {
		err = b.fleet.follow(ctx, last)
	}
	if err == nil {
		err = rig.Pause(ctx, b.Pause)
	}
	l.end()
	if err != nil {
		return err
	}
	l.judge()
	s.sum(l, took)
	b.most("requests that failed during swaps", float64(s.Failed), 0)
	b.most("decisions by a version other than the one bound at their index", float64(s.Wrong+s.Back), 0)
	return nil
}

// prepared pushes versions and has every node make them ready.
func (b *bench) prepared(ctx context.Context, count int) (refs []string, err error) {
	for range count {
		module, ref, err := b.version(policy.Scorer(), smallBytes)
		if err != nil {
			return nil, err
		}
		if err := b.fleet.push(ctx, module); err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// swing promotes and rolls back; took is how long each change took, last the index of
// the last one.
func (b *bench) swing(ctx context.Context, ref string) (took []time.Duration, last uint64, err error) {
	for range b.Swaps {
		for _, verb := range []string{"promote", "rollback"} {
			var parts []admin.PolicyPartWant
			if verb == "promote" {
				parts = append(parts, admin.PolicyPartWant{Policy: ref})
			}
			began := time.Now()
			if last, err = b.fleet.change(ctx, verb, parts...); err != nil {
				return took, last, err
			}
			took = append(took, time.Since(began))
			if err := rig.Pause(ctx, b.Pause); err != nil {
				return took, last, err
			}
		}
	}
	return took, last, nil
}

func (s *Swaps) sum(l *load, took []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Changes, s.Decisions, s.Failed, s.Wrong, s.Back, s.Bindings = len(took), l.answered, l.failed, l.wrong, l.back, len(l.decided)
	s.PerS = float64(l.answered) / l.took.Seconds()
	s.Late, s.LateP99MS, s.LateMaxMS = len(l.lags), milliseconds(quantile(l.lags, 0.99)), milliseconds(quantile(l.lags, 1))
	s.ChangeP50MS, s.ChangeMaxMS = milliseconds(quantile(took, 0.5)), milliseconds(quantile(took, 1))
	for _, err := range l.errs {
		s.Errors = append(s.Errors, err.Error())
	}
}
