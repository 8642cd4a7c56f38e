package scripted

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/wire/kvevent"
	"github.com/yardmaster/yardmaster/gpu/zmtp"
)

// get returns the whole response to a request.
func get(t *testing.T, e *Engine, method, path, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, e.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestRoutes(t *testing.T) {
	e := NewTest(t, func(o *Options) {
		o.Model, o.Adapters, o.MaxContext = "base", []string{"ad"}, 64
	})
	tests := []struct {
		name, method, path, body string
		status                   int
		has                      []string
	}{
		{"health", "GET", "/health", "", 200, nil},
		{"ping", "POST", "/ping", "", 200, nil},
		{"version", "GET", "/version", "", 200, []string{`{"version":"scripted"}`}},
		{"load", "GET", "/load", "", 200, []string{`{"server_load":0}`}},
		{"models", "GET", "/v1/models", "", 200, []string{`"id":"base"`, `"parent":null`, `"id":"ad"`, `"parent":"base"`, `"max_model_len":64`}},
		{"tokenize", "POST", "/tokenize", `{"prompt":"abcdefg"}`, 200, []string{`{"count":2,"max_model_len":64,"tokens":[1684234849,4217857637],"token_strs":null}`}},
		{"tokenize with texts", "POST", "/tokenize", `{"prompt":"abcdefg","return_token_strs":true}`, 200, []string{`["abcd","efg"]`}},
		{"tokenize chat", "POST", "/tokenize", `{"messages":[{"role":"user","content":"hi"}]}`, 200, []string{`"count":8`}},
		{"detokenize", "POST", "/detokenize", `{"tokens":[1684234849,4217857637]}`, 200, []string{`{"prompt":"abcdefg"}`}},
		{"embeddings", "POST", "/v1/embeddings", `{"input":["a","b"]}`, 200, []string{`"index":1`, `"prompt_tokens":2`}},
		{"embeddings in base64", "POST", "/v1/embeddings", `{"input":"a","encoding_format":"base64"}`, 200, []string{`"index":0,"embedding":"`, `="}]`}},
		{"unknown route", "GET", "/nope", "", 404, []string{`{"detail":"Not Found"}`}},
		{"wrong method", "GET", "/v1/completions", "", 405, []string{`{"detail":"Method Not Allowed"}`}},
		{"not JSON", "POST", "/v1/completions", `{"prompt":`, 400, []string{`"code":400`}},
		{"wrong type", "POST", "/v1/completions", `{"prompt":"a","max_tokens":"many"}`, 400, []string{`"param":"max_tokens"`}},
		{"unknown model", "POST", "/v1/completions", `{"model":"nope","prompt":"a"}`, 404, []string{"The model `nope` does not exist. Valid aliases: base, ad."}},
		{"adapter", "POST", "/v1/completions", `{"model":"ad","prompt":"a"}`, 200, []string{`"model":"ad"`}},
		{"no prompt", "POST", "/v1/completions", `{}`, 400, []string{"prompt is missing"}},
		{"odd prompt", "POST", "/v1/completions", `{"prompt":{}}`, 400, []string{"neither text"}},
		{"nested prompt", "POST", "/v1/completions", `{"prompt":[[["a"]]]}`, 400, []string{"neither text"}},
		{"prompt too long", "POST", "/v1/completions", `{"prompt":"` + strings.Repeat("word", 64) + `"}`, 400, []string{"maximum context length is 64", "contains 64 input tokens", `"param":"input_tokens"`}},
		{"too many tokens", "POST", "/v1/completions", `{"prompt":"word","max_tokens":64}`, 400, []string{"requested 64 output tokens", "contains 1 input"}},
		{"no tokens", "POST", "/v1/completions", `{"prompt":"word","max_tokens":0}`, 400, []string{`"param":"max_tokens"`}},
		{"temperature", "POST", "/v1/completions", `{"prompt":"a","temperature":-3}`, 400, []string{"must be non-negative"}},
		{"n", "POST", "/v1/completions", `{"prompt":"a","n":0}`, 400, []string{`"param":"n"`}},
		{"stop", "POST", "/v1/completions", `{"prompt":"a","stop":7}`, 400, []string{`"param":"stop"`}},
		{"messages", "POST", "/v1/chat/completions", `{"messages":[]}`, 400, []string{`"param":"messages"`}},
		{"content", "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":5}]}`, 400, []string{"messages[0].content"}},
		{"content parts", "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}]}`, 200, nil},
		{"rank", "POST", "/v1/completions", `{"prompt":"a"}`, 200, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body := get(t, e, tt.method, tt.path, tt.body)
			if status != tt.status {
				t.Errorf("status %d, want %d: %s", status, tt.status, body)
			}
			for _, part := range tt.has {
				if !strings.Contains(body, part) {
					t.Errorf("%s lacks %s", body, part)
				}
			}
		})
	}
	if status, _ := get(t, e, "POST", "/v1/completions", `{"prompt":"a"}`, "X-Data-Parallel-Rank", "1"); status != 400 {
		t.Errorf("a rank that is not there: %d", status)
	}
}

