package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/server"
	"github.com/yardmaster/yardmaster/server/openai"
	"github.com/yardmaster/yardmaster/server/sse"
)

// soon is how long a test waits for what must happen. Nothing is slower on
// purpose; a busy machine may be.
const soon = 10 * time.Second

// envelope is the error every failure answers with.
type envelope struct {
	Error struct {
		Message, Type, Code string
		Param               *string
	}
}

func parseError(t *testing.T, body string) envelope {
	t.Helper()
	var e envelope
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Fatalf("not an error envelope: %q", body)
	}
	return e
}

func TestStreamThroughOneWorker(t *testing.T) {
	r := newRig(t, rigConfig{})
	r.worker("w", fleet.RoleBoth, serve)
	status, h, body, err := r.chat(streamBody, "x-yardmaster-explain", "1", "x-request-id", "my-id.1")
	if err != nil || status != 200 || body != shownStream {
		t.Errorf("%d %v\n%s", status, err, body)
	}
	for name, want := range map[string]string{
		"x-yardmaster-path": "aggregated; reason=short_prompt; prompt=9; min-prompt=256; policy=sticky; worker=w",
		"content-type":      "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no", "x-request-id": "my-id.1",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	status, h, body, err = r.chat(plainBody, "x-request-id", "bad id")
	if err != nil || status != 200 || body != wholeAnswer || h.Get("x-yardmaster-path") != "" || len(h.Get("x-request-id")) != 32 {
		t.Errorf("%d %v %v\n%s", status, err, h, body)
	}
	r.idle()
}

// Each event reaches the client before the engine makes the next one, and the
// headers before the first.
func TestEveryEventIsFlushed(t *testing.T) {
	r := newRig(t, rigConfig{})
	received := make(chan bool)
	parts := []string{chunkRole, chunkHi, ": note\n\n", chunkYou, chunkStop, chunkDone}
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		events(w)
		for _, p := range parts {
			select {
			case <-received:
			case <-req.Context().Done():
				return
			}
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	resp, err := r.post(ctx, streamBody, "Accept-Encoding", "gzip")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Header.Get("Content-Encoding") != "" {
		t.Error("compressed")
	}
	in := bufio.NewReader(resp.Body)
	for _, want := range parts {
		received <- true
		got := make([]byte, len(want))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("rest %q, %v", rest, err)
	}
	r.idle()
}

func TestBodyPassesUntouched(t *testing.T) {
	r := newRig(t, rigConfig{dispatch: dispatch.Config{}})
	type seen struct {
		body   string
		header http.Header
	}
	got := make(chan seen, 1)
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got <- seen{string(b), req.Header}
		w.Header().Set("X-Engine-Secret", "1")
		_, _ = io.WriteString(w, wholeAnswer)
	})
	body := "{ \"model\":\"m\",\n\"z\":1.50,\"big\":9223372036854775807,\"x\":{\"bootstrap_room\":1e-7,\"u\":\"\\u00e9\"},\"a\":null,\"messages\":[]}"
	_, h, _, err := r.chat(body, "Authorization", "Bearer secret", "X-Yardmaster-Leg", "decode", "X-Yardmaster-Epoch", "99",
		"X-Yardmaster-Transfer", "1", "X-Yardmaster-Peer", "a;1;evil:1", "X-Data-Parallel-Rank", "3", "Cookie", "c=1")
	if err != nil {
		t.Fatal(err)
	}
	s := <-got
	if s.body != body {
		t.Errorf("engine got %s", s.body)
	}
	for _, name := range []string{"Authorization", "X-Yardmaster-Epoch", "X-Yardmaster-Leg", "X-Yardmaster-Transfer", "X-Yardmaster-Peer", "X-Data-Parallel-Rank", "Cookie"} {
		if s.header.Get(name) != "" {
			t.Errorf("%s was forwarded", name)
		}
	}
	if h.Get("X-Engine-Secret") != "" {
		t.Errorf("engine %v, client %v", s.header, h)
	}
	_, _, _, _ = r.chat(`{"model":"m","kv_transfer_params":{"remote_host":"10.0.0.1"},"bootstrap_room":7}`)
	if s := <-got; s.body != `{"model":"m"}` {
		t.Errorf("engine got %s", s.body)
	}
}

