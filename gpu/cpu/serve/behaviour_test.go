package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

const ask = `{"model":"toy","messages":[{"role":"user","content":"hello"}]`

// eventually waits for what other goroutines are about to do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

func TestStopStrings(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	body := `{"model":"toy","prompt":"abc","max_tokens":80,"seed":3,"ignore_eos":true`
	_, b := y.body(t, "/v1/completions", body+"}")
	full := decode(t, b).Choices[0].Text
	// Stops of all lengths at all places, as the text has them.
	runes := []rune(full)
	for at := 1; at < len(runes)-8; at += 5 {
		for _, n := range []int{1, 2, 5} {
			stop := string(runes[at : at+n])
			want, _, _ := strings.Cut(full, stop)
			quoted, _ := json.Marshal(stop)
			request := fmt.Sprintf(`%s,"stop":["never there",%s]`, body, quoted)
			_, b := y.body(t, "/v1/completions", request+"}")
			choice := decode(t, b).Choices[0]
			if choice.Text != want || *choice.FinishReason != "stop" || choice.StopReason != stop {
				t.Fatalf("stop %q: got %q (%s, %v), want %q", stop, choice.Text, *choice.FinishReason, choice.StopReason, want)
			}
			_, s := y.body(t, "/v1/completions", request+`,"stream":true}`)
			var got strings.Builder
			for _, c := range chunks(t, s) {
				got.WriteString(c.Choices[0].Text)
			}
			if got.String() != want {
				t.Fatalf("stop %q: streamed %q, want %q", stop, got.String(), want)
			}
			_, b = y.body(t, "/v1/completions", request+`,"include_stop_str_in_output":true}`)
			if got := decode(t, b).Choices[0].Text; got != want+stop {
				t.Fatalf("stop %q kept: got %q, want %q", stop, got, want+stop)
			}
		}
	}
	// A stop string is not looked for among the first min_tokens tokens.
	quoted, _ := json.Marshal(string(runes[:1]))
	_, b = y.body(t, "/v1/completions", fmt.Sprintf(`%s,"stop":%s,"min_tokens":20}`, body, quoted))
	if got := decode(t, b); got.Usage.CompletionTokens < 20 {
		t.Errorf("min_tokens 20, got %+v", got.Usage)
	}
}

func TestStopTokens(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	body := `{"model":"toy","prompt":"abc","max_tokens":40,"seed":9,"ignore_eos":true,"return_token_ids":true`
	_, b := y.body(t, "/v1/completions", body+"}")
	ids := decode(t, b).Choices[0].TokenIDs
	stop := ids[10]
	first := slices.Index(ids, stop)
	_, b = y.body(t, "/v1/completions", fmt.Sprintf(`%s,"stop_token_ids":[%d]}`, body, stop))
	got := decode(t, b).Choices[0]
	if !slices.Equal(got.TokenIDs, ids[:first+1]) || got.StopReason != float64(stop) || *got.FinishReason != "stop" {
		t.Errorf("got %+v, want the first %d of %v", got, first+1, ids)
	}
	if want := strings.ToValidUTF8(string(y.tok.Decode(nil, ids[:first])), "�"); !strings.HasPrefix(want, strings.TrimRight(got.Text, "�")) {
		t.Errorf("text %q of tokens %q", got.Text, want)
	}
}

func TestSeveralAnswers(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	body := `{"model":"toy","prompt":["one","two"],"n":3,"seed":4,"max_tokens":100,"logprobs":2,"ignore_eos":true`
	_, b := y.body(t, "/v1/completions", body+"}")
	whole := decode(t, b)
	if len(whole.Choices) != 6 || whole.Usage.PromptTokens != 6 || whole.Usage.CompletionTokens != 600 {
		t.Fatalf("%s", b)
	}
	_, s := y.body(t, "/v1/completions", body+`,"stream":true,"stream_options":{"include_usage":true}}`)
	texts := make([]string, 6)
	finished := make([]bool, 6)
	for _, c := range chunks(t, s) {
		for _, choice := range c.Choices {
			if finished[choice.Index] {
				t.Fatalf("choice %d goes on after its end", choice.Index)
			}
			texts[choice.Index] += choice.Text
			finished[choice.Index] = choice.FinishReason != nil
		}
	}
	for i, c := range whole.Choices {
		if c.Index != i || texts[i] != c.Text || !finished[i] {
			t.Errorf("choice %d: streamed %q, whole %q", i, texts[i], c.Text)
		}
	}
	if whole.Choices[0].Text == whole.Choices[1].Text {
		t.Error("two answers drew the same numbers")
	}
}

