package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/scrape"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/eventstream"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf/gguftest"
	"github.com/yardmaster/yardmaster/gpu/launch"
)

// stack is a running system: planner and gateways in the test's process,
// workers as children of the built binary, on a small generated model.
type stack struct {
	*assemble.Dev                   // its gateway disaggregates whatever it can
	aggregating   *assemble.Gateway // never disaggregates; the same fleet
	counts        *measure.Registry // of the aggregating gateway
	process       assemble.Process
	logs          *journal
}

// journal keeps what processes said, to be shown when a test fails.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// says reports whether the journal has the words.
func (j *journal) says(words string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return bytes.Contains(j.text.Bytes(), []byte(words))
}

// show prints the end of the journal.
func (j *journal) show(t *testing.T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	const most = 16 << 10
	text := j.text.Bytes()
	t.Logf("what the processes said last:\n%s", text[max(0, len(text)-most):])
}

const contextTokens = 2048

func settings(t *testing.T) *config.Config {
	t.Helper()
	e, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	e.Config.Gateway.Listen = "127.0.0.1:0"
	e.Config.Dev.Threads = 1
	return &e.Config
}

// startStack starts the workers (by default one for each phase) and both
// gateways. They end with the test.
func startStack(t *testing.T, workers ...assemble.DevWorker) *stack {
	t.Helper()
	s := &stack{logs: &journal{}}
	t.Cleanup(func() {
		if t.Failed() {
			s.logs.show(t)
		}
	})
	s.process = assemble.NewProcess("test", slog.New(slog.NewTextHandler(s.logs, nil)))
	c := settings(t)
	var err error
	s.Dev, err = assemble.StartDev(t.Context(), s.process, c, assemble.DevOptions{
		Executable: binary, Engine: "cpu", Output: s.logs, Workers: workers,
		Model:       gguftest.TinyModelFile(t, 1, gguftest.Options{Context: contextTokens, Layers: 4}),
		Supervision: launch.Options{FirstPause: 5 * time.Millisecond, LongestPause: 5 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	c.Gateway.Disaggregate = "never"
	own := s.process
	own.Registry = &measure.Registry{}
	s.counts = own.Registry
	s.aggregating, err = assemble.StartGateway(t.Context(), own, c.Gateway, s.Planner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.aggregating.Close(ctx); err != nil {
			t.Errorf("close the second gateway: %v", err)
		}
	})
	return s
}

// prompt is n bytes of made-up text: as many tokens of the generated model.
func prompt(random *rand.Rand, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz ,."
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[random.IntN(len(letters))]
	}
	return string(b)
}

// answer is what a client made of a response.
type answer struct {
	status int
	text   string
	path   string // x-yardmaster-path
	whole  bool   // the end marker came
	fault  string // type or code of the API's error, as body or as event
	err    error  // of the connection
}

// proper reports whether a client can tell what it got: a whole answer, or an
// error that the API typed. A stream that just ends is neither.
func (a *answer) proper() bool { return a.whole || a.fault != "" }

// client keeps one pool per test, so that a test's connections end with it.
func client(t *testing.T) *http.Client {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// complete asks for a greedy completion and reads the stream to its end.
func complete(ctx context.Context, c *http.Client, url, model, prompt string, tokens int) answer {
	return completeAs(ctx, c, url, model, prompt, tokens, true)
}

// completeAs asks for a greedy completion, as a stream or whole.
func completeAs(ctx context.Context, c *http.Client, url, model, prompt string, tokens int, stream bool) answer {
	body, err := json.Marshal(map[string]any{
		"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream, "ignore_eos": true,
	})
	if err != nil {
		return answer{err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Yardmaster-Explain", "1")
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	a := answer{status: resp.StatusCode, path: resp.Header.Get("X-Yardmaster-Path")}
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		a.err = err
		a.fault = gjson.GetBytes(text, "error.type").Str
		return a
	}
	if !stream {
		text, err := io.ReadAll(resp.Body)
		a.err, a.whole, a.text = err, err == nil && gjson.ValidBytes(text), gjson.GetBytes(text, "choices.0.text").Str
		return a
	}
	a.readStream(resp.Body)
	return a
}

func (a *answer) readStream(body io.Reader) {
	reader := eventstream.NewReader(nil, 1<<20)
	var text strings.Builder
	defer func() { a.text = text.String() }()
	for {
		err := reader.Fill(body)
		for e, ok := reader.Next(); ok; e, ok = reader.Next() {
			if bytes.Equal(e.Data, []byte("[DONE]")) {
				a.whole = true
				continue
			}
			if fault := gjson.GetBytes(e.Data, "error"); fault.Exists() {
				a.fault = fault.Get("type").Str
			}
			text.WriteString(gjson.GetBytes(e.Data, "choices.0.text").Str)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.err = err
			}
			return
		}
	}
}

// metric is the sum of a family's series on a process's /metrics that have all
// of the given label values.
func metric(t *testing.T, c *http.Client, url string, d measure.Desc, values ...string) float64 {
	t.Helper()
	m, err := scrape.Read(t.Context(), c, url)
	if err != nil {
		t.Fatal(err)
	}
	return m.Sum(d, values...)
}

// eventually waits for what must come true, however busy the machine.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// idle checks that nothing is left of any request: gauges at zero, every KV
// block free.
func (s *stack) idle(t *testing.T, c *http.Client) {
	t.Helper()
	for _, g := range []*assemble.Gateway{s.Gateway, s.aggregating} {
		eventually(t, "a gateway has nothing in flight", func() bool {
			return g.Load().InFlight() == 0 && metric(t, c, g.URL(), measure.RequestsInFlight) == 0 &&
				metric(t, c, g.URL(), measure.WorkerInFlight) == 0
		})
	}
	for _, child := range s.Children() {
		w, ok := s.Worker(fleet.WorkerID(child.Name()))
		if !ok {
			t.Fatalf("%s is not registered", child.Name())
		}
		var held string
		eventually(t, child.Name()+" holds nothing", func() bool {
			used := metric(t, c, w.URL, measure.KVBlocksUsed)
			free := metric(t, c, w.URL, measure.KVBlocksFree)
			running := metric(t, c, w.URL, measure.EngineRunning) + metric(t, c, w.URL, measure.EngineWaiting)
			held = fmt.Sprintf("used %v, free %v of %v, running %v", used, free, w.Capacity.KVBlocks, running)
			return used == 0 && running == 0 && free == float64(w.Capacity.KVBlocks)
		})
		t.Logf("%s: %s", child.Name(), held)
	}
}
