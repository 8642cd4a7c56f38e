package scripted

import (
	"errors"
	"strings"
	"testing"
)

// Each fault of a script is told with its place, and with what was meant.
func TestScriptErrors(t *testing.T) {
	tests := []struct {
		name, script string
		want         []string // parts of the message
	}{
		{"unknown key", "rules:\n  - do:\n      dellay: 5ms\n", []string{"s.yaml:3:7", `unknown key "dellay"`, `did you mean "delay"?`}},
		{"unknown key, nothing near", "xyzzyplugh: 1\n", []string{"s.yaml:1:1", `unknown key "xyzzyplugh"`}},
		{"bad duration", "rules:\n  - do: {delay: 5}\n", []string{"s.yaml:2:17", "5 is no duration", "250ms"}},
		{"wrong type", "rules:\n  - times: often\n", []string{"s.yaml:2:12"}},
		{"deep brackets", strings.Repeat("[", 32000), []string{"s.yaml:1:65", "nested deeper than 64"}},
		{"endless", strings.Repeat("a: 1\n", 200_000), []string{"more than"}},
		{"bad YAML", "rules: [\n", []string{"s.yaml:"}},
		{"two documents", "rules: []\n---\nrules: []\n", []string{"2 YAML documents"}},
		{"duplicate key", "server: {}\nserver: {}\n", []string{"s.yaml:2:1"}},
		{"two answers", "rules:\n  - do:\n      hang: {when: before_headers}\n      die: {}\n", []string{"s.yaml:3", "more than one of"}},
		{"bad word", "rules:\n  - do:\n      cut: {how: rest}\n", []string{"s.yaml:3:18", `"rest" is not one of`, `did you mean "reset"?`}},
		{"cut without how", "rules: [{do: {cut: {at: 4}}}]", []string{"needs how"}},
		{"bad hex", "rules: [{do: {raw: {hex: zz}}}]", []string{"s.yaml:1:", "invalid byte"}},
		{"two encodings", "rules: [{do: {raw: {hex: '00', text: a}}}]", []string{"more than one of text"}},
		{"parts and text", "rules: [{do: {respond: {text: a, parts: [{text: b}]}}}]", []string{"both parts"}},
		{"status", "rules: [{do: {respond: {status: 99}}}]", []string{"99 is no final HTTP status"}},
		{"nth", "rules: [{match: {nth: [0]}}]", []string{"counts from 1"}},
		{"metric value", "metrics: {set: [{name: a, value: much}]}", []string{`"much" is no number`}},
		{"preset", "engine: {timing: llama-3.1-8b-bf16-h100}", []string{`did you mean "llama-3.1-8b-bf16-h100x1"?`}},
		{"engine", "engine: {kv_blocks: 1}", []string{"does not fit"}},
		{"events address", "events: {publish: here}", []string{"missing port"}},
		{"replay alone", "events: {replay: '127.0.0.1:0'}", []string{"needs publish"}},
		{"health", "health: [{status: 200}, {status: 503}]", []string{"needs for"}},
		{"several at once", "kv: {missing: lies, wait: 2h}", []string{`did you mean "lie"?`, "0 to 1m"}},
		{"negative", "rules: [{do: {generate: {token: -1s}}}]", []string{"is negative"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseScript("s.yaml", []byte(tt.script))
			if !errors.Is(err, ErrScript) {
				t.Fatalf("got %v", err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
		})
	}
}

func TestEmptyScripts(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "{}"} {
		if s, err := ParseScript("s", []byte(text)); err != nil || s == nil || len(s.Rules) > 0 {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
	}
}

// A script made in Go is checked too.
func TestSetScriptChecks(t *testing.T) {
	e := NewTest(t)
	err := e.SetScript(&Script{Rules: []Rule{{Times: -1}}})
	if !errors.Is(err, ErrScript) || !strings.Contains(err.Error(), "rules[0].times") {
		t.Errorf("got %v", err)
	}
	if _, err := New(Options{Script: &Script{Health: []HealthPhase{{Status: 1}}}}); !errors.Is(err, ErrScript) {
		t.Errorf("got %v", err)
	}
}

func TestOptionsValidate(t *testing.T) {
	for name, o := range map[string]Options{
		"context":  {MaxContext: 1 << 20, KVBlocks: 4},
		"ranks":    {Ranks: 1000},
		"speed":    {Speed: -1},
		"adapter":  {Adapters: []string{""}},
		"negative": {MaxRunning: -1},
		"running":  {MaxRunning: 100, StepTokens: 10},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Rules count the requests that meet their conditions.
func TestRules(t *testing.T) {
	e := NewTest(t, YAML(`
rules:
- {name: second of a, match: {body: aaa, nth: [2]}, do: {error: {kind: busy}}}
- {name: every third b, match: {body: bbb, every: 3}, do: {error: {kind: busy}}}
- {name: once, match: {header: {X-Once: ""}}, times: 1, do: {error: {kind: busy}}}
- {name: streams, match: {stream: true, route: "/v1/*"}, do: {error: {kind: rate_limit}}}
- {name: adapters, match: {model: other, method: POST}, do: {error: {kind: model}}}
- {name: prefill legs, match: {leg: prefill}, do: {error: {kind: internal}}}
`))
	for _, tt := range []struct {
		body   string
		header []string
		want   []int
	}{
		{`{"prompt":"aaa"}`, nil, []int{200, 503, 200}},
		{`{"prompt":"bbb"}`, nil, []int{200, 200, 503, 200, 200, 503}},
		{`{"prompt":"ccc"}`, []string{"X-Once", "1"}, []int{503, 200}},
		{`{"prompt":"ddd","stream":true}`, nil, []int{429}},
		{`{"prompt":"eee","model":"other"}`, nil, []int{404}},
		{`{"prompt":"fff","kv_transfer_params":{"do_remote_decode":true}}`, nil, []int{500}},
	} {
		for i, want := range tt.want {
			if status, _, _ := ask(t, e, "/v1/completions", tt.body, tt.header...); status != want {
				t.Errorf("%s, request %d: %d, want %d", tt.body, i+1, status, want)
			}
		}
	}
	if r := e.Records(0); r[1].Rule != "second of a" || r[0].Rule != "" {
		t.Errorf("rules %q, %q", r[0].Rule, r[1].Rule)
	}
}

func FuzzParseScript(f *testing.F) {
	f.Add([]byte("rules:\n  - match: {route: /v1/*, nth: [1, 2]}\n    do: {generate: {token: 5ms}, cut: {at: 3, how: reset}}\n"))
	f.Add([]byte("engine: {model: m, timing: none}\nevents: {publish: '127.0.0.1:0'}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		if _, err := ParseScript("s", text); err != nil && !errors.Is(err, ErrScript) {
			t.Fatalf("untyped error %v", err)
		}
	})
}