func TestDisaggregatedLegs(t *testing.T) {
	r := newRig(t, rigConfig{})
	prefill, decode := make(chan http.Header, 1), make(chan http.Header, 1)
	r.worker("p", fleet.RolePrefill, func(w http.ResponseWriter, req *http.Request) {
		prefill <- req.Header
		serve(w, req)
	})
	r.worker("d", fleet.RoleDecode, func(w http.ResponseWriter, req *http.Request) {
		h := <-prefill // the end of this leg would cancel the other
		prefill <- h
		decode <- req.Header
		w.Header().Set("X-Yardmaster-Kv", "moved")
		serve(w, req)
	})
	long := `{"model":"m","stream":true,"prompt":"` + strings.Repeat("word ", 1000) + `"}`
	_, h, body, err := r.chat(long, "x-yardmaster-explain", "1")
	if err != nil || body != shownStream {
		t.Errorf("%v %s", err, body)
	}
	if got := h.Get("x-yardmaster-path"); got != "disaggregated; reason=long_prompt; policy=sticky; prefill=p; decode=d; kv=moved" {
		t.Errorf("path %q", got)
	}
	a, b := <-prefill, <-decode
	if a.Get("X-Yardmaster-Leg") != "prefill" || b.Get("X-Yardmaster-Leg") != "decode" || a.Get("X-Yardmaster-Peer") != "d;2;127.0.0.1:1" || b.Get("X-Yardmaster-Peer") != "p;1;127.0.0.1:1" ||
		a.Get("X-Yardmaster-Transfer") != b.Get("X-Yardmaster-Transfer") || a.Get("X-Yardmaster-Transfer") == "" ||
		a.Get("X-Request-Id") != b.Get("X-Request-Id") {
		t.Errorf("prefill %v\ndecode %v", a, b)
	}
	r.idle()
}

// The engine sees a client leave, whatever it was doing.
func TestClientLeaves(t *testing.T) {
	for name, tt := range map[string]struct {
		body  string
		parts []string // sent before the engine falls silent; nil sends no status
	}{
		"whole answer":      {plainBody, nil},
		"before the status": {streamBody, nil},
		"before a token":    {streamBody, []string{}},
		"between tokens":    {streamBody, []string{chunkRole, chunkHi}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigConfig{})
			began, aborted := make(chan bool, 1), make(chan bool, 1)
			r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				if tt.parts != nil {
					events(w, tt.parts...)
				}
				began <- true
				<-req.Context().Done()
				aborted <- true
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				select {
				case <-began:
				case <-time.After(soon):
				}
				cancel()
			}()
			resp, err := r.post(ctx, tt.body)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			select {
			case <-aborted:
			case <-time.After(soon):
				t.Fatal("the engine was not told")
			}
			r.idle()
			if r.count(measure.Requests, "canceled") != 1 || r.count(measure.Ejections) != 0 {
				t.Errorf("canceled %v, ejections %v", r.count(measure.Requests, "canceled"), r.count(measure.Ejections))
			}
		})
	}
}

