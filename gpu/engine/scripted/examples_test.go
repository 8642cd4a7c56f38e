package scripted

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

const examples = "../../../examples/scripted"

// startExample plays an example; its fixed ports become free ones.
func startExample(t *testing.T, name string) *Engine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(examples, name))
	if err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer(":5557", ":0", ":6557", ":0").Replace(string(text))
	s, err := ParseScript(name, []byte(script))
	if err != nil {
		t.Fatal(err)
	}
	return NewTest(t, func(o *Options) { o.Script = s })
}

// streamOf is the events of one stream, and how it ended.
func streamOf(t *testing.T, e *Engine) ([]string, error) {
	t.Helper()
	resp, err := post(t.Context(), t, client(t), e.URL()+"/v1/chat/completions", streamed(chatBody))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return events(t, resp.Body)
}

// Each example does what its first lines say.
func TestExamples(t *testing.T) {
	t.Parallel()
	checks := map[string]func(t *testing.T, e *Engine){
		"byte-exact.yaml": func(t *testing.T, e *Engine) {
			d, err := streamOf(t, e)
			if err != nil || len(d) != 3 || !strings.Contains(d[0], `"hé"`) || d[2] != "[DONE]" {
				t.Errorf("%q, %v", d, err)
			}
		},
		"hung.yaml": func(t *testing.T, e *Engine) {
			conn := dial(t, e)
			sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"a"}`)
			wait(t, e, func(_ Counters, r []Record) bool { return len(r) == 1 && r[0].Rule == "accept, then hang" })
			if status, _ := get(t, e, "GET", "/health", ""); status != 200 {
				t.Errorf("health %d", status)
			}
		},
		"wedged.yaml": func(t *testing.T, e *Engine) {
			conn := dial(t, e)
			sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"a","stream":true}`)
			for e.Load().OutputTokens < 3 {
				time.Sleep(time.Millisecond)
			}
			if l := e.Load(); l.Running != 1 || l.OutputTokens != 3 {
				t.Errorf("%+v", l)
			}
		},
		"flaky.yaml": func(t *testing.T, e *Engine) {
			seen := map[string]bool{}
			for range 34 {
				_, _ = streamOf(t, e)
			}
			wait(t, e, func(c Counters, _ []Record) bool { return c.InFlight == 0 })
			for _, r := range e.Records(0) {
				seen[r.Rule] = true
			}
			if len(seen) != 6 {
				t.Errorf("rules seen: %v", seen)
			}
		},
		"slow-8b.yaml": func(t *testing.T, e *Engine) {
			if _, _, a := ask(t, e, "/v1/completions", `{"prompt":"a","max_tokens":4,"ignore_eos":true}`); a.Usage.Completion != 4 {
				t.Errorf("%+v", a)
			}
			wait(t, e, func(c Counters, _ []Record) bool { return c.Served == 1 })
			// 15 ms for the request, 8.6 ms of prefill, three decode steps of 7.9 ms.
			if r := e.Records(0)[0]; r.Ended.Sub(r.Time) < 47*time.Millisecond {
				t.Errorf("took only %v", r.Ended.Sub(r.Time))
			}
		},
		"ranks.yaml": func(t *testing.T, e *Engine) {
			_, text := get(t, e, "GET", "/metrics", "")
			if !strings.Contains(text, `running{engine="0",model_name="scripted"} NaN`) || !strings.Contains(text, `running{engine="1",model_name="scripted"} 50`) {
				t.Error(text)
			}
		},
		"usage.yaml": func(t *testing.T, e *Engine) {
			if d, _ := streamOf(t, e); !strings.Contains(d[len(d)-2], `"total_tokens":3`) || !strings.Contains(d[len(d)-2], `"finish_reason":"length"`) {
				t.Errorf("%q", d)
			}
			if _, _, a := ask(t, e, "/v1/chat/completions", chatBody); a.Usage != nil {
				t.Errorf("%+v", a.Usage)
			}
		},
		"kv-events.yaml": func(t *testing.T, e *Engine) {
			sub, _ := listen(t, e, 0)
			for i := range 12 {
				store(t, e, i)
			}
			seqs, _ := receive(t, sub.Recv, 10)
			if want := []uint64{0, 1, 4, 6, 5, 7, 8, 9, 0, 1}; len(seqs) != 10 || seqs[3] != want[3] || seqs[8] != 0 {
				t.Errorf("%v, want %v", seqs, want)
			}
		},
		"transfer-vllm.yaml": func(t *testing.T, e *Engine) {
			status, a := nixl(t, NewTest(t), e, "another prompt", func(map[string]any) {})
			if status != 200 || a.Usage.Details.Cached <= a.Usage.Prompt {
				t.Errorf("%d %+v", status, a)
			}
		},
		"transfer-faults.yaml": func(t *testing.T, e *Engine) {
			p := NewTest(t)
			var outcomes []string
			for i := range 4 {
				id := strings.Repeat("a", i+1)
				ask(t, p, "/v1/completions", completion(longPrompt, "1"), hosted(engine.Prefill, id, e)...)
				_, h, _ := ask(t, e, "/v1/completions", completion(longPrompt, "2"), hosted(engine.Decode, id, p)...)
				outcomes = append(outcomes, h.Get(engine.HeaderKV))
			}
			if got := strings.Join(outcomes, ", "); got != "moved, moved, recomputed; checksum, moved" {
				t.Error(got)
			}
		},
		"restart.yaml": func(t *testing.T, e *Engine) {
			if status, _ := get(t, e, "GET", "/health", ""); status != 503 {
				t.Errorf("health %d", status)
			}
			for range 9 {
				ask(t, e, "/v1/completions", `{"prompt":"a"}`)
			}
			if err := exchangeRaw(t, e, http.MethodPost, "/v1/completions", `{"prompt":"a"}`); err == nil {
				t.Error("the tenth request was answered")
			}
			for !e.Running() {
				time.Sleep(5 * time.Millisecond)
			}
		},
	}
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	if err != nil || len(files) != len(checks) {
		t.Fatalf("%d examples, %d checks, %v", len(files), len(checks), err)
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, startExample(t, name))
		})
	}
}

// The script reference names every key.
func TestReferenceIsComplete(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range scriptKeys() {
		if !strings.Contains(string(text), "`"+key+"`") {
			t.Errorf("DESIGN.md does not explain %q", key)
		}
	}
}
