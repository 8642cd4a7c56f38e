package cases

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// series counts the series that the gateway exposes.
func (g *gateway) series() (n int) {
	for _, family := range g.metrics() {
		n += len(family.GetMetric())
	}
	return n
}

// Case 39, and measured of other gateways: six hundred invented model or route
// names, or user names, add a series each. Right: none.
func TestInventedNamesAddNoSeries(t *testing.T) {
	t.Parallel()
	e := one(t, "")
	g := serve(t, []*scripted.Engine{e})
	ask := func(i int) {
		name := fmt.Sprintf("invented-%d", i)
		g.ask(chatPath, fmt.Sprintf(`{"model":%q,"messages":[]}`, name))
		g.ask("/v1/"+name, chat)
		g.ask("/"+name+"/v1/chat/completions", chat)
		g.ask(completionPath, fmt.Sprintf(`{"model":"scripted","prompt":"x","max_tokens":1,"user":%q}`, name),
			"X-Request-Id", name, "Authorization", "Bearer "+name, "User-Agent", name, "X-Tenant", name)
		g.ask(completionPath, `{"model":"`+name) // not even JSON
		req, err := http.NewRequestWithContext(t.Context(), fmt.Sprintf("METHOD%d", i%50), g.URL()+chatPath, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := g.client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}
	ask(0)
	g.idle()
	before := g.series()
	for i := 1; i <= 600; i++ {
		ask(i)
	}
	g.idle()
	if after := g.series(); after > before+2 { // outcomes that had not been seen yet
		t.Errorf("%d series, and %d after 600 invented names", before, after)
	}
}

// Case 39. Symptom: keys and prompts stand in logs, errors and metrics. Right:
// nowhere, whatever goes wrong.
func TestSecretsAndPromptsAreNowhere(t *testing.T) {
	t.Parallel()
	const key, question, answer = "sk-canary-5e1f0c", "canary-question-77aa", "canary-answer-93bd"
	echo := fmt.Sprintf(`{"error":{"message":"bad prompt: %s with %s","type":"T","code":400}}`, question, key)
	e := one(t, fmt.Sprintf(`
rules:
  - {match: {route: /v1/chat*, body: case-a}, do: {generate: {text: %q}}}
  - {match: {route: /v1/chat*, body: case-b}, do: {respond: {status: 400, headers: {Content-Type: application/json}, text: %q}}}
  - {match: {route: /v1/chat*, body: case-c}, do: {respond: {status: 500, headers: {Content-Type: application/json}, text: %q}}}
  - {match: {route: /v1/chat*, body: case-d}, do: {generate: {text: %q}, cut: {at: 400, how: reset}}}
  - {match: {route: /v1/chat*, body: case-e}, do: {raw: {text: "%s\r\n"}}}
  - {match: {route: /v1/chat*, body: case-f}, do: {die: {restart_after: 1ms}}}`, answer, echo, echo, strings.Repeat(answer, 20), question))
	g := serve(t, []*scripted.Engine{e})
	for _, which := range []string{"a", "b", "c", "d", "e", "f"} {
		for _, stream := range []bool{false, true} {
			g.ask(chatPath, fmt.Sprintf(`{"model":"scripted","stream":%v,"user":"case-%s","api_key":%q,"messages":[{"role":"user","content":%q}]}`, stream, which, key, question),
				"Authorization", "Bearer "+key, "Api-Key", key, "X-Api-Key", key, "Cookie", "session="+key)
		}
	}
	g.ask(chatPath, `{"model":"scripted","messages":"`+question, "Authorization", "Bearer "+key)
	g.ask(chatPath+"?key="+key, chat)
	g.ask("/v1/"+question+"?key="+key, chat, "Authorization", "Bearer "+key)
	g.idle()
	said := g.logs.String() + fmt.Sprint(g.metrics())
	for _, canary := range []string{key, question, answer} {
		if at := strings.Index(said, canary); at >= 0 {
			t.Errorf("%q is told: …%s…", canary, said[max(0, at-200):min(len(said), at+100)])
		}
	}
	for _, r := range asked(e) {
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, " "), key) {
				t.Errorf("the engine got the client's key in %s", name)
			}
		}
	}
}

// Case 39: the client's trace goes on.
func TestTheTraceGoesOn(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	e := one(t, "")
	g := serve(t, []*scripted.Engine{e})
	wantGood(t, g.ask(chatPath, chat, "Traceparent", parent, "X-Request-Id", "my-id_1.2"), g.ask(chatPath, chatSSE, "Traceparent", parent))
	for _, r := range asked(e) {
		if got := r.Header.Get("Traceparent"); len(got) != len(parent) || got[:35] != parent[:35] {
			t.Errorf("traceparent %q", got)
		}
	}
	if got := asked(e)[0].Header.Get("X-Request-Id"); got != "my-id_1.2" {
		t.Errorf("request id %q", got)
	}
	r := g.ask(chatPath, chat, "X-Request-Id", "bad id\t\"<script>")
	if got := r.header.Get("X-Request-Id"); got == "" || strings.ContainsAny(got, "\"< ") {
		t.Errorf("request id %q", got)
	}
}

// Every outcome is counted exactly once, under its own name.
func TestEveryRequestIsCountedOnce(t *testing.T) {
	t.Parallel()
	e := one(t, `
rules:
  - {match: {route: /v1/comp*, body: "case-500"}, do: {error: {kind: internal}}}
  - {match: {route: /v1/comp*, body: "case-400"}, do: {error: {kind: context}}}
  - {match: {route: /v1/comp*, body: "case-cut"}, do: {cut: {at: 1, how: reset}}}`)
	g := serve(t, []*scripted.Engine{e})
	const each = 7
	for range each {
		g.ask(completionPath, prompt)
		g.ask(completionPath, unlike(1, `,"user":"case-500"`))
		g.ask(completionPath, unlike(1, `,"user":"case-400"`))
		g.ask(completionPath, unlike(1, `,"user":"case-cut"`))
		g.ask(completionPath, `{}`)
		g.ask(completionPath, `{"model":"x"}`)
	}
	g.idle()
	for outcome, want := range map[string]float64{"ok": each, "client_error": 3 * each} {
		if got := g.metric(measure.Requests, outcome); got != want {
			t.Errorf("%v of %s, want %v", got, outcome, want)
		}
	}
	if got := g.metric(measure.Requests); got != 6*each {
		t.Errorf("%v requests counted, want %d", got, 6*each)
	}
}