// A stream that fails ends with an error event and a broken connection.
func TestFailedStreamNeverEndsCleanly(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(w http.ResponseWriter)
		code string
	}{
		"engine dies":     {cut, "engine_broken"},
		"engine gives up": {func(http.ResponseWriter) {}, "stream_truncated"},
		"engine says so": {func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\ndata: [DONE]\n\n")
		}, "500"},
		"half an event": {func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, chunkYou[:30])
			_ = http.NewResponseController(w).Flush()
			cut(w)
		}, "engine_broken"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigConfig{})
			r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, _ *http.Request) {
				events(w, chunkRole, chunkHi)
				tt.end(w)
			})
			status, _, body, err := r.chat(streamBody)
			if status != 200 || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d %v", status, err)
			}
			rest, ok := strings.CutPrefix(body, chunkRole+chunkHi+"data: ")
			if !ok || !strings.HasSuffix(rest, "\n\n") || strings.Contains(rest, "[DONE]") {
				t.Fatalf("client got %q", body)
			}
			if e := parseError(t, rest); e.Error.Code != tt.code {
				t.Errorf("code %q", e.Error.Code)
			}
			r.idle()
			if !strings.Contains(r.logs.String(), "level=WARN msg=request") {
				t.Errorf("a lost stream is no warning: %s", r.logs.String())
			}
		})
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t, rigConfig{server: server.Config{OpenAI: openai.Config{MaxBody: 1000}}})
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		if bytes.Contains(b, []byte("busy")) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"object":"error","message":"queue full","code":429}`)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error":{"message":"prompt is 9 tokens, limit 8","type":"BadRequestError","param":"messages","code":400}}`)
	})
	sized := func(n int) string {
		const head, tail = `{"model":"m","prompt":"`, `"}`
		return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
	}
	tests := []struct {
		name, method, path, body string
		header                   [2]string
		status                   int
		code                     string
		retry                    string
		should                   string
	}{
		{"engine's 400", "POST", "/v1/chat/completions", plainBody, [2]string{}, 400, "400", "", ""},
		{"engine's 429", "POST", "/v1/chat/completions", `{"model":"m","prompt":"busy"}`, [2]string{}, 429, "429", "7", "true"},
		{"unknown model", "POST", "/v1/completions", `{"model":"x"}`, [2]string{}, 404, "model_not_found", "", ""},
		{"no JSON", "POST", "/v1/completions", `{`, [2]string{}, 400, "bad_request", "", ""},
		{"no body", "POST", "/v1/completions", ``, [2]string{}, 400, "bad_request", "", ""},
		{"compressed", "POST", "/v1/completions", plainBody, [2]string{"Content-Encoding", "gzip"}, 400, "unsupported_encoding", "", ""},
		{"at the limit", "POST", "/v1/completions", sized(1000), [2]string{}, 400, "400", "", ""},
		{"over the limit", "POST", "/v1/completions", sized(1001), [2]string{}, 413, "body_too_large", "", ""},
		{"wrong method", "GET", "/v1/completions", "", [2]string{}, 405, "method_not_allowed", "", ""},
		{"wrong route", "POST", "/v1/nothing", plainBody, [2]string{}, 404, "route_not_found", "", ""},
		{"wrong model route", "GET", "/v1/models/x", "", [2]string{}, 404, "model_not_found", "", ""},
	}
	for _, tt := range tests {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, " chunked=", chunked), func(t *testing.T) {
				var body io.Reader = strings.NewReader(tt.body)
				if chunked {
					body = struct{ io.Reader }{body}
				}
				req, err := http.NewRequestWithContext(t.Context(), tt.method, r.url+tt.path, body)
				if err != nil {
					t.Fatal(err)
				}
				if tt.header[0] != "" {
					req.Header.Set(tt.header[0], tt.header[1])
				}
				resp, err := r.client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				e := parseError(t, string(b))
				if resp.StatusCode != tt.status || e.Error.Code != tt.code {
					t.Errorf("%d %s", resp.StatusCode, b)
				}
				if h := resp.Header; h.Get("Retry-After") != tt.retry || h.Get("X-Should-Retry") != tt.should || h.Get("X-Request-Id") == "" || h.Get("X-Yardmaster-Reason") == "" {
					t.Errorf("headers %v", h)
				}
				if tt.status == 405 && resp.Header.Get("Allow") != "POST" {
					t.Errorf("allow %q", resp.Header.Get("Allow"))
				}
				if tt.status == 413 && !strings.Contains(e.Error.Message, "1000 bytes") {
					t.Errorf("the limit is not named: %s", b)
				}
			})
		}
	}
	if r.count(measure.Ejections) != 0 {
		t.Error("a worker was ejected for a client's fault")
	}
	r.idle()
}

func TestNoWorker(t *testing.T) {
	r := newRig(t, rigConfig{})
	check := func(want string) {
		t.Helper()
		status, h, body, err := r.chat(plainBody)
		if err != nil || status != 503 || parseError(t, body).Error.Code != want || h.Get("Retry-After") != "1" || h.Get("X-Should-Retry") != "true" {
			t.Errorf("%d %v %s %v", status, h, body, err)
		}
		if strings.Contains(body, "127.0.0.1") {
			t.Errorf("an address leaked: %s", body)
		}
	}
	check("no_capacity")
	s := r.worker("w", fleet.RoleBoth, serve)
	s.CloseClientConnections()
	s.Close()
	check("no_capacity")
	r.workers[0].Draining = true
	r.index++
	r.publish()
	check("no_capacity")
	r.idle()
}