func TestLogprobs(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	_, b := y.body(t, "/v1/chat/completions", ask+`,"max_tokens":5,"logprobs":true,"top_logprobs":3,"ignore_eos":true}`)
	var chat struct {
		Content []struct {
			Token   string
			Logprob float64
			Bytes   []int
			Top     []struct {
				Logprob float64
			} `json:"top_logprobs"`
		}
	}
	if err := json.Unmarshal(decode(t, b).Choices[0].Logprobs, &chat); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	if len(chat.Content) != 5 {
		t.Fatalf("%d entries: %s", len(chat.Content), b)
	}
	for _, e := range chat.Content {
		if e.Logprob > 0 || len(e.Bytes) == 0 || len(e.Top) != 3 || e.Top[0].Logprob < e.Top[2].Logprob {
			t.Errorf("%+v", e)
		}
	}
	_, b = y.body(t, "/v1/completions", `{"model":"toy","prompt":"x","max_tokens":5,"logprobs":2,"ignore_eos":true}`)
	var text struct {
		Offset []int            `json:"text_offset"`
		Values []float64        `json:"token_logprobs"`
		Tokens []string         `json:"tokens"`
		Top    []map[string]any `json:"top_logprobs"`
	}
	if err := json.Unmarshal(decode(t, b).Choices[0].Logprobs, &text); err != nil || len(text.Offset) != 5 ||
		len(text.Values) != 5 || len(text.Tokens) != 5 || len(text.Top) != 5 || text.Offset[0] != 0 {
		t.Errorf("%s: %v", b, err)
	}
}

