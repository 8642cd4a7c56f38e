package prompt

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/unit"
)

const chatML = `{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// toyText is a byte-level vocabulary with some merges and ChatML.
func toyText(t testing.TB, pre string) *Text {
	t.Helper()
	v := tokens.Vocab{Pre: pre, NFC: pre == tokens.PreQwen2, BOS: tokens.None, EOS: tokens.None}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if b <= 0x20 || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r, next = next, next+1
		}
		v.Tokens, v.Kinds = append(v.Tokens, string(r)), append(v.Kinds, tokens.Normal)
	}
	for _, m := range []string{"t h", "th e", "Ġ the", "i n", "Ġ a", "e r", "Ċ Ċ", "o n", "Ġ Ġ"} {
		left, right, _ := strings.Cut(m, " ")
		v.Merges, v.Tokens, v.Kinds = append(v.Merges, m), append(v.Tokens, left+right), append(v.Kinds, tokens.Normal)
	}
	for _, s := range []string{"<|im_start|>", "<|im_end|>"} {
		v.Tokens, v.Kinds = append(v.Tokens, s), append(v.Kinds, tokens.Control)
	}
	v.BOS, v.AddBOS = int32(len(v.Tokens)-2), pre == tokens.PreLlama3
	tok, err := tokens.New(v)
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := tokens.ParseTemplate(chatML)
	if err != nil {
		t.Fatal(err)
	}
	return NewText(tok, tpl)
}

func toyTexts(t testing.TB) map[string]*Text {
	out := map[string]*Text{}
	for _, pre := range []string{tokens.PreGPT2, tokens.PreSmolLM, tokens.PreLlama3, tokens.PreQwen2} {
		out[pre] = toyText(t, pre)
	}
	return out
}

func quoted(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func chatBody(turns []string) string {
	var b strings.Builder
	b.WriteString(`{"messages":[`)
	for i, text := range turns {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":%s}`, []string{"user", "assistant"}[i%2], quoted(text))
	}
	return b.String() + `],"model":"m"}`
}

// plainly is what the identity of a chat is, without a cache.
func plainly(text *Text, turns []string, seed prefix.Hash, block unit.Tokens) (n int, chain []prefix.Hash) {
	var b strings.Builder
	for i, t := range turns {
		fmt.Fprintf(&b, "<|im_start|>%s\n%s<|im_end|>\n", []string{"user", "assistant"}[i%2], t)
	}
	ids := text.Encoder.Encode(nil, b.String()+"<|im_start|>assistant\n", true)
	return len(ids), prefix.AppendChain(nil, seed, ids, block)
}

