package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// capture reads one recorded exchange: the request's body and the response's.
func capture(t *testing.T, name string) (request, response []byte) {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + name + ".http")
	if err != nil {
		t.Fatal(err)
	}
	req, resp, ok := bytes.Cut(raw, []byte("\n===== RESPONSE =====\n"))
	if !ok {
		t.Fatalf("%s has no response", name)
	}
	if _, body, ok := bytes.Cut(req, []byte("\r\n\r\n")); ok {
		request = body
	} else {
		_, request, _ = bytes.Cut(req, []byte("\n\n"))
	}
	r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(resp)), nil)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer func() { _ = r.Body.Close() }()
	if response, err = io.ReadAll(r.Body); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return bytes.TrimSpace(request), response
}

// payloads are the data of a recorded stream, [DONE] left out.
func payloads(t *testing.T, stream []byte) []string {
	t.Helper()
	var out []string
	for ev := range strings.SplitSeq(strings.TrimSpace(string(stream)), "\n\n") {
		data, ok := strings.CutPrefix(strings.TrimSpace(ev), "data: ")
		if !ok {
			t.Fatalf("event %q", ev)
		}
		out = append(out, data)
	}
	if out[len(out)-1] != "[DONE]" {
		t.Fatalf("the capture ends with %q", out[len(out)-1])
	}
	return out[:len(out)-1]
}

// common keeps of b what a has too, so that a difference is a wrong value or a
// member that the capture lacks.
func common(a, b any) any {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return b
		}
		out := map[string]any{}
		for k, v := range a {
			if w, ok := b[k]; ok {
				out[k] = common(v, w)
			}
		}
		return out
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return b
		}
		out := make([]any, len(a))
		for i := range a {
			out[i] = common(a[i], b[i])
		}
		return out
	}
	return b
}

func same(t *testing.T, got []byte, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	if diff := cmp.Diff(common(g, w), g); diff != "" {
		t.Errorf("ours is not the capture's (-capture +ours):\n%s", diff)
	}
}

// headOf takes what only the server knows from a recorded payload.
func headOf(t *testing.T, payload string) Head {
	t.Helper()
	var h struct {
		ID, Object, Model string
		Created           int64
	}
	if err := json.Unmarshal([]byte(payload), &h); err != nil {
		t.Fatal(err)
	}
	return Head{Chat: strings.HasPrefix(h.Object, "chat."), ID: h.ID, Model: h.Model, Created: h.Created}
}

func TestWholeAnswersAsCaptured(t *testing.T) {
	_, body := capture(t, "chat")
	h := headOf(t, string(body))
	same(t, h.AppendResponse(nil, []Choice{{Text: []byte("The capital of France is Paris."), Finish: FinishStop, StopID: -1}},
		Usage{Prompt: 37, Completion: 8}, nil), string(body))

	_, body = capture(t, "completions")
	h = headOf(t, string(body))
	same(t, h.AppendResponse(nil, []Choice{{Text: []byte(", the city of"), Finish: FinishLength, StopID: -1}},
		Usage{Prompt: 4, Completion: 4}, nil), string(body))

	_, body = capture(t, "chat_logprobs")
	h = headOf(t, string(body))
	lp := func(token string, p float64, top ...Logprob) Logprob {
		return Logprob{Token: []byte(token), Logprob: p, Top: top}
	}
	first, second, third := -1.8095355033874512, -0.021278195083141327, -0.011796713806688786
	list := []Logprob{
		lp("The", first, lp("The", first), lp("L", -1.9345355033874512)),
		lp(" capital", second, lp(" capital", second), lp(" Capital", -4.583778381347656)),
		lp(" of", third, lp(" of", third), lp(" city", -4.699296951293945)),
	}
	same(t, h.AppendResponse(nil, []Choice{{
		Text: []byte("The capital of"), Finish: FinishLength, StopID: -1, WantLogprobs: true, Logprobs: list,
	}}, Usage{Prompt: 37, Completion: 3, Cached: 32}, nil), string(body))
}

