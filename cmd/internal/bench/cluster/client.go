package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/gpu/engine/h1"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// tokenBytes is how long a token of the scripted engines is.
const tokenBytes = 4

// maxAnswer bounds an answer that is not streamed, and an event of a stream.
const maxAnswer = 1 << 20

// Errors of a request.
var (
	// ErrStatus means that the answer was not 200.
	ErrStatus = errors.New("cluster: refused")
	// ErrNotWhole means that an answer broke off, or lacks tokens.
	ErrNotWhole = errors.New("cluster: not whole")
)

// client calls one gateway over connections that it keeps. It does not go to
// another one.
type client struct {
	addr string
	http *h1.Client
}

func newClient(addr string) *client {
	return &client{addr, h1.New(addr, h1.Config{MaxIdle: 1024, Idle: 10 * time.Second, Connect: 10 * time.Second})}
}

func (c *client) close() { c.http.Close() }

// answer is what a request got.
type answer struct {
	worker         string
	prompt, cached int // tokens
}

// request is a prompt of text and how much is to be generated.
type request struct {
	prompt string // no character of it needs escaping
	tokens int
	stream bool
}

func (r *request) body() []byte {
	return fmt.Appendf(nil, `{"model":%q,"max_tokens":%d,"ignore_eos":true,"stream":%v,"prompt":"%s"}`, model, r.tokens, r.stream, r.prompt)
}

func (c *client) open(ctx context.Context, r *request) (*h1.Response, error) {
	resp, err := c.http.Post(ctx, &h1.Request{
		Target: "/v1/completions", Host: c.addr, Head: []byte("Content-Type: application/json\r\nX-Yardmaster-Explain: 1\r\n"), Body: r.body(),
	})
	if err != nil {
		return nil, err
	}
	if resp.Status != 200 {
		said, _ := io.ReadAll(io.LimitReader(resp, 1000)) // for the message only
		_ = resp.Close()
		return nil, fmt.Errorf("%w: status %d: %s", ErrStatus, resp.Status, bytes.TrimSpace(said))
	}
	return resp, nil
}

// ask sends a request and reads its whole answer.
func (c *client) ask(ctx context.Context, r request) (a answer, err error) {
	resp, err := c.open(ctx, &r)
	if err != nil {
		return a, err
	}
	defer resp.Close() //nolint:errcheck // all was read, or it failed
	body, err := io.ReadAll(io.LimitReader(resp, maxAnswer))
	if err != nil {
		return a, err
	}
	said := gjson.ParseBytes(body)
	if n := len(said.Get("choices.0.text").String()); n != tokenBytes*r.tokens {
		return a, fmt.Errorf("%w: %d bytes of %d tokens", ErrNotWhole, n, r.tokens)
	}
	usage := said.Get("usage")
	a.prompt, a.cached = int(usage.Get("prompt_tokens").Int()), int(usage.Get("prompt_tokens_details.cached_tokens").Int())
	a.worker = workerOf(resp.Header("X-Yardmaster-Path"))
	if a.worker == "" || a.prompt != scripted.Tokens(r.prompt) {
		return a, fmt.Errorf("%w: worker %q, %d tokens of the prompt", ErrNotWhole, a.worker, a.prompt)
	}
	return a, nil
}

// workerOf is the worker that a placement names; empty when it names none.
func workerOf(placement string) string {
	_, rest, _ := strings.Cut(placement, "; worker=")
	worker, _, _ := strings.Cut(rest, ";")
	return worker
}

// follow sends a request whose answer is streamed and reads it to its end marker.
// arrived is called with each piece of text's length. A stream is whole when the
// marker came and the text is as long as that many tokens are, no more and no
// less.
func (c *client) follow(ctx context.Context, r request, arrived func(tokens int)) error {
	r.stream = true
	resp, err := c.open(ctx, &r)
	if err != nil {
		return err
	}
	defer resp.Close() //nolint:errcheck // all was read, or it failed
	text, marked := 0, false
	lines := bufio.NewScanner(resp)
	lines.Buffer(make([]byte, 0, 4096), maxAnswer)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok:
		case bytes.Equal(data, []byte("[DONE]")):
			marked = true
		case gjson.GetBytes(data, "error").Exists():
			return fmt.Errorf("%w: after %d of %d tokens: %.300s", ErrNotWhole, text/tokenBytes, r.tokens, data)
		default:
			if n := len(gjson.GetBytes(data, "choices.0.text").String()); n > 0 {
				text += n
				arrived(n / tokenBytes)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: after %d of %d tokens: %w", ErrNotWhole, text/tokenBytes, r.tokens, err)
	}
	if !marked || text != tokenBytes*r.tokens {
		return fmt.Errorf("%w: %d bytes of %d tokens, end marker: %v", ErrNotWhole, text, r.tokens, marked)
	}
	return nil
}
