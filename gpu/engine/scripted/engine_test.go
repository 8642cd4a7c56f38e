package scripted

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a connection pool of one test.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// post sends body and returns the response, whose body the test closes.
func post(ctx context.Context, t *testing.T, c *http.Client, url, body string, header ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.Do(req)
}

// answer is what tests read of a response.
type answer struct {
	ID      string `json:"id"`
	Choices []struct {
		Index   int `json:"index"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
		StopReason   *string `json:"stop_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Code    int    `json:"code"`
	} `json:"error"`
	KV map[string]any `json:"kv_transfer_params"`
}

// ask posts body and decodes the whole response.
func ask(t *testing.T, e *Engine, path, body string, header ...string) (int, http.Header, answer) {
	t.Helper()
	resp, err := post(t.Context(), t, client(t), e.URL()+path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("%s: %v in %s", path, err, b)
	}
	return resp.StatusCode, resp.Header, a
}

// events reads a stream to its end, as a client library does.
func events(t *testing.T, r io.Reader) (data []string, err error) {
	t.Helper()
	s := bufio.NewScanner(r)
	for s.Scan() {
		if d, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			data = append(data, d)
		}
	}
	return data, s.Err()
}

const chatBody = `{"model":"scripted","messages":[{"role":"user","content":"Why is the sky blue, and the sea too?"}],"max_tokens":8}`

func streamed(body string) string {
	return strings.TrimSuffix(body, "}") + `,"stream":true,"stream_options":{"include_usage":true}}`
}

// A stream carries the same text as the whole response, ends with usage and
// [DONE], and is recorded as served.
func TestAnswers(t *testing.T) {
	e := NewTest(t)
	status, _, whole := ask(t, e, "/v1/chat/completions", chatBody)
	if status != 200 || whole.Usage.Completion != 8 || *whole.Choices[0].FinishReason != "length" {
		t.Fatalf("status %d, %+v", status, whole)
	}
	resp, err := post(t.Context(), t, client(t), e.URL()+"/v1/chat/completions", streamed(chatBody))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := events(t, resp.Body)
	if err != nil || len(data) != 1+8+1+1 || data[len(data)-1] != "[DONE]" {
		t.Fatalf("%d events, %v: %q", len(data), err, data)
	}
	var text strings.Builder
	var last answer
	for _, d := range data[:len(data)-1] {
		last = answer{}
		if err := json.Unmarshal([]byte(d), &last); err != nil {
			t.Fatal(err)
		}
		for _, c := range last.Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	if text.String() != whole.Choices[0].Message.Content {
		t.Errorf("streamed %q, whole %q", text.String(), whole.Choices[0].Message.Content)
	}
	if len(last.Choices) != 0 || last.Usage.Total != whole.Usage.Total {
		t.Errorf("last event %+v", last)
	}
	if n := last.Usage.Details.Cached; n != 16 || whole.Usage.Details.Cached != 0 {
		t.Errorf("second run found %d tokens, first %d", n, whole.Usage.Details.Cached)
	}
	if err := e.Await(t.Context(), func(c Counters, _ []Record) bool { return c.Served == 2 && c.InFlight == 0 }); err != nil {
		t.Fatalf("%+v", e.Counters())
	}
}

// A client that leaves is noticed at every stage, with the time.
func TestAbort(t *testing.T) {
	for _, tt := range []struct{ name, script, stage string }{
		{"delay", "rules: [{do: {delay: 1h}}]", "delay"},
		{"before headers", "rules: [{do: {hang: {when: before_headers}}}]", "hang"},
		{"after headers", "rules: [{do: {hang: {when: after_headers}}}]", "hang"},
		{"before the first token", "rules: [{do: {generate: {first_token: 1h}}}]", "prefill"},
		{"between tokens", "rules: [{do: {generate: {token: 1h}}}]", "decode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := NewTest(t, YAML(tt.script))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				resp, err := post(ctx, t, client(t), e.URL()+"/v1/chat/completions", streamed(chatBody))
				if err == nil {
					_, _ = events(t, resp.Body)
					_ = resp.Body.Close()
				}
			}()
			wait(t, e, func(c Counters, r []Record) bool { return c.InFlight == 1 })
			if tt.stage == "prefill" || tt.stage == "decode" {
				for e.Load().Running == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			if tt.stage == "decode" {
				wait(t, e, func(_ Counters, r []Record) bool { return r[0].Sent > 0 })
			}
			cancel()
			<-done
			wait(t, e, func(c Counters, _ []Record) bool { return c.Aborted == 1 && c.InFlight == 0 })
			r := e.Records(0)[0]
			if r.Outcome != Aborted || r.Stage != tt.stage || r.Ended.IsZero() {
				t.Errorf("record %s at %q, want aborted at %q", r.Outcome, r.Stage, tt.stage)
			}
			for e.Load().HeldBlocks > 0 || e.Load().Running > 0 {
				time.Sleep(time.Millisecond)
			}
		})
	}
}

func wait(t *testing.T, e *Engine, ok func(Counters, []Record) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := e.Await(ctx, ok); err != nil {
		t.Fatalf("%v: %+v %+v", err, e.Counters(), e.Records(0))
	}
}

// No body makes the engine panic or answer with anything but its statuses.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		chatBody, streamed(chatBody), `{"prompt":["a",[1,2]],"n":2,"stop":["x"]}`,
		`{"prompt":"a","kv_transfer_params":{"do_remote_decode":true}}`, `{"messages":[{"role":"user","content":[{"text":"a"},7]}]}`,
	} {
		f.Add(true, []byte(body))
		f.Add(false, []byte(body))
	}
	e := NewTest(f, func(o *Options) { o.MaxContext, o.KVBlocks, o.Records = 64, 8, 4 })
	inc := e.current()
	f.Fuzz(func(t *testing.T, chat bool, body []byte) {
		if strings.Contains(string(body), "do_remote_prefill") {
			return // would call out
		}
		path := "/v1/completions"
		if chat {
			path = "/v1/chat/completions"
		}
		w := httptest.NewRecorder()
		inc.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body)))
		switch w.Code {
		case 200, 400, 404:
		default:
			t.Fatalf("status %d for %q", w.Code, body)
		}
	})
}

// BenchmarkStream is what the engine itself costs a benchmark of others: one
// streamed answer of 64 tokens.
func BenchmarkStream(b *testing.B) {
	e := NewTest(b)
	c := &http.Client{}
	defer c.CloseIdleConnections()
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, e.URL()+"/v1/completions",
			strings.NewReader(`{"prompt":"hello","max_tokens":64,"stream":true}`))
		if err != nil {
			b.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}
