package tokens

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"pgregory.net/rapid"
)

func splitAll(split splitter, s string) []string {
	out := []string{}
	for s != "" {
		n := split(s)
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

func TestSplitAsHuggingFace(t *testing.T) {
	var file struct {
		Columns []string
		Rows    [][]json.RawMessage
	}
	readJSON(t, "testdata/words.json", &file)
	for _, row := range file.Rows {
		var text string
		if err := json.Unmarshal(row[0], &text); err != nil {
			t.Fatal(err)
		}
		for i, pre := range file.Columns {
			var want []string
			if err := json.Unmarshal(row[i+1], &want); err != nil {
				t.Fatal(err)
			}
			if got := splitAll(splitterOf(pre), text); !slices.Equal(got, want) {
				t.Errorf("%s: %q\n got  %q\n want %q", pre, text, got, want)
			}
		}
	}
}

const (
	gpt2Expression  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llamaExpression = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|'ſ)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

var anyText = rapid.Custom(func(t *rapid.T) string {
	atom := rapid.OneOf(
		rapid.SampledFrom([]string{"'s", "'LL", "'", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "a", "é", "中", "1", "²", "!", "--", "😀", "\u0301"}),
		rapid.StringN(1, 3, -1),
	)
	return strings.Join(rapid.SliceOfN(atom, 0, 24).Draw(t, "atoms"), "")
})

func TestSplitAsExpression(t *testing.T) {
	for pre, expr := range map[string]string{
		PreGPT2: gpt2Expression, PreLlama3: llamaExpression, PreQwen2: strings.Replace(llamaExpression, "{1,3}", "", 1),
	} {
		re := regexp2.MustCompile(expr, regexp2.None)
		re.MatchTimeout = time.Minute
		rapid.Check(t, func(t *rapid.T) {
			text := anyText.Draw(t, "text")
			var want []string
			m, err := re.FindStringMatch(text)
			for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
				want = append(want, m.String())
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := splitAll(splitterOf(pre), text); !slices.Equal(got, want) {
				t.Fatalf("%s: %q\n got  %q\n want %q", pre, text, got, want)
			}
		})
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", "a 1  2\n b", "'ſ 's\r\n\r\n !\n", "\xff \xc3( \x80", " \u00a0\u2003x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, pre := range []string{PreGPT2, PreSmolLM, PreLlama3, PreQwen2} {
			rest := s
			for rest != "" {
				n := splitterOf(pre)(rest)
				if n <= 0 || n > len(rest) {
					t.Fatalf("%s: word of %d bytes in %q", pre, n, rest)
				}
				if utf8.ValidString(s) && !utf8.ValidString(rest[:n]) {
					t.Fatalf("%s: %q cut inside a character", pre, rest[:n])
				}
				rest = rest[n:]
			}
		}
	})
}