func TestSampling(t *testing.T) {
	e := NewTest(t)
	_, _, plain := ask(t, e, "/v1/completions", `{"prompt":"abc","max_tokens":8}`)
	text := plain.Choices[0].Text
	t.Run("n", func(t *testing.T) {
		_, _, a := ask(t, e, "/v1/completions", `{"prompt":["abc","xyz"],"n":2,"max_tokens":8}`)
		if len(a.Choices) != 4 || a.Choices[0].Text != text || a.Choices[1].Text == text || a.Choices[3].Index != 3 {
			t.Errorf("%+v", a.Choices)
		}
		if a.Usage.Completion != 32 || a.Usage.Prompt != 2 {
			t.Errorf("%+v", a.Usage)
		}
	})
	t.Run("seed", func(t *testing.T) {
		_, _, a := ask(t, e, "/v1/completions", `{"prompt":"abc","max_tokens":8,"seed":5,"temperature":1}`)
		_, _, b := ask(t, e, "/v1/completions", `{"prompt":"abc","max_tokens":8,"seed":5,"temperature":1}`)
		_, _, greedy := ask(t, e, "/v1/completions", `{"prompt":"abc","max_tokens":8,"seed":5,"temperature":0}`)
		if a.Choices[0].Text == text || a.Choices[0].Text != b.Choices[0].Text || greedy.Choices[0].Text != text {
			t.Errorf("%q, %q, greedy %q", a.Choices[0].Text, b.Choices[0].Text, greedy.Choices[0].Text)
		}
	})
	t.Run("stop", func(t *testing.T) {
		_, _, a := ask(t, e, "/v1/completions", fmt.Sprintf(`{"prompt":"abc","max_tokens":8,"stop":[%q]}`, text[6:10]))
		c := a.Choices[0]
		if c.Text != text[:6] || *c.FinishReason != "stop" || *c.StopReason != text[6:10] {
			t.Errorf("%+v of %q", c, text)
		}
	})
	t.Run("token ids as prompt", func(t *testing.T) {
		_, _, a := ask(t, e, "/v1/completions", fmt.Sprintf(`{"prompt":[%d],"max_tokens":8}`, Tokenize("abc")[0]))
		if a.Choices[0].Text != text {
			t.Errorf("%q, want %q", a.Choices[0].Text, text)
		}
	})
	t.Run("natural end", func(t *testing.T) {
		e := NewTest(t, func(o *Options) { o.StopEvery = 4 })
		_, _, a := ask(t, e, "/v1/completions", `{"prompt":"abc","max_tokens":500}`)
		_, _, b := ask(t, e, "/v1/completions", `{"prompt":"abc","max_tokens":50,"ignore_eos":true}`)
		if *a.Choices[0].FinishReason != "stop" || b.Usage.Completion != 50 {
			t.Errorf("%+v, %+v", a.Usage, b.Usage)
		}
	})
	t.Run("defaults", func(t *testing.T) {
		_, _, a := ask(t, e, "/v1/completions", `{"prompt":"abc"}`)
		_, _, b := ask(t, e, "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`, "X-Request-Id", "abc")
		if a.Usage.Completion != 16 || b.Usage.Completion != 32 || *b.Choices[0].FinishReason != "stop" || b.ID != "chatcmpl-abc" {
			t.Errorf("%+v, %+v", a, b)
		}
	})
}

// A request that moves with what was generated goes on as it would have.
func TestMigration(t *testing.T) {
	a, b := NewTest(t), NewTest(t)
	chat := `{"messages":[{"role":"user","content":"tell"}%s],"max_tokens":%d%s}`
	_, _, whole := ask(t, a, "/v1/chat/completions", fmt.Sprintf(chat, "", 10, ""))
	text := whole.Choices[0].Message.Content
	part := fmt.Sprintf(`,{"role":"assistant","content":%q}`, text[:16])
	_, _, rest := ask(t, b, "/v1/chat/completions", fmt.Sprintf(chat, part, 6, `,"continue_final_message":true,"add_generation_prompt":false`))
	if got := text[:16] + rest.Choices[0].Message.Content; got != text {
		t.Errorf("%q, want %q", got, text)
	}
}

func TestMetrics(t *testing.T) {
	value := func(t *testing.T, text, series string) string {
		t.Helper()
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(line, series+" "); ok {
				return strings.TrimSpace(v)
			}
		}
		return "absent"
	}
	running := func(rank int) string {
		return fmt.Sprintf(`vllm:num_requests_running{engine="%d",model_name="scripted"}`, rank)
	}
	t.Run("counts", func(t *testing.T) {
		e := NewTest(t)
		ask(t, e, "/v1/chat/completions", chatBody)
		ask(t, e, "/v1/chat/completions", chatBody)
		_, text := get(t, e, "GET", "/metrics", "")
		label := `{engine="0",model_name="scripted"}`
		for series, want := range map[string]string{
			running(0): "0", "vllm:generation_tokens_total" + label: "16",
			"vllm:prefix_cache_hits_total" + label: "16", "vllm:time_to_first_token_seconds_count" + label: "2",
			`vllm:request_success_total{engine="0",model_name="scripted",finished_reason="length"}`:          "2",
			`vllm:cache_config_info{engine="0",model_name="scripted",block_size="16",num_gpu_blocks="4096"}`: "1",
		} {
			if got := value(t, text, series); got != want {
				t.Errorf("%s is %s, want %s", series, got, want)
			}
		}
	})
	t.Run("ranks", func(t *testing.T) {
		e := NewTest(t, func(o *Options) { o.Ranks = 2 }, func(o *Options) { o.Script = nil })
		if err := e.SetScript(&Script{Rules: []Rule{{Match: Match{Body: "slow"}, Do: Action{Generate: &Generate{FirstToken: Duration(time.Hour)}}}}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := post(ctx, t, client(t), e.URL()+"/v1/completions", `{"prompt":"slow"}`, "X-Data-Parallel-Rank", "1")
			if err == nil {
				_ = resp.Body.Close()
			}
		}()
		for e.Load().Running == 0 {
			time.Sleep(time.Millisecond)
		}
		_, text := get(t, e, "GET", "/metrics", "")
		if value(t, text, running(0)) != "0" || value(t, text, running(1)) != "1" {
			t.Errorf("%s", text)
		}
		// The least loaded rank gets the next one.
		ask(t, e, "/v1/completions", `{"prompt":"fast"}`)
		ask(t, e, "/v1/completions", `{"prompt":"fast"}`)
		for _, r := range e.Records(0) {
			if strings.Contains(string(r.Body), "fast") && r.Rank != 0 {
				t.Errorf("%s went to rank %d", r.Body, r.Rank)
			}
		}
		cancel()
		<-done
	})
	t.Run("distorted", func(t *testing.T) {
		e := NewTest(t, YAML(`
metrics:
  omit: ["vllm:num_requests_waiting"]
  rename: {"vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc"}
  set: [{name: "vllm:num_requests_running", rank: 0, value: "NaN"}]
  stale: true`))
		_, first := get(t, e, "GET", "/metrics", "")
		ask(t, e, "/v1/chat/completions", chatBody)
		_, second := get(t, e, "GET", "/metrics", "")
		if first != second {
			t.Error("stale metrics changed")
		}
		if value(t, first, running(0)) != "NaN" || strings.Contains(first, "waiting") || !strings.Contains(first, "gpu_cache_usage_perc") {
			t.Errorf("%s", first)
		}
		if err := e.SetScript(&Script{Metrics: MetricsScript{Status: 500}}); err != nil {
			t.Fatal(err)
		}
		if status, _ := get(t, e, "GET", "/metrics", ""); status != 500 {
			t.Errorf("status %d", status)
		}
	})
}

func TestControl(t *testing.T) {
	e := NewTest(t)
	ask(t, e, "/v1/completions", `{"prompt":"remember me"}`)
	wait(t, e, func(c Counters, _ []Record) bool { return c.Served == 1 })
	status, body := get(t, e, "GET", "/scripted/record", "")
	var dump struct {
		Counters Counters `json:"counters"`
		Records  []Record `json:"records"`
	}
	if err := json.Unmarshal([]byte(body), &dump); status != 200 || err != nil {
		t.Fatalf("%d %v %s", status, err, body)
	}
	if r := dump.Records; len(r) != 1 || string(r[0].Body) != `{"prompt":"remember me"}` || r[0].Outcome != Served || r[0].Tokens != 16 || dump.Counters.Served != 1 {
		t.Errorf("%+v", dump)
	}
	if _, body := get(t, e, "GET", "/scripted/record?after=1", ""); strings.Contains(body, "remember") {
		t.Errorf("after=1 gives %s", body)
	}
	if status, _ := get(t, e, "POST", "/scripted/script", "rules: [{do: {error: {kind: busy}}}]"); status != 204 {
		t.Errorf("script: %d", status)
	}
	if status, _, _ := ask(t, e, "/v1/completions", `{"prompt":"x"}`); status != 503 {
		t.Errorf("the script is not in force: %d", status)
	}
	if status, body := get(t, e, "POST", "/scripted/script", "rulez: []"); status != 400 || !strings.Contains(body, `did you mean "rules"?`) {
		t.Errorf("bad script: %d %s", status, body)
	}
	wait(t, e, func(c Counters, _ []Record) bool { return c.InFlight == 0 })
	if status, _ := get(t, e, "DELETE", "/scripted/record", ""); status != 204 || len(e.Records(0)) != 0 || e.Counters().Received != 0 {
		t.Errorf("reset: %d, %+v", status, e.Counters())
	}
	if status, _ := get(t, e, "GET", "/scripted/nope", ""); status != 404 {
		t.Errorf("unknown: %d", status)
	}
	for name, header := range map[string][]string{
		"a web page":     {"Origin", "http://evil"},
		"a rebound name": {"Host", "evil.example:80"},
	} {
		if status, _ := get(t, e, "GET", "/scripted/record", "", header...); status != 403 {
			t.Errorf("%s: %d", name, status)
		}
	}
}

func TestRecordBounds(t *testing.T) {
	e := NewTest(t, func(o *Options) { o.Records, o.RecordBytes, o.MaxBody = 3, 100, 200 })
	for i := range 5 {
		ask(t, e, "/v1/completions", fmt.Sprintf(`{"prompt":"request %d %s"}`, i, strings.Repeat("x", 40)))
	}
	wait(t, e, func(c Counters, _ []Record) bool { return c.Served == 5 })
	r := e.Records(0)
	if len(r) != 3 || r[0].Seq != 3 || !r[0].BodyDropped || r[2].BodyDropped || e.Counters().Forgot != 2 {
		t.Errorf("%d records, %+v", len(r), e.Counters())
	}
	if status, body := get(t, e, "POST", "/v1/completions", strings.Repeat("x", 201)); status != 413 || !strings.Contains(body, "200 bytes") {
		t.Errorf("%d %s", status, body)
	}
}

// A virtual clock paces everything, and nothing else passes time.
func TestVirtualTime(t *testing.T) {
	c := clock.NewVirtual(time.Unix(1_800_000_000, 0))
	e := NewTest(t, YAML("rules: [{do: {delay: 1h, generate: {first_token: 1m, token: 1s}}}]"), func(o *Options) {
		o.Clock = c
		o.Timing = cost.EngineTime{PrefillBase: 10, DecodeBase: 5, RequestOverhead: 15}
		o.Speed = .5
	})
	ctx, cancel := context.WithCancel(t.Context())
	driven := make(chan struct{})
	go func() {
		defer close(driven)
		drive(ctx, c)
	}()
	ask(t, e, "/v1/completions", `{"prompt":"abc","max_tokens":4}`)
	wait(t, e, func(c Counters, _ []Record) bool { return c.Served == 1 })
	cancel()
	<-driven
	r := e.Records(0)[0]
	// The prompt's one token is computed when the first answer token is allowed.
	want := time.Hour + 30*time.Millisecond + time.Minute + 20*time.Millisecond + 3*(time.Second+10*time.Millisecond)
	if got := r.Ended.Sub(r.Time); got != want {
		t.Errorf("took %v, want %v", got, want)
	}
}

// listen subscribes to a rank's events.
func listen(t *testing.T, e *Engine, rank int) (*zmtp.Sub, *zmtp.Dealer) {
	t.Helper()
	pub, replay := e.EventsAddr(rank)
	o := zmtp.Options{ReconnectMin: 5 * time.Millisecond, ReconnectMax: 20 * time.Millisecond}
	sub, dealer := zmtp.NewSub(o, ""), zmtp.NewDealer(o)
	t.Cleanup(func() { _, _ = sub.Close(), dealer.Close() })
	if err := sub.Connect("tcp://" + pub); err != nil {
		t.Fatal(err)
	}
	if err := dealer.Connect("tcp://" + replay); err != nil {
		t.Fatal(err)
	}
	subscribed(t, e, rank)
	return sub, dealer
}

func subscribed(t *testing.T, e *Engine, rank int) {
	t.Helper()
	for e.current().publishers[rank].pub.Subscribers("") == 0 {
		time.Sleep(time.Millisecond)
	}
}

// receive takes n messages and returns their numbers and events.
func receive(t *testing.T, recv func(context.Context) (zmtp.Inbound, error), n int) (seqs []uint64, batches []kvevent.Batch) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range n {
		in, err := recv(ctx)
		if err != nil {
			t.Fatalf("%v after %v", err, seqs)
		}
		m, err := kvevent.ParseMessage(in.Frames)
		if err != nil {
			t.Fatal(err)
		}
		var b kvevent.Batch
		if len(m.Payload) > 0 && string(m.Payload) != "garbage" {
			if err := b.Decode(m.Payload); err != nil {
				t.Fatal(err)
			}
		}
		seqs, batches = append(seqs, m.Seq), append(batches, b)
	}
	return seqs, batches
}

