package cpu

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// cutAnswers breaks off answers to "cut me", %s at byte %d, and answers the rest.
const cutAnswers = `
rules:
- match: {body: cut me}
  do:
    raw: {text: "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n64\r\ndata: {}"}
    cut: {how: %s, at: %d}
`

// An engine that breaks off an answer, wherever in it, gets the request once,
// though it is known to take tokens in or only to compute: there is no other. On
// a connection that has been idle the adapter sends it once more when no byte
// came.
func TestAnEngineThatBreaksOffIsNotAskedAgain(t *testing.T) {
	hosted, external := New(openai.Config{Connect: time.Second}), openai.New(openai.Config{Connect: time.Second})
	defer hosted.Close()
	defer external.Close()
	for name, adapter := range map[string]engine.Adapter{"hosted": hosted, "external": external} {
		for _, how := range []string{"reset", "close"} {
			for _, at := range []int{0, 1, 17, 82, 86, 90} {
				for _, stream := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s %s at %d, stream %v", name, how, at, stream), func(t *testing.T) {
						e := scripted.NewTest(t, scripted.YAML(fmt.Sprintf(cutAnswers, how, at)), func(o *scripted.Options) { o.Model = "m" })
						view := fleet.NewView(1, []fleet.Worker{{ID: fleet.WorkerID(e.URL()), Role: fleet.RoleBoth, Engine: "x", Models: []string{"m"}, URL: e.URL()}})
						y := &yard{t: t}
						var err error
						y.d, err = dispatch.New(dispatch.Config{}, dispatch.Deps{
							View: func() *fleet.View { return view }, Registry: &measure.Registry{}, Clock: clock.Real{},
							Adapter: func(string) engine.Adapter { return adapter },
						})
						if err != nil {
							t.Fatal(err)
						}
						const body = `{"model":"m","stream":%v,"max_tokens":4,"messages":[{"role":"user","content":"%s"}]}`
						if o := y.ask("/v1/chat/completions", fmt.Sprintf(body, true, "hello"), new(client)); o.Err != nil {
							t.Fatal(o.Err)
						}
						e.ResetRecords()
						var got client
						o := y.ask("/v1/chat/completions", fmt.Sprintf(body, stream, "cut me"), &got)
						if o.Err == nil || strings.Contains(got.raw.String(), "[DONE]") {
							t.Errorf("%v after %q", o.Err, got.raw.String())
						}
						want := 1
						if at == 0 {
							want = 2
						}
						if n := len(e.Records(0)); n != want {
							t.Errorf("%d requests at the engine, want %d", n, want)
						}
					})
				}
			}
		}
	}
}