// Fifty faulty requests are the clients' own affair: the good one is served.
func TestClientFaultsNeverEject(t *testing.T) {
	r := newRig(t, rigConfig{})
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		if bytes.Contains(b, []byte("good")) {
			_, _ = io.WriteString(w, wholeAnswer)
			return
		}
		w.WriteHeader([]int{400, 404, 422, 429, 503}[len(b)%5])
	})
	for i := range 50 {
		if status, _, _, _ := r.chat(`{"model":"m","prompt":"` + strings.Repeat("x", i) + `"}`); status < 400 {
			t.Fatalf("status %d", status)
		}
	}
	if status, _, _, _ := r.chat(`{"model":"m","prompt":"good"}`); status != 200 || r.count(measure.Ejections) != 0 {
		t.Errorf("%d, %v ejections", status, r.count(measure.Ejections))
	}
}

func TestDeadWorkerIsReplacedAndReturns(t *testing.T) {
	r := newRig(t, rigConfig{dispatch: dispatch.Config{Seed: 3}})
	dead := r.worker("dead", fleet.RoleBoth, serve)
	live := r.worker("live", fleet.RoleBoth, serve)
	dead.CloseClientConnections()
	dead.Close()
	for range 20 {
		if status, h, _, _ := r.chat(plainBody, "x-yardmaster-explain", "1"); status != 200 || !strings.Contains(h.Get("x-yardmaster-path"), "worker=live") {
			t.Fatalf("%d %v", status, h)
		}
	}
	if r.count(measure.Ejections, "dead") < 1 {
		t.Error("not ejected")
	}
	r.register("dead", fleet.RoleBoth, live.URL) // back, on another port
	for i := 0; ; i++ {
		_, h, _, _ := r.chat(plainBody, "x-yardmaster-explain", "1")
		if strings.Contains(h.Get("x-yardmaster-path"), "worker=dead") {
			break
		}
		if i > 100 {
			t.Fatal("the new incarnation gets nothing")
		}
	}
	r.idle()
}

func TestHeartbeat(t *testing.T) {
	r := newRig(t, rigConfig{server: server.Config{OpenAI: openai.Config{Stream: sse.Config{Heartbeat: 5 * time.Millisecond}}}})
	beats := make(chan bool)
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		events(w, chunkRole, chunkHi[:20]) // half an event: a heartbeat must not land in it
		select {
		case <-beats:
		case <-req.Context().Done():
		}
		_, _ = io.WriteString(w, chunkHi[20:]+chunkStop+chunkDone)
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	resp, err := r.post(ctx, streamBody)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	var got strings.Builder
	comments := 0
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		if strings.HasPrefix(line, ":") {
			blank, _ := in.ReadString('\n')
			if blank != "\n" {
				t.Errorf("a comment without an end: %q", blank)
			}
			if comments++; comments == 2 {
				close(beats)
			}
			continue
		}
		got.WriteString(line)
	}
	if got.String() != chunkRole+chunkHi+chunkStop+chunkDone || comments < 2 {
		t.Errorf("%d comments in %q", comments, got.String())
	}
	r.idle()
}

// A client that does not read holds the engine back, and is cut off in the end.
func TestClientThatDoesNotRead(t *testing.T) {
	r := newRig(t, rigConfig{server: server.Config{OpenAI: openai.Config{Stream: sse.Config{WriteTimeout: 200 * time.Millisecond}}}})
	sent := make(chan int, 1)
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		events(w, chunkRole)
		n := 0
		big := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("x", 32<<10) + "\"},\"finish_reason\":null}]}\n\n"
		for req.Context().Err() == nil && n < 64<<20 {
			if _, err := io.WriteString(w, big); err != nil {
				break
			}
			n += len(big)
		}
		sent <- n
	})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(streamBody), streamBody)
	select {
	case n := <-sent:
		if n > 32<<20 {
			t.Errorf("the engine could send %d bytes", n)
		}
	case <-time.After(soon):
		t.Fatal("the client was never cut off")
	}
	r.idle()
	if !strings.Contains(r.logs.String(), "slow_client") {
		t.Errorf("log: %s", r.logs.String())
	}
}

