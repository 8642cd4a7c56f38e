package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// chooser chooses one policy for all, and remembers what it was asked.
type chooser struct {
	choice *route.Choice
	asked  []route.Query
}

func (c *chooser) Choose(q *route.Query) *route.Choice {
	c.asked = append(c.asked, *q)
	return c.choice
}

func (*chooser) Done(*route.Choice) {}

func (y *yard) told(t *testing.T, r *Request, body string) Outcome {
	t.Helper()
	var err error
	if r.Request, err = edge.Parse([]byte(body), 0); err != nil {
		t.Fatal(err)
	}
	life, err := y.d.Accept("test")
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	return life.Serve(t.Context(), r, &sink{})
}

func TestPoliciesAreToldWhoAsks(t *testing.T) {
	c := &chooser{choice: route.NewChoice(route.LeastRequest{}, nil, route.Mandate{Policy: "mine@2", Digest: "abc", Index: 7})}
	y := newYard(t, Config{Route: route.Config{Chooser: c, Mode: route.Never}}, fleet.Worker{ID: "a"})
	y.play = func(fleet.WorkerID, *engine.Call) script { return good() }
	request := func(id, tenant string, session uint64) *Request {
		return &Request{ID: id, Path: "/p", Tenant: tenant, Session: session, Class: 3, Wishes: Wishes{First: time.Second, Between: time.Millisecond}}
	}
	const body = `{"model":"m","stream":true,"max_tokens":50}`
	o := y.told(t, request("r1", "t", 9), body)
	for _, r := range []*Request{request("r1", "t", 9), request("r2", "t", 9), request("r3", "u", 9), request("r4", "t", 0)} {
		y.told(t, r, body)
	}
	q := c.asked
	if q[0].Class != 3 || q[0].First != time.Second || q[0].Between != time.Millisecond || q[0].Output != 50 || q[1].Output != 3 {
		t.Errorf("told %+v", q[0])
	}
	if q[0].Seed != q[1].Seed || q[0].Seed == q[2].Seed {
		t.Error("the seed does not follow from the id")
	}
	if q[1].Session != q[2].Session || q[2].Session == q[3].Session || q[2].Session == 9 || q[4].Session != 0 {
		t.Error("sessions are not told apart")
	}
	if q[2].Tenant == q[3].Tenant || q[2].Tenant == 0 {
		t.Error("tenants are not told apart")
	}
	if s := o.Placement.String(); !strings.Contains(s, "; policy=mine@2; policy-index=7;") {
		t.Errorf("placement %q", s)
	}
	e := y.d.Explain("r2")
	if len(e) != 1 || e[0].Seed != q[2].Seed || e[0].Placement.Digest != "abc" {
		t.Errorf("explained %+v", e)
	}
}

func TestObserversAreToldWhatBecame(t *testing.T) {
	var seen []Observation
	y := newYard(t, Config{}, fleet.Worker{ID: "a"})
	y.d.deps.Observe = func(o Observation) { seen = append(seen, o) }
	y.play = func(fleet.WorkerID, *engine.Call) script { return good() }
	y.told(t, &Request{ID: "r", Path: "/p", Tenant: "t"}, `{"model":"m","stream":true}`)
	y.play = func(fleet.WorkerID, *engine.Call) script { return streamOf(evRole, evError) }
	y.told(t, &Request{ID: "s", Path: "/p"}, `{"model":"m","stream":true}`)
	if len(seen) != 2 {
		t.Fatalf("%d observations", len(seen))
	}
	if o := seen[0]; o.Worker != route.KeyOf("a") || o.Outcome != "ok" || o.Prompt != 10 || o.Output != 3 || o.Tenant == 0 || o.Hit == o.Hit {
		t.Errorf("%+v", o)
	}
	if o := seen[1]; o.Outcome != "upstream" || o.Output == o.Output {
		t.Errorf("%+v", o)
	}
}
