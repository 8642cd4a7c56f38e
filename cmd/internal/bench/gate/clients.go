package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/gpu/engine/h1"
)

// clients call one server over connections they keep.
type clients struct {
	addr string
	http *h1.Client
}

func newClients(addr string) *clients {
	return &clients{addr, h1.New(addr, h1.Config{MaxIdle: 4096, Idle: time.Minute})}
}

func (c *clients) close() { c.http.Close() }

// statusError is an answer that was not 200.
type statusError int

func (e statusError) Error() string { return "status " + strconv.Itoa(int(e)) }

func isStatus(err error, status int) bool {
	e, ok := errors.AsType[statusError](err)
	return ok && int(e) == status
}

func (c *clients) open(ctx context.Context, body []byte) (*h1.Response, error) {
	resp, err := c.http.Post(ctx, &h1.Request{
		Target: "/v1/chat/completions", Host: c.addr, Head: []byte("Content-Type: application/json\r\n"), Body: body,
	})
	if err != nil {
		return nil, err
	}
	if resp.Status != 200 {
		_, _ = io.Copy(io.Discard, resp)
		_ = resp.Close()
		return nil, statusError(resp.Status)
	}
	return resp, nil
}

// post sends body and reads the answer; arrived, unless nil, is called at each
// piece of it.
func (c *clients) post(ctx context.Context, body []byte, arrived func()) error {
	resp, err := c.open(ctx, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Close() }()
	var b [2048]byte
	for {
		n, err := resp.Read(b[:])
		if n > 0 && arrived != nil {
			arrived()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// stall opens a stream, reads nothing of it for a while and leaves.
func (c *clients) stall(ctx context.Context, body []byte, d time.Duration) error {
	resp, err := c.open(ctx, body)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return resp.Close()
}

// body is a short chat request. Each i has a prompt of its own.
func body(i int, stream bool, tokens int) []byte {
	return request(stream, tokens, fmt.Sprintf("question %d about the number %d", i, i*7919))
}

// longBody is a streamed request with a prompt of size bytes.
func longBody(i, size, tokens int) []byte {
	text := fmt.Sprintf("document %d: ", i)
	return request(true, tokens, text+strings.Repeat("some words of a text ", size/21))
}

func request(stream bool, tokens int, text string) []byte {
	return fmt.Appendf(nil, `{"model":%q,"stream":%v,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`, modelName, stream, tokens, text)
}

// inParallel runs f for 0 to n-1 at once and returns one of the errors.
func inParallel(n int, f func(i int) error) error {
	failed := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { failed[i] = f(i) })
	}
	all.Wait()
	count := 0
	var first error
	for _, err := range failed {
		if err != nil {
			count++
			first = err
		}
	}
	if first != nil {
		return fmt.Errorf("%w: %d of %d: %w", ErrFailed, count, n, first)
	}
	return nil
}
