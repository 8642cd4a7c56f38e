package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
)

// toyVocab has one token per byte, then an end token and a few words with
// characters of several bytes: whatever the toy model says, characters are torn.
func toyVocab() tokens.Vocab {
	v := tokens.Vocab{Pre: tokens.PreGPT2, BOS: tokens.None, ChatTemplate: "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" +
		"{% if add_generation_prompt %}assistant: {% endif %}"}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if b <= 0x20 || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r, next = next, next+1
		}
		v.Tokens = append(v.Tokens, string(r))
		v.Kinds = append(v.Kinds, tokens.Normal)
	}
	v.Merges = []string{"h e"}
	v.Tokens = append(v.Tokens, "he", "<|im_end|>")
	v.Kinds = append(v.Kinds, tokens.Normal, tokens.Control)
	v.EOS = int32(len(v.Tokens) - 1)
	return v
}

// toy is a served toy model.
type toy struct {
	*httptest.Server
	handler *Handler
	engine  *batch.Engine
	tok     *tokens.Tokenizer
}

func newToy(t *testing.T, runner batchtest.Runner, change ...func(*Options, *batch.Options)) *toy {
	t.Helper()
	tok, err := tokens.New(toyVocab())
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := tokens.ParseTemplate(tok.ChatTemplate())
	if err != nil {
		t.Fatal(err)
	}
	runner.VocabSize = tok.Size()
	eo := batch.Options{KVBlocks: 64}
	so := Options{Model: "toy", MaxModelLen: 512, Tokenizer: tok, Template: tpl, Version: "test", Log: slog.New(slog.DiscardHandler)}
	for _, c := range change {
		c(&so, &eo)
	}
	e, err := batch.New(&runner, eo)
	if err != nil {
		t.Fatal(err)
	}
	if so.Engine == nil {
		so.Engine = e
	}
	h, err := New(so)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(16 << 10) // soon full when a client reads nothing
		return ctx
	}
	s.Start()
	t.Cleanup(func() {
		s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("engine: %v", err)
		}
		if c := e.Cache().Counts(); c.Held != 0 {
			t.Errorf("%d blocks still held", c.Held)
		}
	})
	return &toy{s, h, e, tok}
}

// answered is a response whose body the test's end closes.
type answered struct {
	StatusCode int
	Header     http.Header
	Body       io.Reader
}

func (y *toy) post(t *testing.T, path, body string, header ...string) answered {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, y.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := y.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return answered{resp.StatusCode, resp.Header, resp.Body}
}

func (y *toy) body(t *testing.T, path, body string, header ...string) (int, string) {
	t.Helper()
	resp := y.post(t, path, body, header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// reply is the union of what bodies and chunks hold.
type reply struct {
	ID      string
	Object  string
	Choices []struct {
		Index        int
		Text         string
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content *string }
		Logprobs     json.RawMessage
		FinishReason *string `json:"finish_reason"`
		StopReason   any     `json:"stop_reason"`
		TokenIDs     []int32 `json:"token_ids"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		TotalTokens      int `json:"total_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	PromptTokenIDs []int32 `json:"prompt_token_ids"`
	Prefilled      bool
	Error          *struct{ Message, Type, Code string }
}

func decode(t *testing.T, b string) reply {
	t.Helper()
	var r reply
	if err := json.Unmarshal([]byte(b), &r); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return r
}

// chunks parses a whole stream, which must end with [DONE].
func chunks(t *testing.T, stream string) []reply {
	t.Helper()
	events := strings.Split(stream, "\n\n")
	if n := len(events); n < 2 || events[n-1] != "" || events[n-2] != "data: [DONE]" {
		t.Fatalf("stream does not end with [DONE]: %q", stream[max(0, len(stream)-200):])
	}
	var out []reply
	for _, ev := range events[:len(events)-2] {
		payload, ok := strings.CutPrefix(ev, "data: ")
		if !ok || strings.Contains(payload, "\n") {
			t.Fatalf("event %q", ev)
		}
		out = append(out, decode(t, payload))
	}
	return out
}

func TestStreamEqualsWhole(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	for i := range 20 {
		for _, chat := range []bool{true, false} {
			prompt := fmt.Sprintf("prompt number %d, é😀", i)
			path, body := "/v1/completions", fmt.Sprintf(`"prompt":%q`, prompt)
			if chat {
				path, body = "/v1/chat/completions", fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, prompt)
			}
			body = `{"model":"toy","max_tokens":60,"temperature":1,"seed":5,"return_token_ids":true,` + body
			status, whole := y.body(t, path, body+"}")
			if status != 200 {
				t.Fatalf("%d %s", status, whole)
			}
			want := decode(t, whole)
			_, stream := y.body(t, path, body+`,"stream":true,"stream_options":{"include_usage":true}}`)
			var text bytes.Buffer
			var ids []int32
			var finish string
			events := chunks(t, stream)
			for j, c := range events {
				if last := j == len(events)-1; last != (c.Usage != nil) || last != (len(c.Choices) == 0) {
					t.Fatalf("usage in the wrong place: %s", stream)
				}
				for _, choice := range c.Choices {
					text.WriteString(choice.Text)
					if choice.Delta.Content != nil {
						text.WriteString(*choice.Delta.Content)
					}
					ids = append(ids, choice.TokenIDs...)
					if choice.FinishReason != nil {
						finish = *choice.FinishReason
					}
				}
			}
			choice := want.Choices[0]
			if got, want := text.String(), choice.Text+choice.Message.Content; got != want {
				t.Errorf("stream %q\nwhole  %q", got, want)
			}
			if fmt.Sprint(ids) != fmt.Sprint(choice.TokenIDs) || finish != *choice.FinishReason {
				t.Errorf("ids %v, want %v; finish %s, want %s", ids, choice.TokenIDs, finish, *choice.FinishReason)
			}
			if got := events[len(events)-1].Usage; got.PromptTokens != want.Usage.PromptTokens ||
				got.CompletionTokens != want.Usage.CompletionTokens || got.CompletionTokens != len(ids) {
				t.Errorf("usage %+v, want %+v", got, want.Usage)
			}
		}
	}
}
