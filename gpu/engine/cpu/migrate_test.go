package cpu

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// yard is a dispatcher over scripted engines that can be killed.
type yard struct {
	t        *testing.T
	d        *dispatch.Dispatcher
	registry measure.Registry
	engines  map[fleet.WorkerID]*scripted.Engine
	sent     int
}

func newYard(t *testing.T, cfg dispatch.Config, script string, roles ...fleet.Role) *yard {
	y := &yard{t: t, engines: map[fleet.WorkerID]*scripted.Engine{}}
	var workers []fleet.Worker
	for i, role := range roles {
		e := scripted.NewTest(t, scripted.YAML(script), func(o *scripted.Options) { o.Model = "m" })
		id := fleet.WorkerID(fmt.Sprint("w", i))
		y.engines[id] = e
		workers = append(workers, fleet.Worker{ID: id, Role: role, Engine: "scripted", Models: []string{"m"}, URL: e.URL(), Compat: "c", Transfer: e.Addr()})
	}
	view := fleet.NewView(1, workers)
	adapter := New(openai.Config{Connect: time.Second})
	t.Cleanup(adapter.Close)
	var err error
	y.d, err = dispatch.New(cfg, dispatch.Deps{
		View: func() *fleet.View { return view }, Registry: &y.registry, Clock: clock.Real{},
		Adapter: func(string) engine.Adapter { return adapter },
	})
	if err != nil {
		t.Fatal(err)
	}
	return y
}

// client is a dispatch.Sink that reads a stream as a client does.
type client struct {
	head   dispatch.Head
	text   strings.Builder
	raw    strings.Builder
	ids    map[string]bool
	roles  int
	finish string
	usage  gjson.Result
	done   bool
	event  func(n int) // called after each event with text
	events int
}

func (c *client) Begin(h dispatch.Head) error { c.head = h; return nil }

func (c *client) Write(p []byte) error {
	c.raw.Write(p)
	for event := range strings.SplitSeq(string(p), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			c.done = true
			continue
		}
		if c.ids == nil {
			c.ids = map[string]bool{}
		}
		c.ids[gjson.Get(data, "id").Str] = true
		if gjson.Get(data, "choices.0.delta.role").Exists() {
			c.roles++
		}
		if f := gjson.Get(data, "choices.0.finish_reason"); f.Type == gjson.String {
			c.finish = f.Str
		}
		if u := gjson.Get(data, "usage"); u.IsObject() {
			c.usage = u
		}
		text := gjson.Get(data, "choices.0.delta.content").Str + gjson.Get(data, "choices.0.text").Str
		c.text.WriteString(text)
		if text != "" {
			c.events++
			if c.event != nil {
				c.event(c.events)
			}
		}
	}
	return nil
}

func (y *yard) ask(path, body string, c *client) dispatch.Outcome {
	y.t.Helper()
	req, err := edge.Parse([]byte(body), 0)
	if err != nil {
		y.t.Fatal(err)
	}
	life, err := y.d.Accept("test")
	if err != nil {
		y.t.Fatal(err)
	}
	defer life.Close()
	y.sent++
	return life.Serve(y.t.Context(), &dispatch.Request{Request: req, ID: fmt.Sprint("r", y.sent), Path: path}, c)
}

// kill stops a worker and starts it again, on the same port, later.
func (y *yard) kill(id fleet.WorkerID) (restart func()) {
	if err := y.engines[id].Kill(); err != nil {
		y.t.Error(err)
	}
	return func() {
		if err := y.engines[id].Restart(y.t.Context()); err != nil {
			y.t.Error(err)
		}
	}
}

const paced = `rules: [{match: {route: "/v1/*"}, do: {generate: {token: 1ms}}}]`

