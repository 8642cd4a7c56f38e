package tokens

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// encodeInParts encodes text cut wherever Cut says.
func encodeInParts(t *Tokenizer, text string, step int) (ids []int32, parts int) {
	for text != "" {
		n := t.Cut(text, step)
		ids = t.Encode(ids, text[:n], true)
		text = text[n:]
		parts++
	}
	return ids, parts
}

// cutVocab is a toy vocabulary of all bytes, some merges and special tokens that
// overlap and contain one another.
func cutVocab(pre string, nfc bool, special ...string) Vocab {
	v := Vocab{Pre: pre, NFC: nfc, BOS: None, EOS: None}
	for b := range 256 {
		v.Tokens = append(v.Tokens, string(byteRune[b]))
		v.Kinds = append(v.Kinds, Normal)
	}
	for _, m := range []string{"a b", "Ġ a", "Ġ b", "ab a", "Ġa b", "Ċ Ċ", "Ġ Ġ", "1 2", ". Ċ"} {
		left, right, _ := strings.Cut(m, " ")
		v.Merges = append(v.Merges, m)
		v.Tokens = append(v.Tokens, left+right)
		v.Kinds = append(v.Kinds, Normal)
	}
	for i, s := range special {
		v.Tokens = append(v.Tokens, s)
		v.Kinds = append(v.Kinds, []Kind{Control, UserDefined}[i%2])
	}
	return v
}

var cutSpecials = [][]string{
	nil,
	{"<|end|>", "<|start|>"},
	{"<|end|>", "<|end|>\n", "|>a"},
	{"<a>", "<a>b c", "x <a", "  ", "    "},
	{"ab", "ba", "a b", "\n"},
	{"a_", "日。x", "a1", "|a|b|"},
}

// The ids of the parts are those of the whole, for every pre-tokenizer and for
// special tokens of the worst kinds, and whatever follows a cut.
func TestCutsChangeNothing(t *testing.T) {
	var all []*Tokenizer
	for _, pre := range []string{PreGPT2, PreSmolLM, PreLlama3, PreQwen2} {
		for _, special := range cutSpecials {
			for _, nfc := range []bool{false, true} {
				tok, err := New(cutVocab(pre, nfc, special...))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, tok)
			}
		}
	}
	pieces := []string{
		"a", "b", "ab", " ", "  ", "\n", "\r\n", "\t", "1", "12", ".", "'s", "'S", "ſ", "é", "e\u0301", "\u0301", "\u00a0",
		"\u2003", "日本", "가", "\u1100\u1161", "\xff", "<|end|>", "<|start|>", "<a>", "b c", "x <a", "|>a", "<", ">", "\u0958", "_", "。", "，", "日", "か", "か\u3099", ",", "a1", "|",
	}
	text := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 24).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(t *rapid.T) {
		tok := all[rapid.IntRange(0, len(all)-1).Draw(t, "tokenizer")]
		s := text.Draw(t, "text")
		step := rapid.IntRange(1, 8).Draw(t, "step")
		want := tok.Encode(nil, s, true)
		if got, _ := encodeInParts(tok, s, step); !slices.Equal(got, want) {
			t.Fatalf("in parts %v, whole %v", got, want)
		}
		// What follows neither moves a cut nor changes the ids before it.
		cut := tok.Cut(s, step)
		if cut == len(s) {
			return
		}
		other := s[:min(cut+3, len(s))] + text.Draw(t, "other")
		if n := tok.Cut(other, step); n != cut {
			t.Fatalf("cut at %d of %q, at %d of %q", cut, s, n, other)
		}
		if got := tok.Encode(nil, other, true); len(got) < len(tok.Encode(nil, s[:cut], true)) ||
			!slices.Equal(got[:len(tok.Encode(nil, s[:cut], true))], tok.Encode(nil, s[:cut], true)) {
			t.Fatalf("the ids of %q depend on what follows", s[:cut])
		}
	})
}

func TestCutsOfTheModel(t *testing.T) {
	tok, err := New(smolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct{ Text string }
	readJSON(t, "testdata/tokenize.json", &rows)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var b strings.Builder
		for range 1 + rng.IntN(6) {
			b.WriteString("<|im_start|>user\n" + rows[rng.IntN(len(rows))].Text + "<|im_end|>\n")
		}
		want := tok.Encode(nil, b.String(), true)
		got, parts := encodeInParts(tok, b.String(), 1+rng.IntN(40))
		if !slices.Equal(got, want) {
			t.Fatalf("in parts %v, whole %v", got, want)
		}
		if parts < 2 && b.Len() > 100 {
			t.Fatalf("no cut in %q", b.String())
		}
	}
	for text, want := range map[string]int{"日本語、日本語": 9, "deadbeef00": 8, "a\nb": 1, "aaaaaaaa": 8, "a'b": 1} {
		if n := tok.Cut(text, 1); n != want {
			t.Errorf("%q is cut at %d, want %d", text, n, want)
		}
	}
	if n := tok.Cut("日本語<|im_end|>日本語", 10); n != len("日本語<|im_end|>") {
		t.Errorf("cut at %d, want behind the special token", n)
	}
}

func BenchmarkEncode48KB(b *testing.B) {
	tok, err := New(smolLM2(b))
	if err != nil {
		b.Fatal(err)
	}
	text := strings.Repeat("The committee met on Tuesday to consider whether the northern line should be extended; nobody could agree, 42 objections were filed.\n", 370)[:48<<10]
	var ids []int32
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		ids = tok.Encode(ids[:0], text, true)
	}
}