func TestModelsAndHealth(t *testing.T) {
	r := newRig(t, rigConfig{})
	get := func(path string) (int, string) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if status, body := get("/readyz?verbose"); status != 503 || !strings.Contains(body, "[-]workers failed: no worker is registered\n") || !strings.Contains(body, "[+]serving ok\n") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := get("/health"); status != 503 || parseError(t, body).Error.Code != "not_ready" {
		t.Errorf("%d %s", status, body)
	}
	r.worker("p", fleet.RolePrefill, serve) // it computes prompts, and nobody generates
	if status, body := get("/readyz?verbose"); status != 503 || !strings.Contains(body, "[-]workers failed: no worker that can generate") ||
		!strings.Contains(body, `model "m": workers up: prefill 1 of 1; none can generate`) {
		t.Errorf("%d %s", status, body)
	}
	r.workers = nil
	r.worker("w", fleet.RoleBoth, serve)
	r.workers[0].Draining = true
	r.publish()
	if status, body := get("/readyz?verbose"); status != 503 || !strings.Contains(body, "both 0 of 1; none can generate") {
		t.Errorf("%d %s", status, body)
	}
	r.workers[0].Draining = false
	r.workers[0].Models = []string{"m", "org/n"}
	r.workers[0].Capacity.MaxContext = 2048
	r.index++
	r.publish()
	for _, path := range []string{"/health", "/livez", "/readyz", "/readyz?verbose"} {
		if status, body := get(path); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodHead, r.url+"/health", nil)
	if resp, err := r.client.Do(req); err != nil || resp.StatusCode != 200 {
		t.Errorf("HEAD: %v", err)
	} else {
		_ = resp.Body.Close()
	}
	status, body := get("/v1/models")
	var list struct {
		Object string
		Data   []struct {
			ID, Object string
			Max        int `json:"max_model_len"`
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 || len(list.Data) != 2 || list.Data[1].ID != "org/n" || list.Data[0].Max != 2048 || list.Object != "list" {
		t.Errorf("%d %s %v", status, body, err)
	}
	for _, path := range []string{"/v1/models/m", "/v1/models/org/n", "/v1/models/org%2Fn"} {
		if status, body := get(path); status != 200 || !strings.Contains(body, `"object":"model"`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	_, _, _, _ = r.chat(streamBody)
	_, body = get("/metrics")
	for _, want := range []string{
		`yardmaster_requests_total{model="m",outcome="ok",route="chat_completions"} 1`,
		`yardmaster_time_to_first_token_seconds_count{model="m",path="aggregated"} 1`,
		`yardmaster_time_to_first_token_seconds_bucket{model="m",path="aggregated",le="+Inf"} 1`,
		`yardmaster_paths_total{model="m",path="aggregated",reason="short_prompt"} 1`,
		`yardmaster_requests_in_flight 0`, `yardmaster_prompt_tokens_total{model="m"} 9`, `go_goroutines `,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestDrainLetsRequestsFinish(t *testing.T) {
	r := newRig(t, rigConfig{})
	began, release := make(chan bool), make(chan bool)
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		events(w, chunkRole)
		began <- true
		<-release
		_, _ = io.WriteString(w, chunkHi+chunkStop+chunkDone)
	})
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, _, body, err := r.chat(streamBody); err != nil || !strings.HasSuffix(body, chunkDone) {
				t.Errorf("%v %q", err, body)
			}
		})
		<-began
	}
	drained := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		drained <- r.server.Drain(ctx)
	}()
	for { // until the listener is closed
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(release)
	if err := <-drained; err != nil {
		t.Error(err)
	}
	wg.Wait()
	r.idle()
}

func TestDrainDeadlineTellsAndCuts(t *testing.T) {
	r := newRig(t, rigConfig{})
	began := make(chan bool, 2)
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		if bytes.Contains(b, []byte(`"stream":true`)) {
			events(w, chunkRole, chunkHi)
		}
		began <- true
		<-req.Context().Done()
	})
	type result struct {
		status int
		body   string
		err    error
	}
	results := make(chan result, 2)
	for _, body := range []string{streamBody, plainBody} {
		go func() {
			status, _, b, err := r.chat(body)
			results <- result{status, b, err}
		}()
		<-began
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.server.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("drain: %v", err)
	}
	for range 2 {
		got := <-results
		if !strings.Contains(got.body, "shutting_down") || got.status == 200 && !errors.Is(got.err, io.ErrUnexpectedEOF) || got.status != 200 && got.status != 503 {
			t.Errorf("%+v", got)
		}
	}
	r.idle()
}