// A stream whose worker is killed, at whatever token, is the unbroken one to its
// client: text, id, role, finish reason and usage.
func TestStreamsSurviveTheirWorkers(t *testing.T) {
	y := newYard(t, dispatch.Config{}, paced, fleet.RoleBoth, fleet.RoleBoth, fleet.RoleBoth)
	requests := []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":24,"messages":[{"role":"user","content":"tell me"}]}`},
		{"/v1/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":24,"prompt":"once upon a time"}`},
		{"/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"max_tokens":24,"stop":["m !","f !","b q","n !", "t !"],"messages":[{"role":"user","content":"tell me more"}]}`},
	}
	for _, r := range requests {
		var want client
		if o := y.ask(r.path, r.body, &want); o.Err != nil {
			t.Fatal(o.Err)
		}
		if want.events < 4 {
			t.Fatalf("the answer %q is too short for the test", want.text.String())
		}
		for round := range 17 {
			var got client
			restart := func() {}
			at := 1 + round%(want.events-1)
			got.event = func(n int) {
				if n == at {
					restart = y.kill(got.head.Placement.Serve)
				}
			}
			o := y.ask(r.path, r.body, &got)
			restart()
			if o.Err != nil || !got.done {
				t.Fatalf("killed at %d: %v after %q", at, o.Err, got.raw.String())
			}
			if o.Placement.Migrations == 0 && at < want.events-2 {
				t.Errorf("killed at %d: not migrated", at)
			}
			if got.text.String() != want.text.String() || got.finish != want.finish || got.roles != want.roles || len(got.ids) != 1 {
				t.Errorf("killed at %d: %q (%s, %d roles, ids %v), want %q (%s)", at, got.text.String(), got.finish, got.roles, got.ids, want.text.String(), want.finish)
			}
			for _, key := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
				if g, w := got.usage.Get(key).Int(), want.usage.Get(key).Int(); g != w {
					t.Errorf("killed at %d: %s = %d, want %d", at, key, g, w)
				}
			}
			if asked := strings.Contains(r.body, "return_token_ids"); strings.Contains(got.raw.String(), "token_ids") != asked {
				t.Errorf("killed at %d: token ids shown %v", at, !asked)
			}
		}
	}
	y.balanced()
}

// Migration is bounded, and a stream that may not go on ends visibly.
func TestMigrationLimit(t *testing.T) {
	for _, limit := range []int{-1, 2} {
		y := newYard(t, dispatch.Config{Migrations: limit}, paced, fleet.RoleBoth, fleet.RoleBoth, fleet.RoleBoth, fleet.RoleBoth, fleet.RoleBoth)
		var got client
		got.event = func(n int) {
			if n%3 == 0 {
				for id, e := range y.engines {
					if len(e.Records(0)) > 0 && e.Running() && e.Load().Running > 0 {
						y.kill(id)
					}
				}
			}
		}
		o := y.ask("/v1/completions", `{"model":"m","stream":true,"max_tokens":64,"prompt":"x"}`, &got)
		if o.Err == nil || got.done || o.Placement.Migrations != max(limit, 0) {
			t.Errorf("limit %d: %v after %d migrations, done %v", limit, o.Err, o.Placement.Migrations, got.done)
		}
		y.balanced()
	}
}

// A prefill leg that fails without the decode worker's knowing leaves no request
// waiting.
func TestFailedPrefillIsNotWaitedFor(t *testing.T) {
	for name, rule := range map[string]string{
		"500":     `{match: {leg: prefill}, do: {error: {kind: internal}}}`,
		"reset":   `{match: {leg: prefill}, do: {cut: {at: 0, how: reset}}}`,
		"garbage": `{match: {leg: prefill}, do: {raw: {text: "what?\r\n\r\n"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t, dispatch.Config{}, "rules: ["+rule+"]", fleet.RolePrefill, fleet.RoleDecode)
			for _, stream := range []bool{true, false} {
				var got client
				began := time.Now()
				o := y.ask("/v1/completions", fmt.Sprintf(`{"model":"m","stream":%v,"max_tokens":4,"prompt":%q}`, stream, strings.Repeat(fmt.Sprint("long ", stream), 200)), &got)
				if took := time.Since(began); o.Err != nil || took > 5*time.Second {
					t.Errorf("stream %v: %v after %v", stream, o.Err, took)
				}
				if arrived := name == "reset" && o.Placement.Path == "disaggregated" && o.Placement.KV == "moved"; arrived {
					continue // the KV was quicker than the news of the reset
				}
				if o.Placement.PrefillFault == "" || o.Placement.Path != "aggregated" {
					t.Errorf("stream %v: %s, fault %q", stream, o.Placement, o.Placement.PrefillFault)
				}
			}
			y.balanced()
		})
	}
}

func (y *yard) balanced() {
	y.t.Helper()
	for _, f := range y.registry.Snapshot() {
		for _, s := range f.Series {
			if f.Desc.Type == measure.GaugeType && s.Value != 0 && strings.Contains(f.Desc.Name, "in_flight") {
				y.t.Errorf("%s %v = %v", f.Desc.Name, s.Labels, s.Value)
			}
		}
	}
}
