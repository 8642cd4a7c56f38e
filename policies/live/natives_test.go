package live_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/live"
)

// A change of a binding does not fill the token buckets of the native policy in it.
func TestNativePoliciesOutliveChanges(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{ShadowShare: 1})
	policy := r.node.Admission(admit.Open{})
	now := time.Unix(1000, 0)
	ask := func() admit.Action {
		return policy.Admit(&admit.Ask{Now: now, Tenant: 1, Seed: 1, Prompt: 500_000}).Action
	}
	bind := func(change rollout.Change) {
		t.Helper()
		change.Kind = rollout.Admission
		r.await(c.change(t, change))
	}
	bucket := only("token-bucket", rollout.Digest{})
	bind(rollout.Change{Verb: rollout.VerbPromote, Stage: bucket})
	if ask() != admit.Serve || ask() != admit.Reject {
		t.Fatal("a full bucket does not pay once")
	}
	for _, change := range []rollout.Change{
		{Verb: rollout.VerbCanary, Stage: only("vtc", rollout.Digest{}), Share: 0.0001},
		{Verb: rollout.VerbPin},
		{Verb: rollout.VerbUnpin},
		{Verb: rollout.VerbShadow, Stage: bucket},
	} {
		bind(change)
		if ask() != admit.Reject {
			t.Errorf("%v filled the bucket", change.Verb)
		}
	}
	bind(rollout.Change{Verb: rollout.VerbClear})
	bind(rollout.Change{Verb: rollout.VerbPromote, Stage: bucket})
	if ask() != admit.Serve {
		t.Error("one that was gone for a while is still remembered")
	}
}

// A native policy is bound with parameters, and with others it is another one. What
// this binary does not accept, as another one may have, is not followed.
func TestNativePoliciesTakeParameters(t *testing.T) {
	c := newCluster()
	r := newRig(t, c, live.Config{})
	policy := r.node.Admission(admit.Open{})
	now := time.Unix(1000, 0)
	ask := func() admit.Action {
		return policy.Admit(&admit.Ask{Now: now, Tenant: 1, Seed: 1, Prompt: 600_000}).Action
	}
	bind := func(burst float64) uint64 {
		t.Helper()
		return c.change(t, rollout.Change{
			Kind: rollout.Admission, Verb: rollout.VerbPromote,
			Stage: only("token-bucket", rollout.Digest{}, rollout.Param{Name: "burst", Value: burst}),
		})
	}
	r.await(bind(1_200_000))
	if got := []admit.Action{ask(), ask(), ask()}; !slices.Equal(got, []admit.Action{admit.Serve, admit.Serve, admit.Reject}) {
		t.Fatalf("a burst of two: %v", got)
	}
	r.await(bind(600_000))
	if got := []admit.Action{ask(), ask()}; !slices.Equal(got, []admit.Action{admit.Serve, admit.Reject}) {
		t.Errorf("a burst of one: %v", got)
	}
	bind(-1)
	eventually(t, "refused parameters", func() bool { return strings.Contains(r.node.News(), "burst of token-bucket is from") })
	if ask() != admit.Reject {
		t.Error("what decided before does not decide on")
	}
}
