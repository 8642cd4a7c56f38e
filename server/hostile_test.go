package server_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
)

func (r *rig) dial() net.Conn {
	r.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(r.t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(soon))
	return conn
}

// Clients that never send the rest of their bodies keep nobody out: they take no
// place among the requests in flight, and no memory for what they only claim.
func TestHalfSentBodiesKeepNobodyOut(t *testing.T) {
	const few, many = 2, 30
	r := newRig(t, rigConfig{dispatch: dispatch.Config{Admit: admit.Config{MaxInFlight: few, MaxBodyBytes: 4 << 20}}})
	r.worker("w", fleet.RoleBoth, serve)
	for i := range many {
		framing := "Content-Length: 60000000\r\n\r\n{"
		if i%2 > 0 {
			framing = "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
		}
		_, _ = io.WriteString(r.dial(), "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+framing)
	}
	for deadline := time.Now().Add(soon); r.registry.Gauge(measure.RequestsInFlight).Value() < many; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("they did not all come in")
		}
	}
	for range 2 * few {
		if status, _, body, err := r.chat(plainBody); status != 200 || err != nil {
			t.Errorf("an honest client got status %d, %s, %v", status, body, err)
		}
	}
}

// A body that cannot be read as chunks is the client's fault, and the client is
// told before the connection ends.
func TestBrokenChunksAreRefused(t *testing.T) {
	r := newRig(t, rigConfig{})
	r.worker("w", fleet.RoleBoth, serve)
	for _, chunks := range []string{"zz\r\n", "-1\r\n{}\r\n", "2\r\n{}}}\r\n0\r\n\r\n", "fffffffffffffffff\r\n", ";\r\n", "2;" + strings.Repeat("x", 8<<10) + "\r\n"} {
		conn := r.dial()
		_, _ = io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
		answer, err := io.ReadAll(conn) // what was sent and not read may reset the connection after it
		if !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") || !strings.Contains(string(answer), "bad_chunks") {
			t.Errorf("%.20q: %q, %v", chunks, answer, err)
		}
	}
	r.idle()
}
