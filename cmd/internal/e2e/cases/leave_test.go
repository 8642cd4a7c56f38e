package cases

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// stages are the places where a request can be when its client leaves. Nothing
// ever moves on by itself in any of them, so an engine that is told only with
// the next token is never told.
var stages = []struct {
	name, script string
	stream       []bool
}{
	{"accepted", `rules: [{match: {route: /v1/chat*}, do: {hang: {when: before_headers}}}]`, []bool{false, true}},
	{"headers sent", `rules: [{match: {route: /v1/chat*}, do: {hang: {when: after_headers}}}]`, []bool{true}},
	{"queued in the engine", `
engine: {max_running: 1}
rules: [{match: {route: /v1/chat*}, do: {generate: {stall: {after: 0}}}}]`, []bool{false, true}},
	{"prefill", `rules: [{match: {route: /v1/chat*}, do: {generate: {first_token: 1h}}}]`, []bool{false, true}},
	{"between tokens", `rules: [{match: {route: /v1/chat*}, do: {generate: {tokens: 9, stall: {after: 3}}}}]`, []bool{false, true}},
	{"slow tokens", `rules: [{match: {route: /v1/chat*}, do: {generate: {tokens: 9, token: 1h}}}]`, []bool{false, true}},
	{"within an event", `rules: [{match: {route: /v1/chat*}, do: {cut: {at: 100, how: hang}}}]`, []bool{true}},
	{"within an answer", `rules: [{match: {route: /v1/chat*}, do: {cut: {at: 100, how: hang}}}]`, []bool{false}},
	{"in a refusal", `rules: [{match: {route: /v1/chat*}, do: {error: {kind: internal}, cut: {at: 10, how: hang}}}]`, []bool{false, true}},
}

// Case 1. Symptom: a client leaves and the engine computes to the end; counts
// stay up for ever. Right: wherever the request is, the engine is told at once,
// and every count returns to zero.
func TestAClientThatLeavesEndsItsWork(t *testing.T) {
	t.Parallel()
	ways := map[string]func(net.Conn){
		"closes": func(c net.Conn) { _ = c.Close() },
		"resets": func(c net.Conn) {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		},
	}
	for _, stage := range stages {
		for _, stream := range stage.stream {
			for way, leave := range ways {
				t.Run(fmt.Sprintf("%s/stream=%v/%s", stage.name, stream, way), func(t *testing.T) {
					t.Parallel()
					const clients = 20
					e := one(t, stage.script)
					g := serve(t, []*scripted.Engine{e})
					conns := make([]net.Conn, clients)
					for i := range conns {
						conns[i] = rawChat(t, g, stream)
					}
					until(t, e, "all requests", func(_ scripted.Counters, r []scripted.Record) bool { return posts(r) == clients })
					if stage.name == "between tokens" {
						eventually(t, "a token is out", func() bool { return e.Load().OutputTokens > 0 })
					}
					for _, c := range conns {
						leave(c)
					}
					until(t, e, "all aborted", func(c scripted.Counters, _ []scripted.Record) bool { return c.Aborted == clients })
					g.idle()
					eventually(t, "all counted as canceled", func() bool { return g.metric(measure.Requests, "canceled") == clients })
					eventually(t, "the engine computes nothing", func() bool {
						l := e.Load()
						return l.Running == 0 && l.Waiting == 0 && l.HeldBlocks == 0
					})
				})
			}
		}
	}
}

func posts(records []scripted.Record) (n int) {
	for i := range records {
		if records[i].Method == http.MethodPost {
			n++
		}
	}
	return n
}

// rawChat sends a chat request on a connection of its own.
func rawChat(t *testing.T, g *gateway, stream bool) net.Conn {
	t.Helper()
	body := chat
	if stream {
		body = chatSSE
	}
	return rawPost(t, g, chatPath, body)
}

func rawPost(t *testing.T, g *gateway, path, body string) net.Conn {
	t.Helper()
	c := dial(t, g.Addr())
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body); err != nil {
		t.Fatal(err)
	}
	return c
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Case 1, before the engine: a client that leaves while it sends its body, or
// asks nothing, costs nothing and reaches no engine.
func TestAClientThatLeavesInTheMiddleOfItsRequest(t *testing.T) {
	t.Parallel()
	e := one(t, "")
	g := serve(t, []*scripted.Engine{e})
	request := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(chat), chat)
	for at := 0; at < len(request); at += 7 {
		c := dial(t, g.Addr())
		if _, err := io.WriteString(c, request[:at]); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	g.idle()
	wantGood(t, g.ask(chatPath, chat))
	if n := len(asked(e)); n != 1 {
		t.Errorf("the engine saw %d requests, want the whole one only", n)
	}
}

// Case 1, with the official clients' way of leaving: the request's context ends
// while many share pooled connections, at any moment of the stream's life.
func TestClientsThatGiveUpAtAnyMoment(t *testing.T) {
	t.Parallel()
	e := one(t, `rules: [{match: {route: /v1/*}, do: {generate: {tokens: 40, token: 1ms}}}]`)
	g := serve(t, []*scripted.Engine{e})
	const clients = 120
	lanes(clients, 16, func(i int) reply {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond/2)
		defer cancel()
		return g.at(ctx, []string{chatPath, completionPath}[i%2], []string{chat, promptSSE, chatSSE, prompt}[i%4])
	})
	g.idle()
	until(t, e, "nothing in flight", func(c scripted.Counters, _ []scripted.Record) bool { return c.InFlight == 0 })
	wantGood(t, g.ask(chatPath, chatSSE))
}

// Measured of other gateways: a client that stops reading makes them buffer the
// whole stream (62 of 64 MB). Right: the engine is held back; the gateway holds
// a bounded buffer.
func TestAReaderThatStopsHoldsTheEngineBack(t *testing.T) {
	t.Parallel()
	const piece, pieces = 64 << 10, 1 << 10 // 64 MiB
	e := one(t, fmt.Sprintf(`
rules:
  - match: {route: /v1/chat*}
    do:
      respond:
        headers: {Content-Type: text/event-stream}
        parts: [{text: %q, repeat: %d}, {text: "data: [DONE]\n\n"}]`, bigEvent(piece), pieces))
	g := serve(t, []*scripted.Engine{e})
	var stalled sync.WaitGroup
	for range 4 {
		c := rawChat(t, g, true)
		stalled.Go(func() { // reads a little, then no more
			_, _ = io.ReadFull(c, make([]byte, 4<<10))
		})
	}
	stalled.Wait()
	sent := func() (n int) {
		for _, r := range asked(e) {
			n += r.Sent
		}
		return n
	}
	last := -1
	eventually(t, "the engine is held back", func() bool {
		time.Sleep(200 * time.Millisecond)
		now := sent()
		same := now == last
		last = now
		return same && now > 0
	})
	// What left the engine is in the buffers of six sockets each, a few megabytes
	// that the kernel bounds.
	if most := 4 * piece * pieces / 2; last > most {
		t.Errorf("%d bytes left the engine for readers that do not read", last)
	}
	wantGood(t, g.ask(completionPath, promptSSE))
}

// bigEvent is one chat event of about n bytes.
func bigEvent(n int) string {
	return `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("x", n) + `"},"finish_reason":null}]}` + "\n\n"
}
