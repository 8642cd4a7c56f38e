package edge

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/errs"
)

func TestWatch(t *testing.T) {
	const (
		role   = `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
		word   = `{"choices":[{"index":0,"delta":{"content":"hi \"usage\": {"},"finish_reason":null}],"usage":null}`
		spaced = `{"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": null}]}`
		tool   = `{"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}]}`
		think  = `{"choices":[{"delta":{"content":null,"reasoning":"hm"},"finish_reason":null}]}`
		last   = `{"choices":[{"delta":{},"finish_reason":"stop"}]}`
		text   = `{"choices":[{"text":"x","finish_reason":null}]}`
		usage  = `{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`
		cont   = `{"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`
	)
	tests := []struct {
		name  string
		in    []string
		want  []Sight
		watch Watch
	}{
		{
			"chat",
			[]string{role, word, word, last, usage, "[DONE]"},
			[]Sight{{}, {Token: true}, {Token: true}, {}, {UsageOnly: true}, {Done: true}},
			Watch{Usage: Usage{Known: true, Prompt: 9, Cached: 4, Output: 3, CachedKnown: true}, Tokens: 2, Finished: true},
		},
		{"kinds of output", []string{tool, think, text, spaced}, []Sight{{Token: true}, {Token: true}, {Token: true}, {Token: true}}, Watch{Tokens: 4}},
		{"continuous usage", []string{cont, cont, usage}, []Sight{{Token: true}, {Token: true}, {UsageOnly: true}}, Watch{Usage: Usage{Known: true, Prompt: 9, Cached: 4, Output: 3, CachedKnown: true}, Tokens: 2}},
		{
			"no JSON",
			[]string{`{zzz`, `{zzz "choices":[{"text":"x"}]}`, text[:len(text)-1], last[:len(last)-2], text + text, text + " x", `{"choices":[{"text":"x`},
			make([]Sight, 7),
			Watch{},
		},
		{"padding", []string{"", "hello", "{}", "{\"choices\":5}"}, []Sight{{}, {}, {}, {}}, Watch{}},
		{
			"error",
			[]string{word, `{"error":{"message":"boom","type":"InternalServerError","code":500}}`},
			[]Sight{{Token: true}, {Err: &errs.Error{Kind: errs.Upstream, Client: "boom", Code: "500"}}},
			Watch{Tokens: 1},
		},
		{
			"client's error",
			[]string{`{"error":{"message":"too long","code":400,"param":"messages"}}`},
			[]Sight{{Err: &errs.Error{Kind: errs.BadRequest, Client: "too long", Param: "messages"}}},
			Watch{},
		},
		{
			"text for a code",
			[]string{`{"error":{"message":"no","code":"cannot go on after 'my secret plan'"}}`},
			[]Sight{{Err: &errs.Error{Kind: errs.Upstream, Client: "no"}}},
			Watch{},
		},
		{
			"flat error",
			[]string{`{"object":"error","message":"no","type":"BadRequestError"}`},
			[]Sight{{Err: &errs.Error{Kind: errs.BadRequest, Client: "no"}}},
			Watch{},
		},
		{
			"error as finish",
			[]string{`{"choices":[{"finish_reason":"abort"}]}`},
			[]Sight{{Err: &errs.Error{Kind: errs.Upstream, Client: "the engine ended the generation with an error", Code: "generation_failed"}, Chunk: true}},
			Watch{Finished: true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var w Watch
			for i, data := range tt.in {
				if diff := cmp.Diff(tt.want[i], w.See([]byte(data))); diff != "" {
					t.Errorf("%s: %s", data, diff)
				}
			}
			if diff := cmp.Diff(tt.watch, w); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWatchDoesNotAllocate(t *testing.T) {
	var w Watch
	first := []byte(`{"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}`)
	usage := []byte(`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}`)
	if n := testing.AllocsPerRun(100, func() { w.See(first); w.See(usage) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAnswer(t *testing.T) {
	u, ok, err := Answer([]byte(`{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`))
	if !ok || err != nil || u.Output != 2 {
		t.Errorf("%+v %v %v", u, ok, err)
	}
	if _, ok, _ = Answer([]byte(`{"choices":[`)); ok {
		t.Error("half a body is not an answer")
	}
	if _, ok, err = Answer([]byte(`{"object":"error","message":"x"}`)); !ok || err == nil {
		t.Error("an error under status 200 went unseen")
	}
	if _, _, err = Answer([]byte(`{"choices":[{"finish_reason":"error"}]}`)); err == nil {
		t.Error("finish_reason error went unseen")
	}
	if _, ok, _ = Answer([]byte(strings.Repeat("[", 1<<20))); ok {
		t.Error("deep nonsense accepted")
	}
}

func TestEnvelope(t *testing.T) {
	tests := []struct {
		name       string
		status     int
		in         string
		wantStatus int
		want       string
	}{
		{"nested", 400, `{"error":{"message":"m","type":"t","param":null,"code":"c"},"x":1}`, 400, `{"error":{"message":"m","type":"t","param":null,"code":"c"},"x":1}`},
		{"int code", 404, `{"error":{"message":"m","type":"NotFoundError","param":"model","code":404}}`, 404, `{"error":{"message":"m","type":"NotFoundError","param":"model","code":"404"}}`},
		{"flat", 400, `{"object":"error","message":"m","type":"BadRequestError","param":null,"code":40303}`, 400, `{"error":{"message":"m","type":"BadRequestError","param":null,"code":"40303"}}`},
		{"detail", 404, `{"detail":"Not Found"}`, 404, `{"error":{"message":"Not Found","type":"invalid_request_error","param":null,"code":"not_found"}}`},
		{"detail list", 422, `{"detail":[{"loc":["body","n"],"msg":"bad"},{"loc":["body"],"msg":"worse"}]}`, 400, `{"error":{"message":"n: bad; worse","type":"invalid_request_error","param":"n","code":"bad_request"}}`},
		{"string", 429, `{"error":"busy"}`, 429, `{"error":{"message":"busy","type":"rate_limit_error","param":null,"code":"saturated"}}`},
		{"plain client fault", 400, "  no \xff good ", 400, `{"error":{"message":"no  good","type":"invalid_request_error","param":null,"code":"bad_request"}}`},
		{"trace", 500, "Traceback: secret", 500, `{"error":{"message":"the engine answered with status 500","type":"upstream_error","param":null,"code":"upstream"}}`},
		{"html", 400, "<html>", 400, `{"error":{"message":"the engine answered with status 400","type":"invalid_request_error","param":null,"code":"bad_request"}}`},
		{"no error status", 204, "", 502, `{"error":{"message":"the engine answered with status 204","type":"upstream_error","param":null,"code":"upstream"}}`},
		{"redirect", 302, "", 502, `{"error":{"message":"the engine answered with status 302, a redirect, which is not followed","type":"upstream_error","param":null,"code":"upstream"}}`},
		{"deep", 400, strings.Repeat("[", 1<<20), 400, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, got := Envelope(tt.status, []byte(tt.in))
			if status != tt.wantStatus || tt.want != "" && string(got) != tt.want {
				t.Errorf("%d %s\nwant %d %s", status, got, tt.wantStatus, tt.want)
			}
			if !json.Valid(got) {
				t.Errorf("not JSON: %s", got)
			}
		})
	}
}

func FuzzAnswers(f *testing.F) {
	for _, s := range []string{`{"error":{"message":5}}`, `{"detail":[{"loc":[1]}]}`, `{"choices":[{"delta":{"a":{}}}],"usage":{"prompt_tokens":-1}}`, `{"object":"error"`} {
		f.Add([]byte(s), 400)
	}
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		var w Watch
		w.See(body)
		_, _, _ = Answer(body)
		got, out := Envelope(status, body)
		var e struct {
			Error struct{ Message, Type *string }
		}
		if json.Unmarshal(out, &e) != nil || e.Error.Message == nil || e.Error.Type == nil || got < 400 || got > 599 {
			t.Fatalf("%d %q became %d %s", status, body, got, out)
		}
	})
}

func BenchmarkSee(b *testing.B) {
	w := Watch{Tokens: 1}
	data := []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}`)
	for b.Loop() {
		w.See(data)
	}
}