// script is what a stream consists of, in order: a role, pieces, the usage.
func TestStreamsAsCaptured(t *testing.T) {
	words := func(ws ...string) (out []Choice) {
		for _, w := range ws {
			out = append(out, Choice{Text: []byte(w), StopID: -1})
		}
		return out
	}
	end := func(cs []Choice, finish string) []Choice {
		cs[len(cs)-1].Finish = finish
		return cs
	}
	with := func(cs []Choice, ids ...int32) []Choice {
		for i := range cs {
			cs[i].TokenIDs, cs[i].WantIDs = ids[i:i+1], true
		}
		return cs
	}
	prompt := []int32{
		1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198, 1,
		4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198,
	}
	tests := []struct {
		name    string
		pieces  []Choice
		prompt  []int32
		running bool
		usage   *Usage
	}{
		{
			"chat_stream_usage", end(words("The", " capital", " of", " France", " is", " Paris", ".", ""), FinishStop), nil, false,
			&Usage{Prompt: 37, Completion: 8, Cached: 32},
		},
		{
			"chat_stream_continuous_usage", end(words("The", " capital", " of", " France"), FinishLength), nil, true,
			&Usage{Prompt: 37, Completion: 4, Cached: 32},
		},
		{"chat_token_ids_stream", with(end(words("The", " capital", " of"), FinishLength), 504, 3575, 282), prompt, false, nil},
		{"completions_stream", end(words(",", " the", " city", " of"), FinishLength), nil, false, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, stream := capture(t, tt.name)
			want := payloads(t, stream)
			h := headOf(t, want[0])
			count := func(n int) *Usage {
				if !tt.running {
					return nil
				}
				return &Usage{Prompt: 37, Completion: n}
			}
			var got [][]byte
			if h.Chat {
				got = append(got, h.AppendRole(nil, 0, tt.prompt, count(0)))
			}
			for i := range tt.pieces {
				got = append(got, h.AppendChunk(nil, &tt.pieces[i], count(i+1)))
			}
			if tt.usage != nil {
				got = append(got, h.AppendUsage(nil, *tt.usage))
			}
			if len(got) != len(want) {
				t.Fatalf("%d events, the capture has %d", len(got), len(want))
			}
			for i := range got {
				same(t, got[i], want[i])
			}
		})
	}
}

func TestSmallBodiesAsCaptured(t *testing.T) {
	_, body := capture(t, "tokenize")
	same(t, AppendTokenized(nil, []int32{19556, 40303, 218, 905}, []string{"Hello", "ĠðŁĺ", "Ģ", "Ġworld"}, 2048), string(body))
	_, body = capture(t, "detokenize")
	same(t, AppendDetokenized(nil, []byte("Hello world")), string(body))
	_, body = capture(t, "models")
	var m struct {
		Data []map[string]any
	}
	if err := json.Unmarshal(AppendModels(nil, "smollm2", 1, 2048), &m); err != nil {
		t.Fatal(err)
	}
	var w struct {
		Data []map[string]any
	}
	if err := json.Unmarshal(body, &w); err != nil {
		t.Fatal(err)
	}
	for k := range m.Data[0] {
		if _, ok := w.Data[0][k]; !ok {
			t.Errorf("the capture's model has no %q", k)
		}
	}
}

// Every recorded request must be read, with what it says.
func TestRequestsAsCaptured(t *testing.T) {
	for _, name := range []string{
		"chat", "chat_logprobs", "chat_n2_stream", "chat_stream_continuous_usage", "chat_stream_usage", "chat_token_ids_stream",
	} {
		body, _ := capture(t, name)
		r, err := ParseChat(body)
		if err != nil || r.Model != "smollm2" || len(r.Messages) != 1 || r.Messages[0].Content != "What is the capital of France?" ||
			r.MaxTokens == 0 || r.N > 1 != (name == "chat_n2_stream") || r.Stream != strings.Contains(name, "stream") ||
			r.IncludeUsage != strings.Contains(name, "usage") || r.ContinuousUsage != strings.Contains(name, "continuous") ||
			r.ReturnTokenIDs != strings.Contains(name, "token_ids") || r.Logprobs >= 0 != strings.Contains(name, "logprobs") {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	body, _ := capture(t, "completions_stream")
	if r, err := ParseCompletion(body); err != nil || len(r.Prompts) != 1 || r.Prompts[0].Text != "Once upon a time" || !r.Stream {
		t.Errorf("%+v, %v", r, err)
	}
	body, _ = capture(t, "tokenize")
	if r, err := ParseTokenize(body); err != nil || r.Prompt != "Hello 😀 world" || !r.ReturnTokenTexts {
		t.Errorf("%+v, %v", r, err)
	}
	body, _ = capture(t, "detokenize")
	if r, err := ParseDetokenize(body); err != nil || len(r.Tokens) != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}