func TestContinuousUsage(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	_, s := y.body(t, "/v1/chat/completions",
		ask+`,"max_tokens":7,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	last := -1
	for _, c := range chunks(t, s) {
		if c.Usage == nil || c.Usage.CompletionTokens < last || c.Usage.TotalTokens != c.Usage.PromptTokens+c.Usage.CompletionTokens {
			t.Fatalf("%+v after %d", c.Usage, last)
		}
		last = c.Usage.CompletionTokens
	}
	if last != 7 {
		t.Errorf("%d tokens at the end", last)
	}
	// A repeated prompt is found in the cache, which the last chunk says.
	long := strings.Repeat("x", 100)
	request := fmt.Sprintf(`{"model":"toy","prompt":%q,"max_tokens":2}`, long)
	y.body(t, "/v1/completions", request)
	_, b := y.body(t, "/v1/completions", request)
	if u := decode(t, b).Usage; u.Details == nil || u.Details.CachedTokens < 16 {
		t.Errorf("usage %s", b)
	}
	_, b = y.body(t, "/v1/completions", strings.Replace(request, "{", `{"cache_salt":"other",`, 1))
	if u := decode(t, b).Usage; u.Details == nil || u.Details.CachedTokens != 0 {
		t.Errorf("another salt found %s", b)
	}
}

// gate is a runner that waits at each step.
type gate struct {
	steps atomic.Int64
	open  chan struct{}
}

func (g *gate) step([]batch.Span) {
	g.steps.Add(1)
	<-g.open
}

func TestClientGone(t *testing.T) {
	for _, when := range []string{"before the first byte", "in a stream", "whole", "queued"} {
		t.Run(when, func(t *testing.T) {
			g := &gate{open: make(chan struct{}, 1000)}
			y := newToy(t, batchtest.Runner{OnForward: g.step}, func(_ *Options, e *batch.Options) { e.MaxRunning = 1 })
			t.Cleanup(func() { close(g.open) })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			start := func(extra string) chan io.ReadCloser {
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, y.URL+"/v1/completions",
					strings.NewReader(`{"model":"toy","prompt":"abc","max_tokens":400,"ignore_eos":true`+extra+"}"))
				got := make(chan io.ReadCloser, 1)
				go func() {
					resp, err := y.Client().Do(r) //nolint:bodyclose // its reader closes it, if there is one
					if err != nil {
						return // it was given up
					}
					got <- resp.Body
				}()
				return got
			}
			switch when {
			case "before the first byte":
				start(`,"stream":true`)
				eventually(t, "first step", func() bool { return g.steps.Load() == 1 })
			case "in a stream":
				got := start(`,"stream":true`)
				for range 20 {
					g.open <- struct{}{}
				}
				body := <-got
				if line, err := bufio.NewReader(body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
					t.Fatalf("%q, %v", line, err)
				}
				defer func() { _ = body.Close() }()
			case "whole":
				start("")
				eventually(t, "first step", func() bool { return g.steps.Load() == 1 })
			case "queued":
				start("")
				start("")
				eventually(t, "both accepted", func() bool { s := y.engine.Stats(); return s.Running+s.Waiting == 2 })
			}
			cancel()
			// The engine looks up after the step that it is in.
			done := make(chan struct{})
			var steps sync.WaitGroup
			steps.Go(func() {
				for {
					select {
					case g.open <- struct{}{}:
						time.Sleep(time.Millisecond)
					case <-done:
						return
					}
				}
			})
			defer steps.Wait()
			defer close(done)
			eventually(t, "engine idle", func() bool {
				s := y.engine.Stats()
				return s.Running+s.Waiting == 0 && s.BlocksFree == s.BlocksTotal
			})
			if n := g.steps.Load(); n > 200 {
				t.Errorf("%d steps were computed for nobody", n)
			}
			eventually(t, "handler idle", func() bool { return y.handler.Running() == 0 })
		})
	}
}

func TestStreamFailsHonestly(t *testing.T) {
	g := &gate{open: make(chan struct{}, 1000)}
	y := newToy(t, batchtest.Runner{OnForward: g.step})
	t.Cleanup(func() { close(g.open) })
	resp := y.post(t, "/v1/chat/completions", ask+`,"max_tokens":400,"ignore_eos":true,"stream":true}`)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" ||
		resp.Header.Get("X-Accel-Buffering") != "no" || resp.Header.Get("Cache-Control") != "no-cache" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	for range 10 {
		g.open <- struct{}{}
	}
	eventually(t, "a few steps", func() bool { return g.steps.Load() > 10 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		g.open <- struct{}{}
	}
	if err := y.engine.Close(ctx); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the connection ended with %v", err)
	}
	if strings.Contains(string(b), "[DONE]") || strings.Contains(string(b), `"finish_reason":"`) {
		t.Errorf("a failed stream looks complete: %s", b)
	}
	if !strings.HasSuffix(string(b), `"code":"draining"}}`+"\n\n") {
		t.Errorf("no error event at the end: %s", b[max(0, len(b)-200):])
	}
}

// The headers and the role are there before the first token is.
func TestHeadersAtOnce(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	y := newToy(t, batchtest.Runner{OnForward: g.step})
	t.Cleanup(func() { close(g.open) })
	resp := y.post(t, "/v1/chat/completions", ask+`,"max_tokens":2,"stream":true}`)
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"delta":{"role":"assistant","content":""}`) {
		t.Errorf("%q, %v", line, err)
	}
	resp = y.post(t, "/v1/completions", `{"model":"toy","prompt":"x","stream":true}`)
	if resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// A client that stops reading is gone when its patience, not ours, ends.
func TestStalledClient(t *testing.T) {
	y := newToy(t, batchtest.Runner{}, func(s *Options, e *batch.Options) {
		s.WriteTimeout, s.MaxModelLen, e.KVBlocks = 100*time.Millisecond, 1<<16, 1<<12
	})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", y.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4096)
	}
	body := `{"model":"toy","prompt":"x","max_tokens":60000,"ignore_eos":true,"stream":true,"logprobs":20}`
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return y.handler.Running() == 1 })
	eventually(t, "it was given up", func() bool {
		s := y.engine.Stats()
		return y.handler.Running() == 0 && s.Running == 0 && s.BlocksFree == s.BlocksTotal
	})
}

// A body that stops half way is waited for no longer than its time.
func TestBodyThatDoesNotArrive(t *testing.T) {
	y := newToy(t, batchtest.Runner{}, func(s *Options, _ *batch.Options) { s.BodyTimeout = 50 * time.Millisecond })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", y.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(answer), "body_timeout") || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("%s, %v", answer, err)
	}
}

func TestBusy(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	y := newToy(t, batchtest.Runner{OnForward: g.step}, func(_ *Options, e *batch.Options) { e.MaxRunning, e.MaxWaiting = 1, 1 })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, y.URL+"/v1/chat/completions", strings.NewReader(ask+"}"))
			if resp, err := y.Client().Do(r); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	eventually(t, "both accepted", func() bool { s := y.engine.Stats(); return s.Running+s.Waiting == 2 })
	resp := y.post(t, "/v1/chat/completions", ask+"}")
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || resp.Header.Get(engine.HeaderReason) != "queue_full" ||
		!strings.Contains(string(b), `"code":"queue_full"`) {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, b)
	}
	cancel()
	close(g.open)
	wg.Wait()
}

func TestDrain(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	y := newToy(t, batchtest.Runner{OnForward: g.step})
	running := make(chan string)
	go func() {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, y.URL+"/v1/chat/completions", strings.NewReader(ask+`,"max_tokens":3}`))
		resp, err := y.Client().Do(r)
		if err != nil {
			running <- err.Error()
			return
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		running <- string(b)
	}()
	eventually(t, "it runs", func() bool { return g.steps.Load() > 0 })
	brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := y.handler.Drain(brief); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drained while running: %v", err)
	}
	resp := y.post(t, "/v1/chat/completions", ask+"}")
	if resp.StatusCode != 503 || resp.Header.Get(engine.HeaderReason) != engine.ReasonDraining {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if status, _ := y.get(t, "/health"); status != 503 {
		t.Errorf("health is %d while draining", status)
	}
	close(g.open)
	if b := <-running; !strings.Contains(b, `"finish_reason":"`) {
		t.Errorf("the running request ended with %s", b)
	}
	if err := y.handler.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

