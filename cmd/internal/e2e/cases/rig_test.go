package cases

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/cmd/internal/scrape"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/eventstream"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// patience is how long a test waits for what must come true, however busy the
// machine.
const patience = 30 * time.Second

// gateway is a gateway on a real socket, and a client of it.
type gateway struct {
	*assemble.Gateway
	t      *testing.T
	client *http.Client
	logs   *journal
}

// defaults are the settings of a gateway that nobody has configured, on a free
// port.
func defaults(t *testing.T) config.Gateway {
	t.Helper()
	e, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	c := e.Config.Gateway
	c.Listen, c.Admin = "127.0.0.1:0", ""
	c.UnreadyTime = 0 // no load balancer has to notice
	return c
}

// serve starts a gateway in front of engines, as `yardmaster gateway --engine`
// does. It ends with the test, which fails if anything is left in flight.
func serve(t *testing.T, engines []*scripted.Engine, change ...func(*config.Gateway)) *gateway {
	t.Helper()
	c := defaults(t)
	for _, e := range engines {
		c.Engines = append(c.Engines, e.URL())
	}
	for _, f := range change {
		f(&c)
	}
	logs := &journal{}
	g, err := assemble.StartStaticGateway(t.Context(), logs.process(), &config.Config{Gateway: c})
	if err != nil {
		t.Fatal(err)
	}
	return newGateway(t, g, logs)
}

// serveFleet starts a gateway in front of workers that a test registers itself.
func serveFleet(t *testing.T, f assemble.Fleet, change ...func(*config.Gateway)) *gateway {
	t.Helper()
	c := defaults(t)
	for _, f := range change {
		f(&c)
	}
	logs := &journal{}
	g, err := assemble.StartGateway(t.Context(), logs.process(), c, f)
	if err != nil {
		t.Fatal(err)
	}
	return newGateway(t, g, logs)
}

func newGateway(t *testing.T, started *assemble.Gateway, logs *journal) *gateway {
	g := &gateway{Gateway: started, t: t, client: newClient(t), logs: logs}
	t.Cleanup(func() {
		if !t.Failed() {
			g.idle()
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			logs.show(t)
		}
	})
	return g
}

func newClient(t *testing.T) *http.Client {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// one is an engine with a script, several are n of them.
func one(t *testing.T, script string) *scripted.Engine {
	t.Helper()
	return scripted.NewTest(t, scripted.YAML(script))
}

func several(t *testing.T, n int, script string) []*scripted.Engine {
	t.Helper()
	out := make([]*scripted.Engine, n)
	for i := range out {
		out[i] = one(t, script)
	}
	return out
}

// play changes an engine's script.
func play(t *testing.T, e *scripted.Engine, script string) {
	t.Helper()
	s, err := scripted.ParseScript("script", []byte(script))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.SetScript(s); err != nil {
		t.Fatal(err)
	}
}

// idle waits until nothing is in flight any more, in any count.
func (g *gateway) idle() {
	g.t.Helper()
	eventually(g.t, "nothing is in flight", func() bool {
		return g.Load().InFlight() == 0 && g.metric(measure.RequestsInFlight) == 0 && g.metric(measure.WorkerInFlight) == 0
	})
}

// metrics is a scrape of the gateway.
func (g *gateway) metrics() scrape.Metrics {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // also in cleanups
	defer cancel()
	m, err := scrape.Read(ctx, g.client, g.URL())
	if err != nil {
		g.t.Error(err)
	}
	return m
}

// metric sums a family's series that have all the given label values.
func (g *gateway) metric(d measure.Desc, values ...string) float64 {
	g.t.Helper()
	return g.metrics().Sum(d, values...)
}

// eventually waits for what must come true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// until waits for an engine's records.
func until(t *testing.T, e *scripted.Engine, what string, ok func(scripted.Counters, []scripted.Record) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := e.Await(ctx, ok); err != nil {
		t.Fatalf("the engine never saw it: %s: %+v", what, e.Counters())
	}
}

// asked are the records of requests that generate.
func asked(e *scripted.Engine) (out []scripted.Record) {
	for _, r := range e.Records(0) {
		if r.Method == http.MethodPost {
			out = append(out, r)
		}
	}
	return out
}

// reply is what a client made of a response.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of the connection, before or within the response
}

// The ends of a stream, as a client library sees them.
const (
	whole  = "whole"             // complete, with its end marker
	failed = "error event"       // an error event, then a broken connection
	cut    = "cut"               // a broken connection
	hung   = "hung"              // nothing more, for as long as the test was patient
	lie    = "clean and partial" // ends cleanly without its end marker: taken for success
)

// end judges a stream as the official clients do.
func (r reply) end() string {
	events := r.events()
	switch {
	case len(events) > 0 && events[len(events)-1] == "[DONE]":
		return whole
	case len(events) > 0 && gjson.Get(events[len(events)-1], "error.message").Exists() && r.err != nil:
		return failed
	case errors.Is(r.err, context.DeadlineExceeded):
		return hung
	case r.err != nil:
		return cut
	}
	return lie
}

