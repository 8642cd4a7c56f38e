package live_test

import (
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