func (y *toy) get(t *testing.T, path string) (int, string) {
	t.Helper()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, y.URL+path, http.NoBody)
	resp, err := y.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func TestSmallRoutes(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	for _, tt := range []struct{ path, want string }{
		{"/health", ""},
		{"/version", `{"version":"test"}`},
	} {
		if status, b := y.get(t, tt.path); status != 200 || b != tt.want {
			t.Errorf("%s: %d %s", tt.path, status, b)
		}
	}
	if status, b := y.get(t, "/v1/models"); status != 200 || !strings.Contains(b, `"id":"toy"`) || !strings.Contains(b, `"max_model_len":512`) {
		t.Errorf("%d %s", status, b)
	}
	for _, tt := range []struct{ path, body, want string }{
		{
			"/tokenize", `{"model":"toy","prompt":"hé<|im_end|>","return_token_strs":true}`,
			`{"count":4,"max_model_len":512,"tokens":[104,195,169,257],"token_strs":["h","Ã","©","<|im_end|>"]}`,
		},
		{
			"/tokenize", `{"messages":[{"role":"u","content":"x"}],"add_generation_prompt":false}`,
			`{"count":5,"max_model_len":512,"tokens":[117,58,32,120,10],"token_strs":null}`,
		},
		{"/detokenize", `{"model":"toy","tokens":[256,195,169]}`, `{"prompt":"heé"}`},
	} {
		if status, b := y.body(t, tt.path, tt.body); status != 200 || b != tt.want {
			t.Errorf("%s %s: %d %s", tt.path, tt.body, status, b)
		}
	}
}

