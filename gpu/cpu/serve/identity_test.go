package serve

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/core/wire/openai"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
)

// The gateway's identity of a request is made of the tokens that the engine
// computes: core/prompt and this package read the same bodies.

// twin is a gateway's reader and an engine's handler of one model.
type twin struct {
	handler *Handler
	reader  *prompt.Reader
	scratch prompt.Scratch
}

func newTwin(t testing.TB, v tokens.Vocab) *twin {
	t.Helper()
	tok, err := tokens.New(v)
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := tokens.ParseTemplate(tok.ChatTemplate())
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Model: "m", MaxModelLen: 1 << 20, Tokenizer: tok, Template: tpl}
	h := &Handler{opt: opt.withDefaults()}
	bos, _ := tok.BOS()
	h.bos, h.eos = string(tok.Piece(bos)), string(tok.Piece(tok.EOS()))
	return &twin{handler: h, reader: prompt.New(prompt.Options{
		Texts: map[string]*prompt.Text{"m": prompt.NewText(tok, tpl)},
		Cache: 1 << 20,
	})}
}

// compare reads body on both sides. It reports whether the engine takes it and
// whether the gateway knows its tokens.
func (w *twin) compare(t testing.TB, path, body string) (taken, exact bool) {
	t.Helper()
	parse := openai.ParseChat
	if prompt.KindOf(path) == prompt.Completion {
		parse = openai.ParseCompletion
	}
	scope := prefix.Scope{Base: "m", Compat: "c"}
	var id prompt.Identity
	if r, err := edge.Parse([]byte(body), 0); err == nil {
		id = w.reader.Identify(t.Context(), prompt.KindOf(path), r.Body, prompt.Target{Scope: scope, BlockTokens: 16}, &w.scratch)
	}
	req, err := parse([]byte(body))
	if err != nil {
		return false, id.Exact
	}
	ids, err := w.handler.prompts(t.Context(), req)
	if err != nil {
		return false, id.Exact
	}
	if !id.Exact {
		return true, false
	}
	scope.Salt = req.CacheSalt
	total := 0
	for _, p := range ids {
		total += len(p)
	}
	if id.Tokens != unit.Tokens(total) {
		t.Fatalf("the gateway counts %d tokens, the engine %d: %s", id.Tokens, total, body)
	}
	if want := prefix.AppendChain(nil, scope.Seed(), ids[0], 16); !slices.Equal(id.Chain, want) {
		t.Fatalf("the gateway's chain is not that of the engine's tokens: %s", body)
	}
	return true, true
}

