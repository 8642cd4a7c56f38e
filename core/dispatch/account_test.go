package dispatch

import (
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/route"
)

// trial chooses a canary for every second request.
type trial struct {
	n     int
	lanes [2]*route.Choice
}

func (c *trial) Choose(*route.Query) *route.Choice {
	c.n++
	return c.lanes[c.n%2]
}
func (*trial) Done(*route.Choice) {}

// series are the values of a family's series with these labels.
func series(y *yard, d measure.Desc, labels ...string) (value float64, observed uint64) {
	for _, s := range y.registry.Read(d).Series {
		same := true
		for i := range labels {
			same = same && s.Labels[i] == labels[i]
		}
		if same {
			value += s.Value
			for _, n := range s.Counts {
				observed += n
			}
		}
	}
	return value, observed
}

// A canary can be compared with what is active: outcomes and times to the first token
// stand by version and stage.
func TestRequestsByPolicyAndStage(t *testing.T) {
	c := &trial{}
	for i, name := range []string{"kv@1", "kv@2"} {
		c.lanes[i] = route.NewChoice(route.LeastRequest{}, nil, route.Mandate{Policy: name, Index: uint64(i + 1), Canary: i == 1})
	}
	y := newYard(t, Config{Route: route.Config{Chooser: c, Mode: route.Never}}, fleet.Worker{ID: "w"})
	y.play = func(fleet.WorkerID, *engine.Call) script {
		if c.n%2 == 1 {
			return streamOf(evError)
		}
		return good()
	}
	for range 4 {
		y.serveAs(t.Context(), "", admit.Standard)
	}
	active, first := series(y, measure.PolicyRequests, "kv@1", "active", "ok")
	_, seen := series(y, measure.PolicyFirst, "kv@1", "active")
	canary, _ := series(y, measure.PolicyRequests, "kv@2", "canary", "upstream")
	_, unseen := series(y, measure.PolicyFirst, "kv@2", "canary")
	if active != 2 || first != 0 || seen != 2 || canary != 2 || unseen != 0 {
		t.Errorf("active %v, %v first tokens; canary %v failed, %v first tokens", active, seen, canary, unseen)
	}
}

// A refusal says by which policy it is: to the client, in the explanation and in the
// metrics; and tenants are counted by name.
func TestRefusalsAreExplained(t *testing.T) {
	y := newYard(t, Config{}, fleet.Worker{ID: "w"})
	refuse := true
	y.d.deps.Admission = &bouncer{verdict: func(*admit.Ask) admit.Verdict {
		if refuse {
			return admit.Verdict{Action: admit.Reject, RetryAfter: time.Second, Reason: "slo_ttft", Policy: "gate@2", Digest: "ab", Index: 7}
		}
		return admit.Verdict{}
	}}
	y.play = func(fleet.WorkerID, *engine.Call) script { return good() }
	// The place in the memory has held another request.
	refuse = false
	for range keptExplanations {
		y.serveAs(t.Context(), "other", admit.Standard)
	}
	refuse = true
	o := y.serveAs(t.Context(), "acme", admit.Standard)
	if o.Placement == nil || o.Placement.String() != "refused; reason=slo_ttft; policy=gate@2; policy-index=7" {
		t.Errorf("outcome's placement %v", o.Placement)
	}
	found := y.d.Explain("id-acme")
	if len(found) != 1 || found[0].Outcome != "saturated" || found[0].Placement.Policy != "gate@2" || found[0].Placement.Digest != "ab" || len(found[0].Serving) != 0 || found[0].Candidates != 0 {
		t.Errorf("explained %+v", found)
	}
	if n, _ := series(y, measure.Admissions, "reject", "slo_ttft", "gate@2"); n != 1 {
		t.Errorf("%v counted as refused by it", n)
	}
	refuse = false
	if o := y.serveAs(t.Context(), "acme", admit.Standard); o.Name != "ok" {
		t.Errorf("%s", o.Name)
	}
	refused, _ := series(y, measure.TenantRequests, "acme", "refused")
	admitted, _ := series(y, measure.TenantRequests, "acme", "admitted")
	prompt, _ := series(y, measure.TenantTokens, "acme", "prompt")
	output, _ := series(y, measure.TenantTokens, "acme", "output")
	none, _ := series(y, measure.TenantTokens, "acme", "refused")
	if refused != 1 || admitted != 1 || prompt != 10 || output != 3 || none <= 0 {
		t.Errorf("refused %v, admitted %v; tokens: prompt %v, output %v, refused %v", refused, admitted, prompt, output, none)
	}
}