// fakeLegs plays the transfer layer.
type fakeLegs struct {
	mu   sync.Mutex
	log  []string
	fail error
	from int
}

func (f *fakeLegs) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fakeLegs) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.log, "; ")
}

func (f *fakeLegs) Export(_ context.Context, id uint64, p engine.Peer, prompt []int32) (batch.Exporter, error) {
	f.note("export %x %s %d", id, p.ID, len(prompt))
	return &fakeExport{f}, f.fail
}

func (f *fakeLegs) Import(id uint64, p engine.Peer) batch.Importer {
	f.note("import %x %s", id, p.ID)
	return &fakeImport{f: f}
}

func (f *fakeLegs) Refuse(id uint64, why transfer.Reason) { f.note("refuse %x %s", id, why) }

type fakeExport struct{ *fakeLegs }

func (e *fakeExport) From() int { return e.from }

func (e *fakeExport) Finish(_ []float32, release func()) { e.note("finish"); release() }

func (e *fakeExport) Abort(_ error, release func()) { e.note("abort"); release() }

type fakeImport struct{ f *fakeLegs }

func (i *fakeImport) Start(_ batch.Destination, done func([]float32, error)) {
	i.f.note("start")
	go done(nil, transfer.Failure(transfer.ReasonTimeout, nil))
}

func (i *fakeImport) Cancel() { i.f.note("cancel") }

func legHeaders(leg string) []string {
	return []string{engine.HeaderLeg, leg, engine.HeaderTransfer, "00000000000000ab", engine.HeaderPeer, "w;7;127.0.0.1:1"}
}

func TestLegs(t *testing.T) {
	legs := &fakeLegs{}
	y := newToy(t, batchtest.Runner{}, func(s *Options, _ *batch.Options) { s.Legs = legs })
	expect := func(want string) {
		t.Helper()
		if got := legs.String(); got != want {
			t.Errorf("the transfer layer saw %q, want %q", got, want)
		}
		legs.log = nil
	}
	status, b := y.body(t, "/v1/chat/completions", ask+`,"stream":true}`, legHeaders("prefill")...)
	if r := decode(t, b); status != 200 || !r.Prefilled || r.Usage.PromptTokens == 0 || r.Usage.CompletionTokens != 0 {
		t.Errorf("%d %s", status, b)
	}
	expect("export ab w 22; finish")

	legs.fail = transfer.Failure(transfer.ReasonNotNeeded, nil)
	if status, b := y.body(t, "/v1/chat/completions", ask+"}", legHeaders("prefill")...); status != 200 || !decode(t, b).Prefilled {
		t.Errorf("%d %s", status, b)
	}
	legs.fail = transfer.Failure(transfer.ReasonTimeout, nil)
	if status, b := y.body(t, "/v1/chat/completions", ask+"}", legHeaders("prefill")...); status != 502 ||
		decode(t, b).Error.Code != "transfer_timeout" {
		t.Errorf("%d %s", status, b)
	}
	legs.log, legs.fail = nil, nil

	_, want := y.body(t, "/v1/chat/completions", ask+`,"max_tokens":9,"temperature":0,"n":2}`)
	resp := y.post(t, "/v1/chat/completions", ask+`,"max_tokens":9,"temperature":0,"n":2}`, legHeaders("decode")...)
	got, _ := io.ReadAll(resp.Body)
	// The prompt is cached from before, so either is true.
	if kv := resp.Header.Get(engine.HeaderKV); resp.StatusCode != 200 || kv != "recomputed; timeout" && kv != "local" {
		t.Errorf("%d, KV %q", resp.StatusCode, kv)
	}
	if a, b := decode(t, want), decode(t, string(got)); a.Choices[0].Message != b.Choices[0].Message || a.Choices[1].Message != b.Choices[1].Message {
		t.Errorf("decode leg %s\naggregated %s", got, want)
	}
	legs.log = nil

	// Refused before it began: the other leg is told.
	for _, leg := range []string{"prefill", "decode"} {
		if status, b := y.body(t, "/v1/chat/completions", `{"model":"no"`+ask[14:]+"}", legHeaders(leg)...); status != 404 {
			t.Errorf("%d %s", status, b)
		}
	}
	expect("refuse ab canceled; import ab w; cancel")
	for _, h := range [][]string{
		{engine.HeaderLeg, "sideways"},
		{engine.HeaderLeg, "prefill"},
		{engine.HeaderLeg, "decode", engine.HeaderTransfer, "ab"},
		{engine.HeaderLeg, "decode", engine.HeaderTransfer, "zz", engine.HeaderPeer, "w;7;"},
	} {
		if status, b := y.body(t, "/v1/chat/completions", ask+"}", h...); status != 400 || decode(t, b).Error.Code != "bad_leg" {
			t.Errorf("%v: %d %s", h, status, b)
		}
	}
	expect("")
}