// A small cache that is always full of pieces of other conversations, domains
// and block sizes never changes an identity.
func TestTheCacheChangesNothing(t *testing.T) {
	texts := toyTexts(t)
	words := []string{
		"the ", "in ", "on", "er", " ", "  ", "\n", "\n\n", "a", "'s", "<|im_end|>", "<|im_", "start|>", "1", "12.5", "é", "e\u0301", "日本、", "\t",
		strings.Repeat("the inner ring on ", 40), strings.Repeat("x", 700), strings.Repeat("over there\n", 60),
	}
	turn := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 12).Draw(t, "words"), "")
	})
	rapid.Check(t, func(t *rapid.T) {
		r := New(Options{Texts: texts, Cache: unit.Bytes(rapid.SampledFrom([]int{1, 16 * 3000, 16 * 20_000, 1 << 24}).Draw(t, "cache"))})
		var s Scratch
		talks := [][]string{{"the first"}}
		t.Repeat(map[string]func(*rapid.T){
			"new": func(t *rapid.T) { talks = append(talks, []string{turn.Draw(t, "turn")}) },
			"grow": func(t *rapid.T) {
				i := rapid.IntRange(0, len(talks)-1).Draw(t, "talk")
				talks[i] = append(talks[i], turn.Draw(t, "turn"))
			},
			"fork": func(t *rapid.T) {
				i := rapid.IntRange(0, len(talks)-1).Draw(t, "talk")
				n := rapid.IntRange(1, len(talks[i])).Draw(t, "turns")
				talks = append(talks, append(slices.Clone(talks[i][:n]), turn.Draw(t, "turn")))
			},
			"": func(t *rapid.T) {
				turns := talks[rapid.IntRange(0, len(talks)-1).Draw(t, "talk")]
				base := rapid.SampledFrom([]string{tokens.PreGPT2, tokens.PreSmolLM, tokens.PreLlama3, tokens.PreQwen2}).Draw(t, "model")
				to := Target{
					Scope:       prefix.Scope{Base: base, Salt: rapid.SampledFrom([]string{"", "s"}).Draw(t, "salt")},
					BlockTokens: unit.Tokens(rapid.SampledFrom([]int{1, 3, 16, 600}).Draw(t, "block")),
				}
				got := r.Identify(t.Context(), Chat, []byte(chatBody(turns)), to, &s)
				n, chain := plainly(texts[base], turns, to.Scope.Seed(), to.BlockTokens)
				if !got.Exact || got.Partial || int(got.Tokens) != n || !slices.Equal(got.Chain, chain) {
					t.Fatalf("exact %v, partial %v, %d tokens, want %d, chains equal %v, of %q",
						got.Exact, got.Partial, got.Tokens, n, slices.Equal(got.Chain, chain), turns)
				}
				for i := range r.cache.shards {
					if sh := &r.cache.shards[i]; sh.bytes > r.cache.budget || len(sh.ring) != len(sh.byKey) {
						t.Fatalf("a shard of %d bytes holds %d, %d pieces, %d of them known", r.cache.budget, sh.bytes, len(sh.ring), len(sh.byKey))
					}
				}
			},
		})
	})
}

// A hash that two texts share leads neither to the other's tokens.
func TestCollidingPiecesAreCompared(t *testing.T) {
	c := newCache(1 << 20)
	m, other := &model{}, &model{}
	p := c.keep(m, 7, "one", []int32{1})
	if got := c.find(m, 7, "one"); got != p {
		t.Error("a piece is not found")
	}
	if c.find(m, 7, "two") != nil || c.find(other, 7, "one") != nil {
		t.Error("a piece of another text or model is found")
	}
	if q := c.keep(m, 7, "two", []int32{2}); q.text != "two" || !slices.Equal(q.ids, []int32{2}) {
		t.Error("a colliding piece is answered with another's tokens")
	}
	if got := c.find(m, 7, "one"); got != p {
		t.Error("a collision threw the first piece out")
	}
}

func TestWhatIsUsedStays(t *testing.T) {
	const pieces = 200
	c := newCache(shards * (pieceCost + 100) * 8)
	m := &model{}
	kept := 0
	for i := range pieces {
		text := strings.Repeat(fmt.Sprintf("%03d", i), 30)
		c.keep(m, m.keyOf(text), text, nil)
		if hot := strings.Repeat("000", 30); c.find(m, m.keyOf(hot), hot) != nil {
			kept++
		}
	}
	if kept != pieces {
		t.Errorf("a piece that is used all the time was there %d times of %d", kept, pieces)
	}
}