func modelVocab(t testing.TB) tokens.Vocab {
	t.Helper()
	f, err := gguf.Open(modelPath(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	v, err := Vocab(f)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func quoted(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestIdentityOfFixtures(t *testing.T) {
	w := newTwin(t, modelVocab(t))
	var chats []struct{ Messages json.RawMessage }
	var texts []struct{ Text string }
	for path, into := range map[string]any{"chat_template.json": &chats, "tokenize.json": &texts} {
		b, err := os.ReadFile("../../../core/tokens/testdata/" + path)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, into); err != nil {
			t.Fatal(err)
		}
	}
	must := func(path, body string) {
		if taken, exact := w.compare(t, path, body); !taken || !exact {
			t.Fatalf("taken %v, exact %v: %s", taken, exact, body)
		}
	}
	for range 2 { // the second time out of the cache
		for _, c := range chats {
			must("/v1/chat/completions", `{"model":"m","messages":`+string(c.Messages)+`}`)
			must("/v1/chat/completions", `{"model":"m","add_generation_prompt":false,"messages":`+string(c.Messages)+`}`)
		}
		all := ""
		for _, row := range texts {
			all += row.Text
			if row.Text == "" {
				continue
			}
			must("/v1/completions", `{"model":"m","prompt":`+quoted(row.Text)+`}`)
			must("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":`+quoted(row.Text)+`}]}`)
			must("/v1/completions", `{"model":"m","prompt":[`+quoted(all)+`,"b"]}`)
		}
	}
}

func TestIdentityOfOddBodies(t *testing.T) {
	w := newTwin(t, toyVocab())
	tests := []struct {
		path, body string
		exact      bool
	}{
		{"/v1/completions", `{"model":"m","prompt":[1,2,3]}`, true},
		{"/v1/completions", `{"model":"m","prompt":[[1,2,3],[4]]}`, true},
		{"/v1/completions", `{"model":"m","prompt":["a",[4]]}`, true},
		{"/v1/completions", `{"model":"m","prompt":"a","suffix":""}`, true},
		{"/v1/completions", `{"model":"m","prompt":"a","add_special_tokens":false}`, true},
		{"/v1/completions", `{"model":"m","prompt":"a","cache_salt":"s\u0061lt"}`, true},
		{"/v1/completions", "{ \"model\" : \"m\",\n \"prom\\u0070t\" : \"a\" }", true},
		{"/v1/completions", `{"model":"m","prompt":"a","messages":5}`, true},
		{"/v1/completions", `{"model":"m","prompt":[1.0,2]}`, false},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00 \"\\\/\b\f\n\r\t\u00e9"}]}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]}]}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"a":1}]},{"role":"user"}]}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[],"chat_template_kwargs":{"x":1}}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a"}],"tools":null,"continue_final_message":false}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a","name":"n"}],"prompt":"x"}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[]}]}`, true},
	}
	for _, tt := range tests {
		taken, exact := w.compare(t, tt.path, tt.body)
		if !taken {
			t.Errorf("the engine refuses %s", tt.body)
		}
		if exact != tt.exact {
			t.Errorf("exact = %v: %s", exact, tt.body)
		}
	}
}

// randomChat is a conversation that a client could send.
func randomChat(rng *rand.Rand, words []string) string {
	text := func() string {
		var b strings.Builder
		for range rng.IntN(120) {
			b.WriteString(words[rng.IntN(len(words))])
			if rng.IntN(3) > 0 {
				b.WriteByte(' ')
			}
		}
		return b.String()
	}
	var b strings.Builder
	b.WriteString(`{"messages":[`)
	for i := range 1 + rng.IntN(12) {
		if i > 0 {
			b.WriteString(", ")
		}
		role := []string{"user", "assistant"}[i%2]
		if i == 0 && rng.IntN(2) == 0 {
			role = "system"
		}
		content := quoted(text())
		if rng.IntN(6) == 0 {
			content = fmt.Sprintf(`[{"type":"text","text":%s}, {"type":"text","text":%s}]`, content, quoted(text()))
		}
		fmt.Fprintf(&b, `{"role":%q,"content":%s}`, role, content)
	}
	fmt.Fprintf(&b, `],"model":"m","add_generation_prompt":%v}`, rng.IntN(2) == 0)
	return b.String()
}

var oddWords = []string{
	"the", "Committee", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "\n", "\n\n", "  ", "\t", "1234", "é", "e\u0301", "日本語", "😀",
	"'s", "don't", "\\", "\"", "</s>", "{{ x }}", "\u00a0", "<|im_", "end|>", "...", "x=y;",
}

// Conversations grow, begin alike and come again: the cache is full of pieces of
// others.
func TestIdentityOfRandomChats(t *testing.T) {
	vocab := modelVocab(t)
	w := newTwin(t, vocab)
	rng := rand.New(rand.NewPCG(7, 8))
	bodies := make([]string, 0, 64)
	for i := range 400 {
		var body string
		switch {
		case i%4 == 0 || len(bodies) < 4:
			body = randomChat(rng, oddWords)
		case i%4 == 1:
			body = bodies[rng.IntN(len(bodies))]
		default: // one more turn
			old := bodies[rng.IntN(len(bodies))]
			at := strings.LastIndex(old, "]")
			body = old[:at] + `,{"role":"user","content":` + quoted(oddWords[rng.IntN(len(oddWords))]+" and more") + `}` + old[at:]
		}
		if taken, exact := w.compare(t, "/v1/chat/completions", body); !taken || !exact {
			t.Fatalf("taken %v, exact %v: %s", taken, exact, body)
		}
		if len(bodies) < cap(bodies) {
			bodies = append(bodies, body)
		} else {
			bodies[rng.IntN(len(bodies))] = body
		}
	}
}

// The same with templates of several families, which refuse some chats.
func TestIdentityWithPublishedTemplates(t *testing.T) {
	b, err := os.ReadFile("../../../core/tokens/testdata/templates.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Templates map[string]string }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	for name, template := range f.Templates {
		v := toyVocab()
		v.ChatTemplate = template
		w := newTwin(t, v)
		rng := rand.New(rand.NewPCG(1, 9))
		same := 0
		for range 60 {
			if taken, exact := w.compare(t, "/v1/chat/completions", randomChat(rng, oddWords)); taken && exact {
				same++
			} else if taken {
				t.Errorf("%s: the engine renders a chat and the gateway cannot", name)
			}
		}
		if same < 10 {
			t.Errorf("%s: only %d of 60 chats were compared", name, same)
		}
	}
}

// Whatever the body: when both sides take it, they agree.
func FuzzIdentity(f *testing.F) {
	f.Add("/v1/completions", `{"model":"m","prompt":"a b"}`)
	f.Add("/v1/completions", `{"model":"m","prompt":[[1,2],"a"],"add_special_tokens":false}`)
	f.Add("/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a\u0041<|im_end|>"},{"role":"tool","content":[{"type":"text","text":"x"}],"tool_call_id":"1"}],"chat_template_kwargs":{"k":[1.5,null]}}`)
	f.Add("/v1/chat/completions", `{"messages":[{"role":"user","content":null,"name":null}],"tools":[],"model":"m"}`)
	w := newTwin(f, toyVocab())
	f.Fuzz(func(t *testing.T, path, body string) { w.compare(t, path, body) })
}