func (e *fakeExport) Computed(int, int, int, []kv.BlockID) {}

func TestEpoch(t *testing.T) {
	var own engine.OwnEpoch
	y := newToy(t, batchtest.Runner{}, func(s *Options, _ *batch.Options) {
		s.Own = &own
	})
	for _, tt := range []struct {
		now    fleet.Epoch
		header string
		want   int
	}{{0, "", 200}, {0, "0", 200}, {0, "3", 421}, {3, "3", 200}, {3, "2", 421}, {3, "x", 421}, {3, "", 200}} {
		own.Set(tt.now)
		resp := y.post(t, "/v1/chat/completions", ask+`,"max_tokens":1}`, engine.HeaderEpoch, tt.header)
		if resp.StatusCode != tt.want || (tt.want == 421) != (resp.Header.Get(engine.HeaderReason) == engine.ReasonStaleEpoch) {
			t.Errorf("%+v: %d %v", tt, resp.StatusCode, resp.Header)
		}
	}
	time.AfterFunc(50*time.Millisecond, func() { own.Set(4) }) // the gateway has heard of it first
	if resp := y.post(t, "/v1/chat/completions", ask+`,"max_tokens":1}`, engine.HeaderEpoch, "4"); resp.StatusCode != 200 {
		t.Errorf("of the epoch to come: %d", resp.StatusCode)
	}
}

func TestRequestID(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	for id, want := range map[string]string{"abc-1": "chatcmpl-abc-1", `a"b`: "", "": "", strings.Repeat("x", 129): ""} {
		resp := y.post(t, "/v1/chat/completions", ask+`,"max_tokens":1}`, engine.HeaderRequestID, id)
		b, _ := io.ReadAll(resp.Body)
		got := decode(t, string(b)).ID
		if want == "" && (len(got) != len("chatcmpl-")+16 || resp.Header.Get(engine.HeaderRequestID) != "") || want != "" && got != want {
			t.Errorf("id %q gave %q", id, got)
		}
	}
}

// modelPath is where the test model is, or skips.
func modelPath(t testing.TB) string {
	t.Helper()
	path := os.Getenv("YARDMASTER_TEST_MODEL")
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skip(err)
		}
		path = filepath.Join(cache, "yardmaster", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no test model: set YARDMASTER_TEST_MODEL or put it into the cache (%v)", err)
	}
	return path
}

func TestPatience(t *testing.T) {
	h := &Handler{opt: Options{BodyTimeout: time.Minute}}
	for _, one := range []struct {
		length int64
		want   time.Duration
	}{{-1, time.Minute}, {100, 10 * time.Second}, {1 << 20, 26 * time.Second}, {64 << 20, time.Minute}} {
		if got := h.patience(one.length); got != one.want {
			t.Errorf("%d bytes: %v, want %v", one.length, got, one.want)
		}
	}
}