// events are the data of the stream's events.
func (r reply) events() []string { return eventsOf(strings.NewReader(r.body)) }

func eventsOf(src io.Reader) (out []string) {
	reader := eventstream.NewReader(nil, 64<<20)
	for {
		err := reader.Fill(src)
		for e, ok := reader.Next(); ok; e, ok = reader.Next() {
			if e.Data != nil {
				out = append(out, string(e.Data))
			}
		}
		if err != nil {
			return out
		}
	}
}

// text is what a stream or a whole answer says.
func (r reply) text() string {
	if gjson.Valid(r.body) {
		return gjson.Get(r.body, "choices.0.message.content").Str + gjson.Get(r.body, "choices.0.text").Str
	}
	var b strings.Builder
	for _, e := range r.events() {
		b.WriteString(gjson.Get(e, "choices.0.delta.content").Str + gjson.Get(e, "choices.0.text").Str)
	}
	return b.String()
}

const chatPath, completionPath = "/v1/chat/completions", "/v1/completions"

// A question in the four forms that matter.
const (
	chat      = `{"model":"scripted","messages":[{"role":"user","content":"hello there"}]}`
	chatSSE   = `{"model":"scripted","stream":true,"messages":[{"role":"user","content":"hello there"}]}`
	prompt    = `{"model":"scripted","prompt":"hello there","max_tokens":8}`
	promptSSE = `{"model":"scripted","stream":true,"prompt":"hello there","max_tokens":8}`
)

// open sends a request and returns when the headers of the answer are there.
// The caller closes the body.
func (g *gateway) open(ctx context.Context, path, body string, headers ...string) (*http.Response, error) {
	return send(ctx, g.client, g.URL()+path, body, headers...)
}

func send(ctx context.Context, c *http.Client, url, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return c.Do(req)
}

// ask sends a request and reads the answer to its end.
func (g *gateway) ask(path, body string, headers ...string) reply {
	return ask(g.t.Context(), g.client, g.URL()+path, body, headers...)
}

// ask gives up when the test's patience ends: then the reply has that error.
func ask(ctx context.Context, c *http.Client, url, body string, headers ...string) reply {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := send(ctx, c, url, body, headers...)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(text), err: err}
}

// at is a client that gives up at ctx's end.
func (g *gateway) at(ctx context.Context, path, body string, headers ...string) reply {
	return ask(ctx, g.client, g.URL()+path, body, headers...)
}

// together asks n questions at once and returns the answers in order.
func together(n int, question func(i int) reply) []reply {
	out := make([]reply, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { out[i] = question(i) })
	}
	all.Wait()
	return out
}

// lanes asks n questions, width at a time.
func lanes(n, width int, question func(i int) reply) []reply {
	out := make([]reply, n)
	next := make(chan int)
	var all sync.WaitGroup
	for range width {
		all.Go(func() {
			for i := range next {
				out[i] = question(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return out
}

// good reports whether r is a complete answer.
func (r reply) good() bool {
	if r.status != http.StatusOK || r.err != nil {
		return false
	}
	return gjson.Valid(r.body) || r.end() == whole
}

// wantGood fails the test for every answer that is not complete.
func wantGood(t *testing.T, replies ...reply) {
	t.Helper()
	bad := 0
	for i, r := range replies {
		if r.good() {
			continue
		}
		if bad++; bad <= 3 {
			t.Errorf("answer %d of %d: status %d, err %v, %s", i, len(replies), r.status, r.err, r.body[:min(len(r.body), 300)])
		}
	}
	if bad > 3 {
		t.Errorf("%d of %d answers are bad", bad, len(replies))
	}
}

// wantRefusal fails the test unless r is an error in OpenAI's shape with that
// status.
func wantRefusal(t *testing.T, r reply, status int) {
	t.Helper()
	e := gjson.Get(r.body, "error")
	if r.err != nil || r.status != status || !proper(e) {
		t.Errorf("status %d, want %d with a proper error; err %v, %s", r.status, status, r.err, r.body[:min(len(r.body), 300)])
	}
}

// proper reports whether e is the inside of OpenAI's error envelope.
func proper(e gjson.Result) bool {
	return e.Get("message").Str != "" && e.Get("type").Str != "" && e.Get("code").Type == gjson.String && e.Get("param").Exists()
}

// journal keeps what a process said.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String is all that was said.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func (j *journal) show(t *testing.T) {
	text := j.String()
	const most = 2 << 10
	t.Logf("what the process said last:\n%s", text[max(0, len(text)-most):])
}

func (j *journal) process() assemble.Process {
	return assemble.NewProcess("test", slog.New(slog.NewJSONHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug})))
}