const publishing = "events: {publish: '127.0.0.1:0', replay: '127.0.0.1:0'%s}\n"

// block makes the engine store one block, unlike any other i's.
func store(t *testing.T, e *Engine, i int) {
	t.Helper()
	ask(t, e, "/v1/completions", completion(fmt.Sprintf("%064d", i), "1"))
}

// The events are the cache's, in every dialect.
func TestEvents(t *testing.T) {
	for _, dialect := range []string{"", ", format: array", ", format: array, hashes: bytes", ", outer_map: true, hashes: signed"} {
		t.Run(dialect, func(t *testing.T) {
			e := NewTest(t, YAML(fmt.Sprintf(publishing, dialect)), func(o *Options) { o.KVBlocks, o.MaxContext = 3, 48 })
			sub, _ := listen(t, e, 0)
			store(t, e, 1)
			_, b := receive(t, sub.Recv, 1)
			got := b[0].Events[0]
			want := kvevent.Event{
				Kind: kvevent.Stored, Hashes: []uint64{hashBlock(0, Tokenize(fmt.Sprintf("%064d", 1)))},
				Tokens: Tokenize(fmt.Sprintf("%064d", 1)), BlockTokens: 16, Medium: "GPU", Spec: "full_attention",
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			// Two longer ones, the second of which evicts.
			ask(t, e, "/v1/completions", completion(strings.Repeat("a", 128), "1"))
			ask(t, e, "/v1/completions", completion(strings.Repeat("b", 128), "1"))
			var removed int
			for removed == 0 {
				_, b := receive(t, sub.Recv, 1)
				for _, ev := range b[0].Events {
					if ev.Kind == kvevent.Removed {
						removed += len(ev.Hashes)
					}
				}
			}
			get(t, e, "POST", "/reset_prefix_cache", "")
			for {
				_, b := receive(t, sub.Recv, 1)
				if b[0].Events[0].Kind == kvevent.Cleared {
					break
				}
			}
		})
	}
}

func TestEventFaults(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         []uint64
	}{
		{"drop", ", drop: [1]", []uint64{0, 2, 3}},
		{"swap", ", swap: [1]", []uint64{0, 2, 1, 3}},
		{"repeat", ", repeat: [1]", []uint64{0, 1, 1, 2, 3}},
		{"renumber", ", restart_at: 2", []uint64{0, 1, 0, 1}},
		{"garbage", ", garbage: [1]", []uint64{0, 1, 2, 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := NewTest(t, YAML(fmt.Sprintf(publishing, tt.script)))
			sub, _ := listen(t, e, 0)
			for i := range 4 {
				store(t, e, i)
			}
			if got, _ := receive(t, sub.Recv, len(tt.want)); cmp.Diff(tt.want, got) != "" {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestReplay(t *testing.T) {
	const end = kvevent.EndOfReplay
	for _, tt := range []struct {
		name, script string
		frames       int
		want         []uint64
	}{
		{"from the first", "", 4, []uint64{1, 2, 3, end}},
		{"two frames", ", replay_frames: 2", 3, []uint64{1, 2, 3, end}},
		{"dropped live only", ", drop: [2]", 4, []uint64{1, 2, 3, end}},
		{"forgotten", ", forget: [2]", 4, []uint64{1, 3, end}},
		{"short memory", ", buffer: 1", 4, []uint64{3, end}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := NewTest(t, YAML(fmt.Sprintf(publishing, tt.script)))
			for i := range 4 {
				store(t, e, i)
			}
			_, dealer := listen(t, e, 0)
			if err := dealer.Send(t.Context(), kvevent.Replay(1)...); err != nil {
				t.Fatal(err)
			}
			got, _ := receive(t, func(ctx context.Context) (zmtp.Inbound, error) {
				in, err := dealer.Recv(ctx)
				if err == nil && len(in.Frames) != tt.frames {
					t.Errorf("%d frames", len(in.Frames))
				}
				return in, err
			}, len(tt.want))
			if cmp.Diff(tt.want, got) != "" {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// A restarted engine publishes at the same address from 0, and with another
// seed names the same blocks differently.
func TestEventsAfterRestart(t *testing.T) {
	hashes := map[uint64]uint64{}
	for _, seed := range []uint64{0, 7} {
		e := NewTest(t, YAML(fmt.Sprintf(publishing, "")), func(o *Options) { o.HashSeed = seed })
		sub, _ := listen(t, e, 0)
		for range 2 {
			store(t, e, 1)
			seqs, b := receive(t, sub.Recv, 1)
			if seqs[0] != 0 {
				t.Errorf("first number %d", seqs[0])
			}
			hashes[seed] = b[0].Events[0].Hashes[0]
			if err := e.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			subscribed(t, e, 0)
		}
	}
	if hashes[0] == hashes[7] {
		t.Error("the seed has no effect")
	}
}

// Each rank has its own events; one that connects is found too.
func TestEventsOfRanks(t *testing.T) {
	sub := zmtp.NewSub(zmtp.Options{}, "kv@")
	defer func() { _ = sub.Close() }()
	addr, err := sub.Bind(t.Context(), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimSuffix(addr.String(), "/")
	e := NewTest(t, YAML(fmt.Sprintf("events: {publish: '%s', connect: true, topic: 'kv@x'}", host)))
	subscribed2 := func() bool { return e.current().publishers[0].pub.Subscribers("kv@x") > 0 }
	for !subscribed2() {
		time.Sleep(time.Millisecond)
	}
	store(t, e, 1)
	if seqs, b := receive(t, sub.Recv, 1); seqs[0] != 0 || b[0].Rank != 0 {
		t.Errorf("%v %+v", seqs, b)
	}

	two := NewTest(t, YAML(fmt.Sprintf(publishing, "")), func(o *Options) { o.Ranks = 2 })
	second, _ := listen(t, two, 1)
	ask(t, two, "/v1/completions", completion(longPrompt, "1"), "X-Data-Parallel-Rank", "1")
	if _, b := receive(t, second.Recv, 1); b[0].Rank != 1 {
		t.Errorf("%+v", b)
	}
}
