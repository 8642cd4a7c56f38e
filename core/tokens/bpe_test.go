package tokens

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// toy is a vocabulary with all bytes, and merges over the letters a to c and
// two bytes that begin characters.
func toy(merges ...string) Vocab {
	v := Vocab{Pre: PreGPT2, BOS: None, EOS: None}
	for b := range 256 {
		v.Tokens = append(v.Tokens, string(byteRune[b]))
		v.Kinds = append(v.Kinds, Normal)
	}
	for _, m := range merges {
		v.Merges = append(v.Merges, m)
		v.Tokens = append(v.Tokens, strings.Replace(m, " ", "", 1))
		v.Kinds = append(v.Kinds, Normal)
	}
	return v
}

func mustNew(t testing.TB, v Vocab) *Tokenizer {
	t.Helper()
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// naive is BPE as it is defined: the best pair, the leftmost of it, again and
// again.
func naive(b *bpe, word string) []int32 {
	var ids []int32
	for i := range len(word) {
		ids = append(ids, b.bytes[word[i]])
	}
	for {
		best, at := noMerge, -1
		for i := range len(ids) - 1 {
			if m := b.lookup(ids[i], ids[i+1]); m.rank < best {
				best, at = m.rank, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = b.lookup(ids[at], ids[at+1]).id
		ids = slices.Delete(ids, at+1, at+2)
	}
}

func TestMergesAreBPE(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Merges of what there is, in random order, so that ranks and lengths differ.
		symbols := []string{"a", "b", "c"}
		var merges []string
		for range rapid.IntRange(1, 12).Draw(t, "merges") {
			l, r := rapid.SampledFrom(symbols).Draw(t, "left"), rapid.SampledFrom(symbols).Draw(t, "right")
			if !slices.Contains(merges, l+" "+r) {
				merges = append(merges, l+" "+r)
				symbols = append(symbols, l+r)
			}
		}
		v := toy()
		v.Merges = rapid.Permutation(merges).Draw(t, "order")
		for _, s := range symbols[3:] {
			if rapid.Bool().Draw(t, "token") && !slices.Contains(v.Tokens, s) { // else the merge has no token
				v.Tokens, v.Kinds = append(v.Tokens, s), append(v.Kinds, Normal)
			}
		}
		b, err := newBPE(&v)
		if err != nil {
			t.Fatal(err)
		}
		word := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 1, 120, -1).Draw(t, "word")
		want := naive(b, word)
		var s scratch
		fill := func() {
			s.ids = s.ids[:0]
			for i := range len(word) {
				s.ids = append(s.ids, b.bytes[word[i]])
			}
		}
		fill()
		b.mergeLong(&s)
		if !slices.Equal(s.ids, want) {
			t.Fatalf("long %v, want %v", s.ids, want)
		}
		if len(word) <= shortWord {
			fill()
			b.mergeShort(&s)
			if !slices.Equal(s.ids, want) {
				t.Fatalf("short %v, want %v", s.ids, want)
			}
		}
		// Whatever the merges, no byte is lost.
		tok := mustNewRapid(t, v)
		if got := string(tok.Decode(nil, tok.Encode(nil, word, true))); got != word {
			t.Fatalf("%q became %q", word, got)
		}
	})
}

