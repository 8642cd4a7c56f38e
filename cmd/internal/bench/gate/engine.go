package gate

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"
)

// mock is an engine that generates as many events as max_tokens says, pace
// apart.
type mock struct {
	addr string
	http *http.Server
	done sync.WaitGroup
	pace atomic.Int64 // nanoseconds
	sent atomic.Int64 // bytes of streams
}

const (
	modelName = "mock"
	// bulkEvents asks for a stream of 64 MB in events of bulkBytes each.
	bulkEvents = 4096
	bulkBytes  = 16 << 10
)

func startEngine() (*mock, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once or not at all
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e := &mock{addr: l.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"`+modelName+`","object":"model"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", e.chat)
	e.http = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	e.done.Go(func() { _ = e.http.Serve(l) })
	return e, nil
}

func (e *mock) url() string { return "http://" + e.addr }

func (e *mock) close() {
	_ = e.http.Close()
	e.done.Wait()
}

const (
	wholeAnswer = `{"id":"x","object":"chat.completion","model":"mock","choices":[{"index":0,"message":{"role":"assistant","content":"word"},"finish_reason":"stop"}],"usage":{"prompt_tokens":8,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}`
	chunkHead   = `data: {"id":"x","object":"chat.completion.chunk","model":"mock","choices":[{"index":0,"delta":{"content":"`
	chunkTail   = `"},"finish_reason":null}]}` + "\n\n"
	lastEvents  = `data: {"id":"x","object":"chat.completion.chunk","model":"mock","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
)

func (e *mock) chat(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	// What is asked for stands before the prompt; a large prompt is not searched.
	ask := gjson.ParseBytes(append(b[:min(len(b), strings.Index(string(b[:min(len(b), 512)]), `"messages"`))], `"end":0}`...))
	if !ask.Get("stream").Bool() {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, wholeAnswer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	n := int(ask.Get("max_tokens").Int())
	event := chunkHead + "word" + chunkTail
	if n == bulkEvents {
		event = chunkHead + strings.Repeat("x", bulkBytes) + chunkTail
	}
	e.stream(r, control, w, n, event)
}

func (e *mock) stream(r *http.Request, control *http.ResponseController, w io.Writer, n int, event string) {
	pace := time.Duration(e.pace.Load())
	var tick *time.Ticker
	if pace > 0 {
		tick = time.NewTicker(pace)
		defer tick.Stop()
	}
	for i := range n {
		if i > 0 && tick != nil {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
		}
		if _, err := io.WriteString(w, event); err != nil {
			return
		}
		if control.Flush() != nil {
			return
		}
		e.sent.Add(int64(len(event)))
	}
	_, _ = io.WriteString(w, lastEvents)
}
