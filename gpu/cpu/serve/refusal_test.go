package serve

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
)

func TestRefusals(t *testing.T) {
	y := newToy(t, batchtest.Runner{}, func(s *Options, _ *batch.Options) { s.MaxModelLen, s.MaxBody = 64, 4096 })
	chat := func(rest string) string {
		return `{"model":"toy","messages":[{"role":"user","content":"x"}]` + rest + "}"
	}
	text := func(rest string) string { return `{"model":"toy","prompt":"x"` + rest + "}" }
	const c, p = "/v1/chat/completions", "/v1/completions"
	tests := []struct {
		path, body string
		status     int
		message    string
		param      string // as JSON
		code       string
	}{
		{c, `{"model":`, 400, "the body is not valid JSON at byte 9: it ends too early", `null`, "invalid_json"},
		{c, ``, 400, "the body is not valid JSON", `null`, "invalid_json"},
		{c, `{"model":"toy","model":"toy"}`, 400, "the body is not valid JSON at byte 15: a name appears twice", `null`, "invalid_json"},
		{c, `[]`, 400, "body must be an object, not an array", `"body"`, "invalid_value"},
		{c, "{\"model\":\"\xff\"}", 400, "the body is not valid JSON at byte 10: text is not UTF-8", `null`, "invalid_json"},
		{c, `{"messages":[{"role":"user","content":"x"}]}`, 400, "model must be given", `"model"`, "invalid_value"},
		{c, `{"model":"toy"}`, 400, "messages must not be empty", `"messages"`, "invalid_value"},
		{c, `{"model":"toy","messages":"x"}`, 400, "messages must be an array, not a string", `"messages"`, "invalid_value"},
		{c, `{"model":"toy","messages":[{"content":"x"}]}`, 400, "messages[0].role must be given", `"messages[0].role"`, "invalid_value"},
		{c, `{"model":"toy","messages":[{"role":"user","content":5}]}`, 400, "messages[0].content must be a string or an array of parts, not a number", `"messages[0].content"`, "invalid_value"},
		{c, `{"model":"toy","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}`, 400, "content other than text is not supported by this engine", `"messages[0].content[0]"`, "unsupported_parameter"},
		{c, `{"model":"nope","messages":[{"role":"user","content":"x"}]}`, 404, `the model \"nope\" does not exist`, `"model"`, "model_not_found"},
		{c, chat(`,"temperature":3`), 400, "temperature must be between 0 and 2", `"temperature"`, "invalid_value"},
		{c, chat(`,"temperature":"hot"`), 400, "temperature must be a number, not a string", `"temperature"`, "invalid_value"},
		{c, chat(`,"top_p":0`), 400, "top_p must be above 0 and at most 1", `"top_p"`, "invalid_value"},
		{c, chat(`,"n":0`), 400, "n must be between 1 and 128", `"n"`, "invalid_value"},
		{c, chat(`,"n":1.5`), 400, "n must be an integer", `"n"`, "invalid_value"},
		{c, chat(`,"max_tokens":0`), 400, "max_tokens must be between 1 and 2147483647", `"max_tokens"`, "invalid_value"},
		{c, chat(`,"max_tokens":5,"min_tokens":6`), 400, "min_tokens 6 is more than max_tokens 5", `"min_tokens"`, "invalid_value"},
		{c, chat(`,"top_logprobs":2`), 400, "top_logprobs needs logprobs to be true", `"top_logprobs"`, "invalid_value"},
		{c, chat(`,"logprobs":true,"top_logprobs":21`), 400, "top_logprobs must be between 0 and 20", `"top_logprobs"`, "invalid_value"},
		{c, chat(`,"stream_options":{"include_usage":true}`), 400, "stream_options needs stream to be true", `"stream_options"`, "invalid_value"},
		{c, chat(`,"stop":[` + strings.Repeat(`"a",`, 16) + `"a"]`), 400, "stop has more than 16 elements", `"stop"`, "invalid_value"},
		{c, chat(`,"stop":["a",""]`), 400, "a stop string must not be empty", `"stop"`, "invalid_value"},
		{c, chat(`,"logit_bias":{"x":1}`), 400, "logit_bias has a key that is no token id", `"logit_bias"`, "invalid_value"},
		{c, chat(`,"logit_bias":{"5":101}`), 400, "logit_bias must be between -100 and 100", `"logit_bias"`, "invalid_value"},
		{c, chat(`,"tools":[{"type":"function"}]`), 400, "tool use is not supported by this engine", `"tools"`, "unsupported_parameter"},
		{c, chat(`,"response_format":{"type":"json_object"}`), 400, "any response format but text is not supported by this engine", `"response_format"`, "unsupported_parameter"},
		{c, chat(`,"x":` + strings.Repeat("[", 1500) + strings.Repeat("]", 1500)), 200, "", "", ""},
		{c, chat(`,"max_tokens":63`), 400, "this model's maximum context length is 64 tokens, but 82 were asked for: 19 in the prompt and 63 for the answer", `"max_tokens"`, "context_length_exceeded"},
		{c, `{"model":"toy","messages":[{"role":"user","content":"` + strings.Repeat("ab", 40) + `"}]}`, 400, "this model's maximum context length is 64 tokens, but the prompt has 98 tokens and at least one is needed for the answer", `"messages"`, "context_length_exceeded"},
		{c, chat(`,"junk":"` + strings.Repeat("a", 5000) + `"`), 413, "the body is larger than 4096 bytes", `null`, "body_too_large"},
		{p, `{"model":"toy"}`, 400, "prompt must not be empty", `"prompt"`, "invalid_value"},
		{p, `{"model":"toy","prompt":""}`, 400, "the prompt has no tokens", `"prompt"`, "invalid_value"},
		{p, `{"model":"toy","prompt":[]}`, 400, "prompt must not be empty", `"prompt"`, "invalid_value"},
		{p, `{"model":"toy","prompt":[1,-2]}`, 400, "prompt must be between 0 and 2147483647", `"prompt"`, "invalid_value"},
		{p, `{"model":"toy","prompt":[1,999]}`, 400, "token 999 at 1 is not in the vocabulary of 258", `"prompt"`, "invalid_value"},
		{p, `{"model":"toy","prompt":[["a"]]}`, 400, "prompt must be an integer, not a string", `"prompt"`, "invalid_value"},
		{p, `{"model":"toy","prompt":["a","b","c"],"n":50}`, 400, "3 prompts with n=50 are more than 128 answers", `"n"`, "invalid_value"},
		{p, text(`,"echo":true`), 400, "echo is not supported by this engine", `"echo"`, "unsupported_parameter"},
		{p, text(`,"best_of":3`), 400, "best_of is not supported by this engine", `"best_of"`, "unsupported_parameter"},
		{p, text(`,"echo":false,"best_of":1,"suffix":null,"user":"u","tools":[],"unknown":{"a":[1e999]}`), 200, "", "", ""},
		{p, text(`,"logit_bias":{"9999":1}`), 400, "", `null`, "invalid_value"},
		{"/tokenize", `{"prompt":"a","messages":[]}`, 400, "", `"prompt"`, "invalid_value"},
		{"/detokenize", `{"tokens":[999]}`, 400, "token 999 at 0 is not in the vocabulary of 258", `"tokens"`, "invalid_value"},
	}
	for _, tt := range tests {
		status, body := y.body(t, tt.path, tt.body)
		if status != tt.status {
			t.Errorf("%.80s: %d, want %d: %s", tt.body, status, tt.status, body)
			continue
		}
		if status == 200 {
			continue
		}
		tail := `","type":"invalid_request_error","param":` + tt.param + `,"code":"` + tt.code + `"}}`
		want := `{"error":{"message":"` + tt.message + tail
		if body != want && (tt.message != "" || !strings.HasSuffix(body, tail)) {
			t.Errorf("%.80s\n got  %s\n want %s", tt.body, body, want)
		}
	}
}

func TestRefusalsBeforeTheBody(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	for _, tt := range []struct {
		method, path string
		header       [2]string
		status       int
		reason       string
	}{
		{http.MethodGet, "/v1/chat/completions", [2]string{"A", "b"}, 405, "method_not_allowed"},
		{http.MethodPost, "/v1/models", [2]string{"A", "b"}, 405, "method_not_allowed"},
		{http.MethodGet, "/v1/nope", [2]string{"A", "b"}, 404, "route_not_found"},
		{http.MethodPost, "/v1/completions", [2]string{"Content-Type", "text/plain"}, 400, "unsupported_media_type"},
		{http.MethodPost, "/v1/completions", [2]string{"Content-Encoding", "gzip"}, 400, "unsupported_encoding"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, y.URL+tt.path, strings.NewReader(`{"model":"toy","prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(tt.header[0], tt.header[1])
		resp, err := y.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tt.status || resp.Header.Get(engine.HeaderReason) != tt.reason || !strings.HasPrefix(string(b), `{"error":{"message":"`) {
			t.Errorf("%s %s: %d %v %s", tt.method, tt.path, resp.StatusCode, resp.Header, b)
		}
	}
}