func TestGateRefusesOverTheWire(t *testing.T) {
	r := newRig(t, rigConfig{dispatch: dispatch.Config{Admit: admit.Config{MaxBodyBytes: 8 << 10}}})
	r.worker("w", fleet.RoleBoth, serve)
	status, h, body, err := r.chat(`{"model":"m","prompt":"` + strings.Repeat("x", 9<<10) + `"}`)
	if err != nil || status != 429 || parseError(t, body).Error.Code != "saturated" || h.Get("Retry-After") != "1" {
		t.Errorf("%d %s %v", status, body, err)
	}
	if status, _, _, _ := r.chat(plainBody); status != 200 {
		t.Errorf("a small body after a large one: %d", status)
	}
	r.idle()
}

// A body that does not come is given up; a client that answers "100 Continue"
// is asked to go on.
func TestSlowAndExpectedBodies(t *testing.T) {
	r := newRig(t, rigConfig{server: server.Config{OpenAI: openai.Config{BodyTimeout: 50 * time.Millisecond}}})
	r.worker("w", fleet.RoleBoth, serve)
	dial := func(head string) (net.Conn, *bufio.Reader) {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(soon))
		_, _ = io.WriteString(conn, head)
		return conn, bufio.NewReader(conn)
	}
	conn, in := dial("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	defer func() { _ = conn.Close() }()
	if line, _ := in.ReadString('\n'); !strings.Contains(line, "400") {
		t.Errorf("slow body: %q", line)
	}
	conn2, in := dial(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(plainBody)))
	defer func() { _ = conn2.Close() }()
	if line, _ := in.ReadString('\n'); !strings.Contains(line, "100 Continue") {
		t.Errorf("expected 100: %q", line)
	}
	_, _ = in.ReadString('\n')
	_, _ = io.WriteString(conn2, plainBody)
	if line, _ := in.ReadString('\n'); !strings.Contains(line, "200 OK") {
		t.Errorf("after 100: %q", line)
	}
}

// Prompts and secrets stay out of the log and the metrics.
func TestNothingSecretIsLogged(t *testing.T) {
	r := newRig(t, rigConfig{})
	r.worker("w", fleet.RoleBoth, func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		w.WriteHeader(400)
		_, _ = w.Write(b) // an engine that echoes
	})
	for _, body := range []string{`{"model":"m","prompt":"canary-prompt"}`, `{"model":"canary-model"}`, `{"prompt":"canary-prompt"`} {
		_, _, _, _ = r.chat(body, "Authorization", "Bearer canary-key")
	}
	r.idle()
	for _, f := range r.registry.Snapshot() {
		for _, s := range f.Series {
			if strings.Contains(strings.Join(s.Labels, " "), "canary") {
				t.Errorf("series %s %v", f.Desc.Name, s.Labels)
			}
		}
	}
	logs := r.logs.String()
	if strings.Contains(logs, "canary-prompt") || strings.Contains(logs, "canary-key") || strings.Count(logs, "msg=request") != 3 {
		t.Errorf("log: %s", logs)
	}
}

// Many clients, some of whom leave, over workers some of which break off: all
// gauges return to zero.
func TestManyFaultsBalance(t *testing.T) {
	r := newRig(t, rigConfig{})
	var turn sync.Mutex
	n := 0
	handler := func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		turn.Lock()
		n++
		what := n % 7
		turn.Unlock()
		switch what {
		case 0:
			cut(w)
		case 1:
			events(w, chunkRole, chunkHi)
			cut(w)
		case 2:
			w.WriteHeader(503)
		case 3:
			events(w, chunkHi)
			<-req.Context().Done()
		default:
			events(w, wholeStream)
		}
	}
	r.worker("p", fleet.RolePrefill, handler)
	r.worker("d", fleet.RoleDecode, handler)
	r.worker("b", fleet.RoleBoth, handler)
	bodies := []string{streamBody, `{"model":"m","stream":true,"prompt":"` + strings.Repeat("word ", 1000) + `"}`}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+i%5*30)*time.Millisecond)
			defer cancel()
			resp, err := r.post(ctx, bodies[i%2])
			if err != nil {
				return
			}
			defer func() { _ = resp.Body.Close() }()
			b, err := io.ReadAll(resp.Body)
			if ctx.Err() == nil && resp.StatusCode == 200 && (err == nil) != strings.HasSuffix(string(b), chunkDone) {
				t.Errorf("%v at the end of %q", err, b)
			}
		})
	}
	wg.Wait()
	r.idle()
	if got := r.count(measure.Requests); got > 100 {
		t.Errorf("%v outcomes", got)
	}
}