func mustNewRapid(t *rapid.T, v Vocab) *Tokenizer {
	tok, err := New(v)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// 128 KiB of one letter, of spaces and of special tokens' beginnings: with
// anything quadratic in it the test would not end.
func TestLongWords(t *testing.T) {
	v := toy("a a", "aa aa", "aaaa aaaa", "Ġ Ġ", "ĠĠ ĠĠ")
	v.Tokens, v.Kinds = append(v.Tokens, "<|special|>"), append(v.Kinds, Control)
	const n = 1 << 17
	for _, pre := range []string{PreGPT2, PreSmolLM, PreLlama3, PreQwen2} {
		v.Pre = pre
		tok := mustNew(t, v)
		for _, s := range []string{"a", " ", "\n", "<", "<|special|", "1", "'", "é", " \n", "\n ", "a1 ", "\xff"} {
			text := strings.Repeat(s, n/len(s))
			if got := string(tok.Decode(nil, tok.Encode(nil, text, true))); got != text {
				t.Errorf("%s: %q is not what it was", pre, s)
			}
		}
	}
}

func TestEncodeConcurrently(t *testing.T) {
	tok := mustNew(t, toy("a b", "ab c", "h e"))
	texts := []string{"abc he ab", "the abc of hehe", strings.Repeat("abcab ", 100)}
	want := make([][]int32, len(texts))
	for i, s := range texts {
		want[i] = mustNew(t, toy("a b", "ab c", "h e")).Encode(nil, s, false)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				for i, s := range texts {
					if got := tok.Encode(nil, s, false); !slices.Equal(got, want[i]) {
						t.Errorf("Encode(%q) = %v, want %v", s, got, want[i])
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestCacheIsBounded(t *testing.T) {
	var c wordCache
	word := []byte("word-00000000")
	for i := range 3 * cacheEntries {
		for j, n := len(word)-1, i; j > 4; j, n = j-1, n/10 {
			word[j] = byte('0' + n%10)
		}
		c.put(string(word), []int32{int32(i)})
		if ids, ok := c.get(string(word)); !ok || ids[0] != int32(i) {
			t.Fatalf("%s is %v", word, ids)
		}
	}
	if n := len(c.young) + len(c.old); n > 2*cacheEntries {
		t.Errorf("%d entries", n)
	}
}

// Text that comes token by token is the text that comes at once, whole at every
// point, however characters are torn.
func TestDetokenizer(t *testing.T) {
	v := toy("a b")
	v.Tokens, v.Kinds = append(v.Tokens, "<end>", "<0xF0>"), append(v.Kinds, Control, Byte)
	tok := mustNew(t, v)
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.Int32Range(0, int32(tok.Size())-1), 0, 40).Draw(t, "ids")
		if rapid.Bool().Draw(t, "mostly text") {
			ids = tok.Encode(ids[:min(len(ids), 3)], rapid.String().Draw(t, "text"), true)
		}
		d := NewDetokenizer(tok, true)
		var got []byte
		for _, id := range ids {
			piece := d.Add(id)
			if !utf8.Valid(piece) {
				t.Fatalf("piece %q", piece)
			}
			got = append(got, piece...)
			if held := d.pending; len(held) > 0 && utf8.FullRune(held) {
				t.Fatalf("%q is held back", held)
			}
		}
		got = append(got, d.Flush()...)
		raw := tok.Decode(nil, ids)
		if utf8.Valid(raw) && string(got) != string(raw) {
			t.Fatalf("got %q, want %q", got, raw)
		}
		want, rest := appendWhole(nil, raw)
		if len(rest) > 0 {
			want = utf8.AppendRune(want, utf8.RuneError)
		}
		if string(got) != string(want) {
			t.Fatalf("got %q, at once %q", got, want)
		}
	})
}

// As Python's errors="replace" and the WHATWG decoder count them.
func TestReplacementCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"\xff": "�", "\xf0\x9f": "�", "a\xf0\x9f\x98": "a�", "\xf0\x9fb": "�b", "\xc3(": "�(", "\xe2\x82\xe2\x82\xac": "�€",
		"\xed\xa0\x80": "���", "\xf0\x80\x80": "���", "\xc0\xaf": "��", "\xf4\x90\x80\x80": "����", "é": "é",
	} {
		text, rest := appendWhole(nil, []byte(in))
		if len(rest) > 0 {
			text = utf8.AppendRune(text, utf8.RuneError)
		}
		if string(text) != want {
			t.Errorf("%q gave %q, want %q", in, text, want)
		}
	}
	v := toy("a b")
	v.Tokens, v.Kinds = append(v.Tokens, "<end>"), append(v.Kinds, Control)
	tok := mustNew(t, v)
	d := NewDetokenizer(tok, false)
	if got := d.Add(int32(tok.Size() - 1)); len(got) != 0 {
		t.Errorf("a control token is shown as %q", got)
	}
	if got := d.Add(1 << 30); len(got) != 0 {
		t.Errorf("an unknown id is shown as %q", got)
	}
}

func BenchmarkEncode(b *testing.B) {
	tok := mustNew(b, smolLM2(b))
	var rows []struct{ Text string }
	readJSON(b, "testdata/tokenize.json", &rows)
	var all strings.Builder
	for _, r := range rows {
		all.WriteString(r.Text)
	}
	for name, text := range map[string]string{
		"fixtures": all.String(), "letters": strings.Repeat("a", 100_000), "spaces": strings.Repeat(" ", 100_000),
		"prose": strings.Repeat("The quick brown fox jumps over the lazy dog, and then it does so again. ", 1000),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			var ids []int32
			for b.Loop() {
				ids = tok.Encode(ids[:0], text, true)
			}
		})
	}
}

func BenchmarkRender(b *testing.B) {
	tpl, err := ParseTemplate(smolLM2(b).ChatTemplate)
	if err != nil {
		b.Fatal(err)
	}
	chat := &Chat{AddGenerationPrompt: true}
	for range 10 {
		chat.Messages = append(chat.Messages, Message{Role: "user", Content: strings.Repeat("word ", 100)})
	}
	for b.Loop() {
		if _, err := tpl.Render(b.Context(), chat); err != nil {
			b.Fatal(err)
		}
	}
}