func TestUnescape(t *testing.T) {
	for _, raw := range []string{
		``, `a`, `\n\t\r\b\f\/\\\"`, `\u0041`, `\ud83d\ude00`, `a\u00e9b`, `\\u0041`, `x\\`, `日本`,
	} {
		var want string
		if err := json.Unmarshal([]byte(`"`+raw+`"`), &want); err != nil {
			t.Fatal(err)
		}
		if got := string(appendUnescaped(nil, []byte(raw))); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
	for _, broken := range []string{`\`, `\u`, `\u12`, `\ud83d`, `\ud83d\u0041`, `\uzzzz`} {
		_ = appendUnescaped(nil, []byte(broken)) // it must only not panic
	}
}

// Without a tokenizer a longer conversation begins with the shorter one's
// blocks, and so does a longer prompt.
func TestByteChainsGrow(t *testing.T) {
	r := New(Options{})
	var s Scratch
	identify := func(kind Kind, body string) Identity {
		id := r.Identify(t.Context(), kind, []byte(body), Target{Scope: prefix.Scope{Base: "m"}}, &s)
		id.Chain = slices.Clone(id.Chain)
		return id
	}
	var turns []string
	var before []prefix.Hash
	for i := range 12 {
		turns = append(turns, strings.Repeat(fmt.Sprint("turn ", i, "\n"), 20))
		id := identify(Chat, chatBody(turns))
		if id.Exact || id.Tokens != 0 || id.Bytes == 0 {
			t.Fatalf("%+v", id)
		}
		if !slices.Equal(before, id.Chain[:min(len(before), len(id.Chain))]) || len(id.Chain) <= len(before) {
			t.Fatalf("turn %d does not begin with the blocks of the turn before", i)
		}
		before = id.Chain
		spaced := strings.NewReplacer(`{"role"`, "{ \"role\"", `,"content":`, " ,\n\t\"content\" : ").Replace(chatBody(turns))
		if again := identify(Chat, spaced); !slices.Equal(again.Chain, id.Chain) {
			t.Fatal("white space between the tokens of JSON changes the blocks")
		}
	}
	with := identify(Chat, strings.Replace(chatBody(turns), `"model"`, `"tools":[{"type":"function"}],"model"`, 1))
	if slices.Equal(with.Chain[:1], before[:1]) {
		t.Error("tools, which stand before the messages, do not count")
	}

	text := strings.Repeat("some prompt ", 50)
	short := identify(Completion, `{"prompt":`+quoted(text)+`}`)
	long := identify(Completion, `{"prompt":`+quoted(text+"and more of it, and more, and more, and more, and still more")+`}`)
	if n := len(short.Chain); n != len(text)/byteBlock || !slices.Equal(long.Chain[:n], short.Chain) {
		t.Errorf("%d blocks of %d bytes; the longer prompt begins alike: %v", n, len(text), slices.Equal(long.Chain[:n], short.Chain))
	}
	salted := r.Identify(t.Context(), Completion, []byte(`{"prompt":`+quoted(text)+`,"cache_salt":"x"}`), Target{Scope: prefix.Scope{Base: "m"}}, &s)
	if slices.Equal(salted.Chain[:1], short.Chain[:1]) {
		t.Error("a salt changes nothing")
	}
	other := r.Identify(t.Context(), Completion, []byte(`{"prompt":`+quoted(text)+`,"cache_salt":"x"}`), Target{Scope: prefix.Scope{Base: "m", Salt: "tenant"}}, &s)
	if want := prefix.AppendChain(nil, prefix.Scope{Base: "m", Salt: "tenant"}.Seed()^byteSeed, idsOf(text), 16); !slices.Equal(other.Chain, want) {
		t.Error("the gateway's salt does not go before the client's, or the chain is not that of little-endian ids")
	}
}

// idsOf packs text into little-endian ids.
func idsOf(text string) (ids []int32) {
	for i := 0; i+4 <= len(text); i += 4 {
		ids = append(ids, int32(text[i])|int32(text[i+1])<<8|int32(text[i+2])<<16|int32(text[i+3])<<24)
	}
	return ids
}

func TestWhatCannotBeExact(t *testing.T) {
	texts := map[string]*Text{"m": toyText(t, tokens.PreGPT2), "bare": {Encoder: toyText(t, tokens.PreGPT2).Encoder}}
	r := New(Options{Texts: texts, MaxText: 4096})
	var s Scratch
	const user = `{"role":"user","content":"a"}`
	tests := []struct {
		name, model string
		kind        Kind
		body        string
		exact       bool
	}{
		{"plain", "m", Chat, `{"messages":[` + user + `]}`, true},
		{"no template", "bare", Chat, `{"messages":[` + user + `]}`, false},
		{"no template, completion", "bare", Completion, `{"prompt":"a"}`, true},
		{"unknown model", "x", Chat, `{"messages":[` + user + `]}`, false},
		{"unknown model, ids", "x", Completion, `{"prompt":[1,2,3]}`, true},
		{"image", "m", Chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, false},
		{"tools", "m", Chat, `{"messages":[` + user + `],"tools":[{}]}`, false},
		{"no tools", "m", Chat, `{"messages":[` + user + `],"tools":[]}`, true},
		{"documents", "m", Chat, `{"messages":[` + user + `],"documents":[{}]}`, false},
		{"own template", "m", Chat, `{"messages":[` + user + `],"chat_template":"x"}`, false},
		{"continued", "m", Chat, `{"messages":[` + user + `],"continue_final_message":true}`, false},
		{"not continued", "m", Chat, `{"messages":[` + user + `],"continue_final_message":false}`, true},
		{"arguments", "m", Chat, `{"messages":[` + user + `],"chat_template_kwargs":{"x":1}}`, true},
		{"odd role", "m", Chat, `{"messages":[{"role":5,"content":"a"}]}`, false},
		{"no role", "m", Chat, `{"messages":[{"content":"a"}]}`, false},
		{"no messages", "m", Chat, `{"messages":[]}`, false},
		{"messages of another kind", "m", Chat, `{"messages":"a"}`, false},
		{"nothing", "m", Chat, `{}`, false},
		{"too long", "m", Chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("a ", 3000) + `"}]}`, false},
		{"too long, completion", "m", Completion, `{"prompt":"` + strings.Repeat("a ", 3000) + `"}`, false},
		{"suffix", "m", Completion, `{"prompt":"a","suffix":"b"}`, false},
		{"truncated", "m", Completion, `{"prompt":"a","truncate_prompt_tokens":5}`, false},
		{"odd prompt", "m", Completion, `{"prompt":{"a":1}}`, false},
		{"mixed ids", "m", Completion, `{"prompt":[1,"a"]}`, false},
		{"negative id", "m", Completion, `{"prompt":[-1]}`, false},
		{"no prompt", "m", Completion, `{}`, false},
		{"another route", "m", Other, `{"input":"a"}`, false},
	}
	for _, tt := range tests {
		id := r.Identify(t.Context(), tt.kind, []byte(tt.body), Target{Scope: prefix.Scope{Base: tt.model}}, &s)
		if id.Exact != tt.exact || id.Exact != (id.Tokens > 0) {
			t.Errorf("%s: %+v", tt.name, id)
		}
		if len(id.Chain) > 4096/byteBlock {
			t.Errorf("%s: %d blocks of at most 4096 bytes", tt.name, len(id.Chain))
		}
	}
}

// A prompt that costs too much at once is known from its beginning, further each
// time, and then whole.
func TestWorkIsBounded(t *testing.T) {
	texts := map[string]*Text{"m": toyText(t, tokens.PreGPT2)}
	registry := &measure.Registry{}
	r := New(Options{Texts: texts, MaxWork: 8 << 10, Registry: registry})
	var s Scratch
	text := strings.Repeat("the inner ring on and on 1 2 3\n", 1000)
	body := []byte(`{"prompt":` + quoted(text) + `}`)
	ids := texts["m"].Encoder.Encode(nil, text, true)
	want := prefix.AppendChain(nil, prefix.Scope{Base: "m"}.Seed(), ids, 16)
	known := -1
	for range 6 {
		before := registry.Counter(measure.PromptText, "encoded").Value()
		id := r.Identify(t.Context(), Completion, body, Target{Scope: prefix.Scope{Base: "m"}}, &s)
		if n := registry.Counter(measure.PromptText, "encoded").Value() - before; n > 8<<10 {
			t.Fatalf("%.0f bytes tokenised", n)
		}
		if !id.Exact || len(id.Chain) <= known || !slices.Equal(id.Chain, want[:len(id.Chain)]) {
			t.Fatalf("exact %v, %d blocks after %d, of the prompt: %v", id.Exact, len(id.Chain), known, slices.Equal(id.Chain, want[:len(id.Chain)]))
		}
		if got, want := float64(id.Tokens), float64(len(ids)); got < .9*want || got > 1.1*want {
			t.Fatalf("%.0f tokens extrapolated, there are %.0f", got, want)
		}
		known = len(id.Chain)
		if !id.Partial {
			break
		}
	}
	if known != len(want) {
		t.Errorf("%d of %d blocks known in the end", known, len(want))
	}

	// One word of a megabyte is not merged.
	id := r.Identify(t.Context(), Completion, []byte(`{"prompt":"`+strings.Repeat("a", 1<<20)+`"}`), Target{Scope: prefix.Scope{Base: "m"}}, &s)
	if !id.Partial || len(id.Chain) != 0 || id.Tokens != 1<<18 {
		t.Errorf("%+v", id)
	}
}

func TestEstimate(t *testing.T) {
	var ratio cost.Ratio
	exact := Identity{Exact: true, Tokens: 5, BlockTokens: 16, Bytes: 100}
	exact.Estimate(&ratio)
	if exact.Tokens != 5 || exact.BlockTokens != 16 {
		t.Errorf("an exact identity became %+v", exact)
	}
	guess := Identity{Bytes: 100}
	guess.Estimate(&ratio)
	if guess.Tokens != 25 || guess.BlockTokens != 16 {
		t.Errorf("100 bytes are estimated as %d tokens, a block as %d", guess.Tokens, guess.BlockTokens)
	}
}

func TestKindOf(t *testing.T) {
	got := map[string]Kind{}
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "", "/x/v1/chat/completions"} {
		got[path] = KindOf(path)
	}
	want := map[string]Kind{"/v1/chat/completions": Chat, "/v1/completions": Completion, "/v1/embeddings": Other, "": Other, "/x/v1/chat/completions": Chat}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConcurrentReadings(t *testing.T) {
	texts := toyTexts(t)
	r := New(Options{Texts: texts, Cache: 16 * 20_000})
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			var s Scratch
			for range 60 {
				turns := []string{strings.Repeat(fmt.Sprint("the inner ring ", rng.IntN(3), " "), 100), "and on"}
				turns = append(turns, strings.Repeat("more ", rng.IntN(400)))
				to := Target{Scope: prefix.Scope{Base: tokens.PreSmolLM, Salt: strconv.Itoa(rng.IntN(2))}}
				got := r.Identify(t.Context(), Chat, []byte(chatBody(turns)), to, &s)
				if n, chain := plainly(texts[tokens.PreSmolLM], turns, to.Scope.Seed(), 16); int(got.Tokens) != n || !slices.Equal(got.Chain, chain) {
					t.Error("another identity than without the cache")
					return
				}
			}
		})
	}
	all.Wait()
}

// What is known already costs no allocation, but for pools that were emptied
// (under the race detector that happens all the time).
func TestWarmReadingsDoNotAllocate(t *testing.T) {
	r := New(Options{Texts: map[string]*Text{"m": toyText(t, tokens.PreGPT2)}})
	for _, to := range []Target{{Scope: prefix.Scope{Base: "m", Compat: "c"}}, {Scope: prefix.Scope{Base: "unknown"}}} {
		for kind, body := range map[Kind]string{
			Chat:       chatBody([]string{strings.Repeat("the inner ring\n", 300), "a", "b"}),
			Completion: `{"prompt":` + quoted(strings.Repeat("the inner ring\n", 300)) + `}`,
		} {
			var s Scratch
			raw := []byte(body)
			if n := testing.AllocsPerRun(50, func() { r.Identify(t.Context(), kind, raw, to, &s) }); n > 4 {
				t.Errorf("kind %d, model %s: %.1f allocations", kind, to.Scope.Base, n)
			}
		}
	}
}
