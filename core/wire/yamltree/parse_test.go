package yamltree

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
)

// Every way to nest or to go on is refused, or parsed, in memory that is in
// proportion to the text. Memory stands for time here: it can be held on a busy
// machine, and the parser's time goes into copying.
func TestNoTextCostsMoreThanItsSize(t *testing.T) {
	const size = 256 << 10
	stairs := func(step string) string {
		var b strings.Builder
		for depth := 0; b.Len() < size; depth++ {
			b.WriteString(strings.Repeat(" ", depth) + step + "\n")
		}
		return b.String()
	}
	texts := map[string]string{"stairs of keys": stairs("a:"), "stairs of dashes": stairs("-"), "stairs of dash and key": stairs("- a:")}
	for _, unit := range []string{
		"[", "{", "{a: ", "[{a: ", "- ", "- - a: ", "? ", "!t ", "&a ", "*a ", "a: ", "a,", "a: 1\n", "- a\n", "- a: 1\n", "---\n",
		"x", "x\n", "#x\n", "\"", "'", "|\n", "[]", "{}", "]", "}", "[a]\n", "- [\n", "\t", "\n", "\x00", "\xff",
	} {
		texts["many "+unit] = strings.Repeat(unit, size/len(unit))
		texts["many in brackets "+unit] = "[" + strings.Repeat(unit, size/len(unit)) + "]"
	}
	texts["closed brackets"] = strings.Repeat("[", size/2) + strings.Repeat("]", size/2)
	for name, text := range texts {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse([]byte(text), parser.AllowDuplicateMapKey())
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<10*size {
			t.Errorf("%s: %d MiB for %d KiB (%v)", name, used>>20, len(text)>>10, err)
		}
	}
}

func TestBoundsNameThePlace(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nb: " + strings.Repeat("[", 100):                                "2:68 nested deeper than 64",
		strings.Repeat("- ", 100) + "x":                                       "1:129 nested deeper than 64",
		strings.Repeat("a: 1\n", MaxTokens/3+1):                               "",
		"a: " + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth): "fine",
		"text: '" + strings.Repeat("[", 1000) + "'":                           "fine",
		strings.Repeat("- [x]\n", 1000):                                       "fine",
	} {
		_, err := Parse([]byte(text))
		fault, is := errors.AsType[*yaml.SyntaxError](err)
		switch {
		case want == "fine":
			if err != nil {
				t.Errorf("%.20q: %v", text, err)
			}
		case !is || fault.Token == nil:
			t.Errorf("%.20q: %v", text, err)
		case want != "":
			if p := fault.Token.Position; !strings.HasSuffix(want, fault.Message) || !strings.HasPrefix(want, fmt.Sprintf("%d:%d ", p.Line, p.Column)) {
				t.Errorf("%.20q: %d:%d %s", text, p.Line, p.Column, fault.Message)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a: [1, {b: c}]\n", "- - - x\n", "? {", "a: |\n  x\n---\nb", "&a [*a]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if file, err := Parse([]byte(s)); (file == nil) == (err == nil) {
			t.Errorf("%v, %v", file, err)
		}
	})
}
