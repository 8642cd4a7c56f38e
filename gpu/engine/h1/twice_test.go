package h1

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
)

// However many idle connections there are, a request that gets no byte in answer
// leaves twice at most.
func TestARequestLeavesTwiceAtMost(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it asks nobody
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // the end
	var seen atomic.Int32
	var cutting atomic.Bool
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // cut
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					seen.Add(1)
					if cutting.Load() {
						return
					}
					time.Sleep(50 * time.Millisecond) // so that several are open at once
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
				}
			}()
		}
	}()
	c := New(ln.Addr().String(), Config{MaxIdle: 8, Idle: time.Minute})
	defer c.Close()
	request := &Request{Target: "/", Host: "x", Body: []byte("{}")}
	done := make(chan error)
	for range 4 {
		go func() {
			resp, err := c.Post(t.Context(), request)
			if err == nil {
				_, err = io.Copy(io.Discard, resp)
				err = errors.Join(err, resp.Close())
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	cutting.Store(true)
	seen.Store(0)
	if _, err := c.Post(t.Context(), request); !errors.Is(err, engine.ErrBroken) {
		t.Errorf("err = %v, want ErrBroken", err)
	}
	if n := seen.Load(); n != 2 {
		t.Errorf("the request left %d times, want 2", n)
	}
}
