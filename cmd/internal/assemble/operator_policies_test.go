package assemble

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/vet"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
)

// operatorAt is a lone planner's policies, at a feature level.
func operatorAt(t *testing.T, level uint32) policyOperator {
	t.Helper()
	store, err := raftstore.Open(t.Context(), raftstore.Config{Dir: t.TempDir(), Registry: &measure.Registry{}, MaxLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := store.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := store.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	want := level
	if want == 0 {
		want = planner.MaxFeatureLevel
	}
	for store.FeatureLevel() < want { // the leader raises it when it has begun to lead
		select {
		case <-ctx.Done():
			t.Fatalf("the level is %d, not %d", store.FeatureLevel(), want)
		case <-time.After(10 * time.Millisecond):
		}
	}
	checks, err := vet.New(vet.Config{AllowUnsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	return policyOperator{store: func() *raftstore.Store { return store }, checks: checks, clock: clock.Real{}}
}

// A cluster with members of an older release takes no policies, and says what it takes.
func TestPoliciesNeedTheLevel(t *testing.T) {
	o := operatorAt(t, 2)
	_, report, err := o.Push(t.Context(), abitest.Policy{}.Build(), nil)
	if !errors.Is(err, admin.ErrRefused) || !strings.Contains(err.Error(), "policies need feature level 3, the cluster is at 2") || len(report) == 0 {
		t.Errorf("push: %v, report %s", err, report)
	}
	err = o.Change(t.Context(), rollout.Change{Kind: rollout.Router, Verb: rollout.VerbPromote, Stage: rollout.NativeStage("sticky")})
	if !errors.Is(err, admin.ErrRefused) || !strings.Contains(err.Error(), "feature level") {
		t.Errorf("promote: %v", err)
	}
	if n := len(o.Table().Versions()) + len(o.Table().Bindings()); n > 0 {
		t.Errorf("%d versions and bindings", n)
	}
}

// The same bytes again are no fault; parameters that a policy lacks are.
func TestPoliciesOfALonePlanner(t *testing.T) {
	o := operatorAt(t, 0)
	module := abitest.Policy{Name: "blue"}.Build()
	v, _, err := o.Push(t.Context(), module, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, _, err := o.Push(t.Context(), module, nil); err != nil || again.Index != v.Index {
		t.Errorf("again: %+v, %v", again, err)
	}
	change := func(params ...rollout.Param) error {
		return o.Change(t.Context(), rollout.Change{
			Kind: rollout.Router, Verb: rollout.VerbPromote, Stage: rollout.Stage{Parts: []rollout.Part{rollout.NewPart("blue", v.Digest, 1, params...)}},
		})
	}
	if err := change(rollout.Param{Name: "speed", Value: 1}); !errors.Is(err, admin.ErrInvalid) || !strings.Contains(err.Error(), `blue has no "speed"`) {
		t.Errorf("an unknown parameter: %v", err)
	}
	if err := change(); err != nil {
		t.Error(err)
	}
	if err := o.Delete(t.Context(), v.Digest); !errors.Is(err, rollout.ErrBound) {
		t.Errorf("deleting what decides: %v", err)
	}
}
