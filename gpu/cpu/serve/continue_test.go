package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
)

// piece is one event of a stream, as far as a continuation must agree with it.
type piece struct {
	text, finish string
	role         bool
	ids          []uint32
	usage        string
}

// pieces streams a request, asking for ids.
func (y *toy) pieces(t *testing.T, path, body string, from int) []piece {
	t.Helper()
	resp := y.post(t, path, body, engine.HeaderContinue, engine.ContinueIDs)
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, b)
	}
	if got := resp.Header.Get(engine.HeaderContinue); got != strconv.Itoa(from) {
		t.Fatalf("continues from %q, want %d", got, from)
	}
	var out []piece
	for event := range strings.SplitSeq(string(b), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var c struct {
			Choices []struct {
				Text  string
				Delta struct{ Role, Content string }
				IDs   []uint32 `json:"token_ids"`
				End   *string  `json:"finish_reason"`
			}
			Usage json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatal(err)
		}
		p := piece{usage: string(c.Usage)}
		for _, choice := range c.Choices {
			p.text, p.role, p.ids = choice.Text+choice.Delta.Content, choice.Delta.Role != "", choice.IDs
			if choice.End != nil {
				p.finish = *choice.End
			}
		}
		// What is cached is another engine's own affair.
		p.usage, _, _ = strings.Cut(p.usage, `,"prompt_tokens_details"`)
		out = append(out, p)
	}
	return out
}

// A stream cut behind any event and continued by another engine is, text and
// usage, what it would have been: held-back text, torn characters, stop strings,
// penalties and seeded draws included.
func TestContinuedStreamsEqualUnbrokenOnes(t *testing.T) {
	first, second := newToy(t, batchtest.Runner{}), newToy(t, batchtest.Runner{})
	usage := `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`
	for name, r := range map[string]struct{ path, body string }{
		"greedy":    {"/v1/completions", `{"model":"toy","prompt":"abc","max_tokens":40,"temperature":0,"ignore_eos":true`},
		"seeded":    {"/v1/completions", `{"model":"toy","prompt":"abc","max_tokens":40,"seed":3,"ignore_eos":true`},
		"penalties": {"/v1/completions", `{"model":"toy","prompt":"abc","max_tokens":40,"seed":3,"frequency_penalty":1.5,"presence_penalty":0.5,"repetition_penalty":1.2,"min_tokens":20`},
		"chat":      {"/v1/chat/completions", `{"model":"toy","messages":[{"role":"user","content":"hello"}],"max_tokens":40,"seed":5,"ignore_eos":true`},
		"stops":     {"/v1/completions", `{"model":"toy","prompt":"abc","max_tokens":80,"seed":3,"ignore_eos":true,"stop":["a!!","\u0000\u0001","b?","\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd!"]`},
	} {
		t.Run(name, func(t *testing.T) {
			body := r.body + usage
			want := first.pieces(t, r.path, body+"}", 0)
			var sent []uint32
			for cut := 0; cut < len(want)-1 && want[cut].finish == ""; cut++ {
				sent = append(sent, want[cut].ids...)
				list, _ := json.Marshal(append([]uint32{}, sent...))
				got := second.pieces(t, r.path, fmt.Sprintf(`%s,%q:{"token_ids":%s}}`, body, engine.ContinueField, list), len(sent))
				if g, w := tail(got), tail(want[cut+1:]); g != w {
					t.Fatalf("cut behind event %d of %d:\ngot  %s\nwant %s", cut, len(want), g, w)
				}
			}
		})
	}
}

// tail is what a client sees of pieces, however they are cut.
func tail(pieces []piece) string {
	var text, finish strings.Builder
	var usage string
	for _, p := range pieces {
		if p.role {
			text.WriteString("<role>")
		}
		text.WriteString(p.text)
		finish.WriteString(p.finish)
		usage = p.usage
	}
	return fmt.Sprintf("%q %s %s", text.String(), finish.String(), usage)
}

func TestContinuationsThatMakeNoSense(t *testing.T) {
	y := newToy(t, batchtest.Runner{})
	for _, body := range []string{
		`{"model":"toy","prompt":"abc","max_tokens":2,"stream":true,"yardmaster_continue":{"token_ids":[1,2]}}`,
		`{"model":"toy","prompt":"abc","max_tokens":9,"yardmaster_continue":{"token_ids":[1]}}`,
		`{"model":"toy","prompt":"abc","max_tokens":9,"stream":true,"n":2,"yardmaster_continue":{"token_ids":[1]}}`,
		`{"model":"toy","prompt":"abc","max_tokens":9,"stream":true,"logprobs":1,"yardmaster_continue":{"token_ids":[1]}}`,
		`{"model":"toy","prompt":"abc","max_tokens":9,"stream":true,"yardmaster_continue":{"token_ids":[99999]}}`,
		`{"model":"toy","prompt":"abc","max_tokens":9,"stream":true,"yardmaster_continue":{"token_ids":["x"]}}`,
	} {
		if status, b := y.body(t, "/v1/completions", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, status, b)
		}
	}
}
