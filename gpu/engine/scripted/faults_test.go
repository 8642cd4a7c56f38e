package scripted

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
)

// exchangeRaw sends one request on a connection of its own and tells how that
// ended.
func exchangeRaw(t *testing.T, e *Engine, method, path, body string) error {
	t.Helper()
	conn := dial(t, e)
	sendRaw(t, conn, method, path, body)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.Copy(io.Discard, conn)
	return err
}

func dial(t *testing.T, e *Engine) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func sendRaw(t *testing.T, conn net.Conn, method, path, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://engine"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
}

// Responses that a script gives leave byte for byte.
func TestFixedResponses(t *testing.T) {
	tests := []struct {
		name, script string
		want         string // of the connection when it starts with HTTP, else of the body
		status       int
	}{
		{"raw", `{raw: {text: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}}`, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0},
		{"raw garbage", `{raw: {hex: "48545450 ff00"}}`, "HTTP\xff\x00", 0},
		{"status and headers", `{respond: {status: 418, headers: {X-Tea: "yes"}, text: "short and stout"}}`, "short and stout", 418},
		{"parts", `{respond: {parts: [{text: "da"}, {text: "ta: 1\n\n", delay: 1ms}, {text: "x", repeat: 3}]}}`, "data: 1\n\nxxx", 200},
		{"base64", `{respond: {base64: "aGk="}}`, "hi", 200},
		{"split keeps the bytes", `{respond: {text: "0123456789"}, split: [1, 3], gap: 1ms}`, "0123456789", 200},
		{"busy", `{error: {kind: busy, retry_after: "7"}}`, `{"error":{"message":"The engine is busy.","type":"ServiceUnavailableError","param":null,"code":503}}`, 503},
		{"flat error", `{error: {kind: rate_limit, flat: true}}`, `{"object":"error","message":"Too many requests.","type":"RateLimitError","param":null,"code":429}`, 429},
		{"context error", `{error: {kind: context}}`, `{"error":{"message":"This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens.","type":"BadRequestError","param":"input_tokens","code":400}}`, 400},
		{"own error", `{error: {status: 507, type: T, message: m}}`, `{"error":{"message":"m","type":"T","param":null,"code":507}}`, 507},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := NewTest(t, YAML("rules: [{do: "+tt.script+"}]"))
			conn := dial(t, e)
			sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"x"}`)
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if tt.status == 0 {
				raw, err := io.ReadAll(conn)
				if string(raw) != tt.want || err != nil {
					t.Errorf("%q, %v", raw, err)
				}
				return
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if string(body) != tt.want || resp.StatusCode != tt.status || err != nil {
				t.Errorf("%d %s, %v", resp.StatusCode, body, err)
			}
			if strings.Contains(tt.script, "retry_after") && resp.Header.Get("Retry-After") != "7" {
				t.Error("no Retry-After")
			}
		})
	}
}

// A response can break at every point and in every way.
func TestCuts(t *testing.T) {
	isReset := func(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
	tests := []struct {
		name, script string
		body         string // what arrives of the body
		reset        bool   // RST, else FIN
		complete     bool   // the HTTP response looks complete
	}{
		{"reset in the body", `{respond: {text: "0123456789"}, cut: {at: 4, how: reset}}`, "0123", true, false},
		{"reset after the body", `{respond: {text: "0123"}, cut: {how: reset}}`, "0123", true, false},
		{"close in the body", `{respond: {text: "0123456789"}, cut: {at: 4, how: close}}`, "0123", false, false},
		{"end in the body", `{respond: {text: "0123456789"}, cut: {at: 4, how: end}}`, "0123", false, true},
		{"hang, then close", `{respond: {text: "0123456789"}, cut: {at: 4, how: hang, for: 5ms}}`, "0123", false, false},
		{"before the first byte", `{respond: {text: "0123"}, cut: {at: 0, how: close}}`, "", false, false},
		{"raw", `{raw: {text: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"}, cut: {at: 40, how: reset}}`, "ok", true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := NewTest(t, YAML("rules: [{do: "+tt.script+"}]"))
			conn := dial(t, e)
			sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"x"}`)
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			// A reset may overtake what was sent before it.
			if string(body) != tt.body && (!tt.reset || !strings.HasPrefix(tt.body, string(body))) {
				t.Errorf("body %q, want %q", body, tt.body)
			}
			if complete := err == nil; complete != tt.complete {
				t.Errorf("read ended with %v, complete should be %v", err, tt.complete)
			}
			if isReset(err) != tt.reset {
				t.Errorf("ended with %v, reset should be %v", err, tt.reset)
			}
			wait(t, e, func(c Counters, _ []Record) bool { return c.Cut == 1 })
		})
	}
}

// stream is a complete generated stream under a script.
func stream(t *testing.T, action, body string) ([]string, error) {
	t.Helper()
	e := NewTest(t, YAML("rules: [{do: "+action+"}]"))
	resp, err := post(t.Context(), t, client(t), e.URL()+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return events(t, resp.Body)
}

func TestStreamFaults(t *testing.T) {
	four := streamed(`{"model":"scripted","messages":[{"role":"user","content":"hi"}],"max_tokens":4}`)
	noUsage := strings.Replace(four, `,"stream_options":{"include_usage":true}`, "", 1)
	has := func(sub string) func([]string) bool {
		return func(d []string) bool { return strings.Contains(strings.Join(d, "\n"), sub) }
	}
	last := func(d []string) string { return d[len(d)-1] }
	usages := func(d []string) int { return strings.Count(strings.Join(d, "\n"), `"usage"`) }
	tests := []struct {
		name, action, body string
		ok                 func([]string) bool
	}{
		{"no [DONE]", `{generate: {done: false}}`, four, func(d []string) bool { return strings.Contains(last(d), `"usage"`) }},
		{"no usage", `{generate: {usage: {mode: omit}}}`, four, func(d []string) bool { return usages(d) == 0 && last(d) == "[DONE]" }},
		{"usage unasked", `{generate: {usage: {mode: always}}}`, noUsage, func(d []string) bool { return usages(d) == 1 }},
		{"usage beside choices", `{generate: {usage: {mode: in_choices}}}`, four, func(d []string) bool {
			return usages(d) == 1 && strings.Contains(d[len(d)-2], `"finish_reason":"length"`)
		}},
		{"usage everywhere", `{generate: {usage: {mode: continuous}}}`, four, func(d []string) bool { return usages(d) == 6 }},
		{"wrong usage", `{generate: {usage: {prompt: 7, completion: 9, cached: 99}}}`, four, has(`"usage":{"prompt_tokens":7,"total_tokens":16,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":99}}`)},
		{"error event", `{generate: {error: {after: 2}}}`, four, func(d []string) bool {
			return len(d) == 4 && strings.HasPrefix(last(d), `{"error":`)
		}},
		{"error event, then [DONE]", `{generate: {error: {after: 2, body: '{"error":"x"}', done: true}}}`, four, func(d []string) bool {
			return d[3] == `{"error":"x"}` && last(d) == "[DONE]"
		}},
		{"error event at the end", `{generate: {error: {after: 4}}}`, four, func(d []string) bool { return len(d) == 6 && strings.Contains(last(d), `"error"`) }},
		{"finish reason", `{generate: {finish: abort}}`, four, has(`"finish_reason":"abort"`)},
		{"no finish reason", `{generate: {no_finish: true}}`, four, func(d []string) bool { return !has(`"finish_reason":"`)(d) }},
		{"text", `{generate: {text: "héllo wörld"}}`, `{"messages":[{"role":"user","content":"hi"}],"stream":true}`, has(`"finish_reason":"stop"`)},
		{"tokens", `{generate: {tokens: 9}}`, four, has(`"completion_tokens":9`)},
		{"comments and CRLF", `{generate: {comment: "ping", crlf: true}}`, four, func(d []string) bool { return strings.TrimSpace(last(d)) == "[DONE]" }},
		{"stall, then on", `{generate: {stall: {after: 2, for: 5ms}}}`, four, func(d []string) bool { return last(d) == "[DONE]" }},
		{"slow", `{generate: {first_token: 2ms, token: 1ms}}`, four, func(d []string) bool { return last(d) == "[DONE]" }},
		{"every byte alone", `{split: [1]}`, four, func(d []string) bool { return last(d) == "[DONE]" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := stream(t, tt.action, tt.body)
			if err != nil || !tt.ok(d) {
				t.Errorf("%v: %s", err, strings.Join(d, "\n"))
			}
		})
	}
}

// A script's text arrives whole, whatever runes it holds.
func TestGivenText(t *testing.T) {
	const text = "日本語 — ünïcode 🙂🙂 end"
	e := NewTest(t, YAML(`rules: [{do: {generate: {text: "`+text+`"}}}]`))
	_, _, a := ask(t, e, "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}]}`)
	if got := a.Choices[0].Message.Content; got != text {
		t.Errorf("got %q", got)
	}
}

// Idle connections are closed when the script says, in order or by a reset, and
// only idle ones: a request that takes longer is answered.
func TestIdleClose(t *testing.T) {
	t.Parallel()
	for reset, want := range map[bool]error{false: io.EOF, true: syscall.ECONNRESET} {
		t.Run(fmt.Sprintf("reset=%v", reset), func(t *testing.T) {
			t.Parallel()
			e := NewTest(t, YAML(fmt.Sprintf("server: {idle_close: 500ms, idle_reset: %v}\nrules: [{match: {nth: [2]}, do: {delay: 700ms}}]", reset)))
			conn := dial(t, e)
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			r := bufio.NewReader(conn)
			for range 2 {
				sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"hello","max_tokens":1}`)
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if _, err := r.ReadByte(); !errors.Is(err, want) {
				t.Errorf("idle connection ended with %v", err)
			}
			if c := e.Counters(); c.Conns != 1 || c.Received != 2 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// An engine that dies takes every connection with it and comes back empty on
// the same port.
func TestDieAndRestart(t *testing.T) {
	e := NewTest(t, YAML(`rules:
- {match: {body: poison}, do: {die: {restart_after: 20ms}}}
- {match: {body: slow}, do: {generate: {token: 1h}}}`))
	addr := e.Addr()
	slow := make(chan error, 1)
	conn := dial(t, e)
	sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"slow slow slow slow slow slow slow slow","stream":true,"max_tokens":5}`)
	for e.Load().OutputTokens == 0 {
		time.Sleep(time.Millisecond)
	}
	go func() {
		_, err := io.Copy(io.Discard, conn)
		slow <- err
	}()
	if err := exchangeRaw(t, e, http.MethodPost, "/v1/completions", `{"prompt":"poison"}`); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the deadly request ended with %v", err)
	}
	if err := <-slow; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a stream ended with %v", err)
	}
	for !e.Running() {
		time.Sleep(time.Millisecond)
	}
	if e.Addr() != addr {
		t.Errorf("came back on %s, not %s", e.Addr(), addr)
	}
	_, _, a := ask(t, e, "/v1/completions", `{"prompt":"slo slow slow slow slow slow slow slow!","max_tokens":1}`)
	if a.Usage.Details.Cached != 0 {
		t.Error("the cache survived")
	}
	wait(t, e, func(c Counters, _ []Record) bool { return c.InFlight == 0 })
	r := e.Records(0)
	if r[0].Outcome != Stopped || r[1].Outcome != Stopped || r[2].Incarnation != 2 {
		t.Errorf("%+v", r)
	}
}

func TestDrain(t *testing.T) {
	e := NewTest(t, YAML(`rules: [{match: {body: slow}, do: {generate: {first_token: 50ms}}}]`))
	type result struct {
		status int
		err    error
	}
	done := make(chan result, 1)
	c := client(t)
	go func() {
		resp, err := post(t.Context(), t, c, e.URL()+"/v1/completions", `{"prompt":"slow"}`)
		if err != nil {
			done <- result{0, err}
			return
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		done <- result{resp.StatusCode, err}
	}()
	for e.Load().Running == 0 {
		time.Sleep(time.Millisecond)
	}
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(t.Context()) }()
	for !e.draining.Load() {
		time.Sleep(time.Millisecond)
	}
	status, header, a := ask(t, e, "/v1/completions", `{"prompt":"new"}`)
	if status != 503 || header.Get("X-Yardmaster-Reason") != "draining" || a.Error.Code != 503 {
		t.Errorf("while draining: %d %v", status, header)
	}
	if raw, _ := rawGet(t, e, "/health"); !strings.HasPrefix(raw, "HTTP/1.1 503") {
		t.Errorf("health while draining: %.40q", raw)
	}
	if r := <-done; r.status != 200 || r.err != nil {
		t.Errorf("the old request: %+v", r)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := ask(t, e, "/v1/completions", `{"prompt":"new"}`); status != 200 {
		t.Errorf("after restart: %d", status)
	}
}

// rawGet gets path on a connection that closes after it.
func rawGet(t *testing.T, e *Engine, path string) (string, error) {
	t.Helper()
	conn := dial(t, e)
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(conn)
	return string(b), err
}

func TestHealthPhases(t *testing.T) {
	c := clock.NewVirtual(time.Unix(1_800_000_000, 0))
	e := NewTest(t, YAML(`health: [{for: 60s, status: 503}, {for: 1s}, {status: 500}]`), func(o *Options) { o.Clock = c })
	for _, want := range []string{"503", "200", "500"} {
		raw, err := rawGet(t, e, "/health")
		if got := strings.Fields(raw + " - -")[1]; got != want {
			t.Errorf("%s, want %s (%v)", got, want, err)
		}
		c.Advance(60 * time.Second)
	}
}

func TestHealthHangs(t *testing.T) {
	e := NewTest(t, YAML(`health: [{hang: true}]`))
	conn := dial(t, e)
	sendRaw(t, conn, http.MethodGet, "/health", "")
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("answered: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = conn.Close()
	if err := e.Await(ctx, func(c Counters, _ []Record) bool { return c.Aborted == 1 }); err != nil {
		t.Errorf("%+v", e.Counters())
	}
}
