package assemble

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/server/admin"
)

// The leader of a cluster knows what a gateway elsewhere serves, and so does the next
// one. All know the plan, and that an operator holds it.
func TestPoolsAreSizedByWhoeverLeads(t *testing.T) {
	planners, settings := startVoters(t, 3, func(c *config.Config) {
		c.Scale.Policy, c.Scale.Interval, c.Scale.Pools = "target-utilisation", 100*time.Millisecond, []string{"both=1-3"}
	})
	waitFor(t, "somebody leads", func() bool { return leaderOf(planners) >= 0 })
	scriptedAt(t, "both-0", planners[0].Addr(), planners[1].Addr(), planners[2].Addr())
	c := clusterSettings(t)
	c.Cluster.Join, c.Cluster.TokenFile = settings[0].Cluster.Join, settings[0].Cluster.TokenFile
	g, err := StartJoinedGateway(t.Context(), spoken(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, "gateway", g.Close) })
	waitFor(t, "the gateway knows the worker", func() bool { status, _ := get(t, g.URL()+"/readyz"); return status == http.StatusOK })
	pool := func(p *Planner) gjson.Result {
		_, body := get(t, p.AdminURL()+"/admin/scale")
		return gjson.Parse(body)
	}
	known := func() bool {
		if status := completion(t, g.URL(), "m"); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		at := leaderOf(planners)
		if at < 0 {
			return false
		}
		s := pool(planners[at])
		return s.Get("leader.policy").Str == "target-utilisation" && s.Get("pools.0.sample.arrivals_per_s").Num > 0 &&
			s.Get("pools.0.sample.running").Exists() && s.Get("pools.0.ready").Int() == 1 && s.Get("pools.0.desired").Exists()
	}
	waitFor(t, "the leader knows of traffic", known)
	leader := leaderOf(planners)
	other := planners[(leader+1)%3]
	if s := pool(other); s.Get("leader").Exists() || s.Get("pools.0.sample").Exists() {
		t.Errorf("a node that does not lead says what the leader saw: %s", s.Raw)
	}
	for body, want := range map[string]int{
		`{"verb":"set","model":"m","role":"both","desired":2}`: http.StatusOK,
		`{"verb":"set","model":"m","role":"both","desired":4}`: http.StatusBadRequest,
		`{"verb":"set","model":"m","role":"all","desired":1}`:  http.StatusBadRequest,
		`{"verb":"set","model":"n","role":"both","desired":0}`: http.StatusBadRequest, // nobody serves it
	} {
		if status := changeScale(t, other.AdminURL(), body); status != want {
			t.Errorf("%s: status %d, want %d", body, status, want)
		}
	}
	held := func() bool {
		for _, p := range planners {
			if s := pool(p); !s.Get("plan.held").Bool() || s.Get("pools.0.desired").Int() != 2 {
				return false
			}
		}
		return true
	}
	waitFor(t, "all know that the plan is held", held)
	waitFor(t, "the leader says why it stays, and that it is no fault", func() bool {
		s := pool(planners[leader])
		return !s.Get("leader.fault").Exists() && strings.HasPrefix(s.Get("pools.0.reason").Str, "an operator holds the plan; the policy: ") == (s.Get("pools.0.wanted").Exists() && s.Get("pools.0.wanted").Int() != 2)
	})
	ctx, cancel := context.WithTimeout(t.Context(), clusterWait)
	defer cancel()
	if err := planners[leader].store.StepDown(ctx); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "another leads and knows of traffic", func() bool { return leaderOf(planners) != leader && known() })
	if !held() {
		t.Error("the plan is no longer held")
	}
	if status := changeScale(t, other.AdminURL(), `{"verb":"release"}`); status != http.StatusOK {
		t.Errorf("release: status %d", status)
	}
	waitFor(t, "all know that it is released", func() bool {
		for _, p := range planners {
			if pool(p).Get("plan.held").Bool() {
				return false
			}
		}
		return true
	})
}

// A pool that came into the plan by mistake is taken out by setting it to nothing, and
// does not come back; a pool that the settings name stays.
func TestPoolsThatAreOverLeaveThePlan(t *testing.T) {
	planners, _ := startVoters(t, 1, func(c *config.Config) {
		c.Scale.Policy, c.Scale.Interval, c.Scale.Pools = "target-utilisation", 50*time.Millisecond, []string{"m/decode=1-3"}
	})
	p := planners[0]
	waitFor(t, "the leader sizes pools", func() bool { plan, _ := p.store.State().Plan(); return plan != nil })
	named, phantom := scale.Key{Model: "m", Role: fleet.RoleDecode}, scale.Key{Model: "n", Role: fleet.RoleDecode}
	held := scale.Plan{Policy: scale.ByHand, Pools: []scale.PoolPlan{{Key: named, Desired: 1}, {Key: phantom, Desired: 1}}}
	waitFor(t, "the plan is held", func() bool {
		res, err := p.store.Propose(t.Context(), planner.SetScalePlan{Plan: held})
		return err == nil && res.Err() == nil
	})
	for _, body := range []string{
		`{"verb":"set","model":"m","role":"decode","desired":0}`,
		`{"verb":"set","model":"n","role":"decode","desired":0}`,
		`{"verb":"release"}`,
	} {
		waitFor(t, body, func() bool { return changeScale(t, p.AdminURL(), body) == http.StatusOK })
	}
	waitFor(t, "the named pool grows again", func() bool {
		plan, _ := p.store.State().Plan()
		one, _ := plan.Find(named)
		return one.Desired == 1
	})
	plan, _ := p.store.State().Plan()
	if _, still := plan.Find(phantom); still || len(plan.Pools) != 1 {
		t.Errorf("%+v", plan.Pools)
	}
}

// Where pools are not sized the API says so, and takes no change.
func TestPoolsThatNobodySizes(t *testing.T) {
	planners, _ := startVoters(t, 1)
	_, body := get(t, planners[0].AdminURL()+"/admin/scale")
	if s := gjson.Parse(body); s.Get("policy").Str != "off" || s.Get("plan").Exists() || !s.Get("pools").IsArray() {
		t.Errorf("%s", body)
	}
	if status := changeScale(t, planners[0].AdminURL(), `{"verb":"hold"}`); status != http.StatusBadRequest {
		t.Errorf("hold: status %d", status)
	}
}

// leaderOf is the place of the planner that leads, -1 when none does.
func leaderOf(planners []*Planner) int {
	for i, p := range planners {
		if p.store.Leading() {
			return i
		}
	}
	return -1
}

func changeScale(t *testing.T, url, body string) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/admin/scale", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(admin.Intent, "1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
