package cpu

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every kind of fault an engine has, in turn, on real sockets. The engines die
// at different times.
const faults = `
rules:
- {match: {route: /v1/*, every: %d}, times: 2, do: {die: {restart_after: 20ms}}}
- {match: {route: /v1/*, every: 11}, do: {error: {kind: busy}}}
- {match: {route: /v1/*, every: 10}, do: {error: {kind: context, flat: true}}}
- {match: {route: /v1/*, every: 9}, do: {hang: {when: before_headers}}}
- {match: {route: /v1/*, every: 8}, do: {cut: {at: 150, how: reset}}}
- {match: {route: /v1/*, every: 7}, do: {cut: {at: 200, how: end}}}
- {match: {route: /v1/*, every: 6, stream: true}, do: {generate: {stall: {after: 2}}}}
- {match: {route: /v1/*, every: 5, stream: true}, do: {generate: {error: {after: 2, done: true}}}}
- {match: {route: /v1/*, every: 4, stream: true}, do: {generate: {done: false}}}
- {match: {route: /v1/*, every: 3, stream: true}, do: {generate: {crlf: true, comment: busy}, split: [1, 7, 3]}}
`

// answer records what a client gets.
type answer struct {
	head dispatch.Head
	got  strings.Builder
}

func (a *answer) Begin(h dispatch.Head) error { a.head = h; return nil }

func (a *answer) Write(p []byte) error {
	a.got.Write(p)
	return nil
}

// Whatever the engines do, a request ends with a whole answer or a typed error,
// and nothing stays counted.
func TestDispatchOverFaultyEngines(t *testing.T) {
	var workers []fleet.Worker
	for i := range 3 {
		e := scripted.NewTest(t, scripted.YAML(fmt.Sprintf(faults, 15+10*i)), func(o *scripted.Options) { o.Model = "m" })
		workers = append(workers, fleet.Worker{
			ID: fleet.WorkerID(fmt.Sprint("w", i)), Role: fleet.RoleBoth, Engine: "scripted", Models: []string{"m"}, URL: e.URL(),
		})
	}
	view := fleet.NewView(1, workers)
	adapter := New(openai.Config{Connect: time.Second})
	defer adapter.Close()
	var registry measure.Registry
	d, err := dispatch.New(dispatch.Config{
		Deadlines: dispatch.Deadlines{FirstToken: 300 * time.Millisecond, Idle: 300 * time.Millisecond, Total: 600 * time.Millisecond},
	}, dispatch.Deps{
		View: func() *fleet.View { return view }, Registry: &registry, Clock: clock.Real{},
		Adapter: func(string) engine.Adapter { return adapter },
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	outcomes := map[string]int{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 25 {
				o := ask(t, d, i*25+n)
				mu.Lock()
				outcomes[o]++
				mu.Unlock()
				if o == "no_capacity" {
					time.Sleep(10 * time.Millisecond) // all may be dead for a moment
				}
			}
		})
	}
	wg.Wait()
	t.Log(outcomes)
	if outcomes["ok"] < 40 || len(outcomes) < 4 {
		t.Errorf("outcomes %v", outcomes)
	}
	if n := d.Load().InFlight(); n != 0 {
		t.Errorf("%d reservations left", n)
	}
	for _, f := range registry.Snapshot() {
		for _, s := range f.Series {
			if f.Desc.Type == measure.GaugeType && s.Value != 0 {
				t.Errorf("%s %v = %v", f.Desc.Name, s.Labels, s.Value)
			}
		}
	}
}

// ask sends the n-th request and returns its outcome's name.
func ask(t *testing.T, d *dispatch.Dispatcher, n int) string {
	stream := n%4 != 0
	req, err := edge.Parse(fmt.Appendf(nil, `{"model":"m","stream":%v,"max_tokens":6,"messages":[{"role":"user","content":"request %d"}]}`, stream, n), 0)
	if err != nil {
		t.Error(err)
		return ""
	}
	life, err := d.Accept("chat")
	if err != nil {
		t.Error(err)
		return ""
	}
	defer life.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+n%7*100)*time.Millisecond)
	defer cancel()
	var a answer
	o := life.Serve(ctx, &dispatch.Request{Request: req, ID: fmt.Sprint("r", n), Path: "/v1/chat/completions"}, &a)
	got := a.got.String()
	whole := strings.HasSuffix(strings.ReplaceAll(got, "\r", ""), "data: [DONE]\n\n")
	if stream && a.head.Stream && whole != (o.Err == nil) {
		t.Errorf("request %d: %s (%v) after %q", n, o.Name, o.Err, got)
	}
	if o.Err != nil && o.Err.Client == "" {
		t.Errorf("request %d: an error without words: %v", n, o.Err)
	}
	return o.Name
}
