package tokens

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// smolLM2Template is the template of the test model.
const smolLM2Template = `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}`

func publishedTemplates(t testing.TB) map[string]string {
	t.Helper()
	var f struct{ Templates map[string]string }
	readJSON(t, "testdata/templates.json", &f)
	f.Templates["smollm2"] = smolLM2Template
	return f.Templates
}

// sameAsLibrary renders both ways and reports whether the direct one could.
func sameAsLibrary(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, tpl *Template, source string, c *Chat,
) bool {
	t.Helper()
	got, ok := tpl.AppendDirect([]byte("before"), c, 1<<20)
	if !ok {
		return false
	}
	want, err := tpl.Render(context.Background(), c)
	if err != nil {
		t.Fatalf("the library fails (%v), the direct program writes %q, of\n%s", err, got, source)
	}
	if string(got) != "before"+want {
		t.Fatalf("direct:  %q\nlibrary: %q\nof %s", got, want, source)
	}
	return true
}

func TestDirectEqualsTheLibraryOnPublishedTemplates(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	contents := []string{"", "Hello", " a \n", "<|im_end|>", "{{ x }}", "'quoted' \"text\"", "<think>a</think>b", "日本語", "\u00a0x\u00a0"}
	took := map[string]int{}
	for name, source := range publishedTemplates(t) {
		tpl, err := ParseTemplate(source)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			c := &Chat{AddGenerationPrompt: rng.IntN(2) == 0, BOS: "<s>", EOS: "</s>", Now: time.Unix(1e9, 0)}
			for i := range rng.IntN(8) {
				m := Message{Role: []string{"user", "assistant"}[i%2], Content: contents[rng.IntN(len(contents))]}
				switch rng.IntN(12) {
				case 0:
					m.Role = []string{"system", "tool", "user"}[rng.IntN(3)]
				case 1:
					m.Fields = map[string]any{"name": "n", "tool_calls": []any{map[string]any{"a": 1.0}}}
				}
				if i == 0 && rng.IntN(2) == 0 {
					m.Role = "system"
				}
				c.Messages = append(c.Messages, m)
			}
			if sameAsLibrary(t, tpl, source, c) {
				took[name]++
			}
		}
	}
	t.Log(took)
	for _, name := range []string{"smollm2", "chatml", "llama3", "qwen25", "zephyr"} {
		if took[name] < 60 {
			t.Errorf("%s was rendered directly %d times of 200", name, took[name])
		}
	}
}

// grammar writes templates of the constructs that the direct program knows, and
// of some that it does not.
type grammar struct {
	t     *rapid.T
	depth int
}

func (g *grammar) pick(options ...string) string {
	return rapid.SampledFrom(options).Draw(g.t, "pick")
}

func (g *grammar) expression() string {
	if g.depth++; g.depth > 60 {
		return "'x'"
	}
	switch rapid.IntRange(0, 17).Draw(g.t, "expression") {
	case 0, 1:
		return g.pick("'a'", "'b c'", "''", "\"\\n\"", "0", "1", "-1", "2", "true", "false", "none")
	case 2:
		return g.pick("x", "y", "undefined_name", "bos_token", "eos_token", "add_generation_prompt", "tools", "messages", "raise_exception", "message")
	case 3, 4:
		return "message" + g.pick(".role", "['content']", ".content", "['role']", ".name", ".missing", "[0]", "['tool_calls']")
	case 5:
		return "loop" + g.pick(".first", ".last", ".index", ".index0", ".revindex", ".revindex0", ".length", ".previtem", "")
	case 6:
		return "messages" + g.pick("[0]", "[1]", "[-1]", "[-2]", "[9]", "[1:]", "[:1]", "[:-1]", "[-2:]", "[1:]|length", "|length", "[loop.index0]") + g.pick("", ".role", "['content']")
	case 7:
		return g.pick("messages[0].role", "messages[0]['content']") + g.pick("", " == 'system'", "|trim")
	case 8, 9, 10:
		return g.expression() + g.pick(" + ", " + ", " ~ ", " and ", " or ", " == ", " != ", " in ", " not in ", " < ", " >= ", " - ") + g.expression()
	case 11:
		return "(" + g.expression() + ")"
	case 12:
		return "not " + g.expression()
	case 13:
		return g.expression() + " is " + g.pick("", "not ") + g.pick("defined", "none", "string", "mapping", "iterable", "sequence", "undefined", "number")
	case 14:
		return g.expression() + "|" + g.pick("trim", "length", "upper", "trim|trim", "default('d')")
	case 15:
		return "(" + g.expression() + ")" + g.pick("|trim", ".role", "[0]", "|length")
	case 16:
		return g.pick("strftime_now('%Y')", "strftime_now(x)", "message.get('role')", "message.content.strip()", "[1, 2]", "{'a': 1}")
	default:
		return "'role' " + g.pick("in ", "not in ") + g.pick("message", "messages[0]", "x", "'roles'")
	}
}

func (g *grammar) body() string {
	var b strings.Builder
	for range rapid.IntRange(0, 4).Draw(g.t, "statements") {
		if g.depth++; g.depth > 60 {
			break
		}
		open, end := "{"+g.pick("%", "%-"), g.pick("%", "-%")+"}"
		tag := func(text string) { b.WriteString(open + " " + text + " " + end) }
		switch rapid.IntRange(0, 8).Draw(g.t, "statement") {
		case 0, 1:
			b.WriteString(g.pick("text", " ", "\n", "  \n ", "\n\n", "a\n  "))
		case 2, 3:
			fmt.Fprintf(&b, "{{%s %s%s %s}}", g.pick("", "-"), g.expression(), g.pick("", "", " if "+g.expression(), " if "+g.expression()+" else "+g.expression()), g.pick("", "-"))
		case 4, 5:
			tag("if " + g.expression())
			b.WriteString(g.body())
			if rapid.Bool().Draw(g.t, "elif") {
				tag("elif " + g.expression())
				b.WriteString(g.body())
			}
			if rapid.Bool().Draw(g.t, "else") {
				tag("else")
				b.WriteString(g.body())
			}
			tag("endif")
		case 6:
			tag("for " + g.pick("message", "message", "x") + " in messages" + g.pick("", "", "[1:]", "[:-1]", "[5:]", " if message.role"))
			b.WriteString(g.body())
			if rapid.Bool().Draw(g.t, "empty") {
				tag("else")
				b.WriteString(g.body())
			}
			tag("endfor")
		case 7:
			tag("set " + g.pick("x", "y", "messages", "message") + " = " + g.pick(g.expression(), "messages[1:]", g.expression()+" if "+g.expression()+" else "+g.expression()))
		default:
			b.WriteString("{# comment #}")
		}
	}
	return b.String()
}

func TestDirectEqualsTheLibraryOnRandomTemplates(t *testing.T) {
	direct, parsed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		g := &grammar{t: t}
		source := g.body()
		tpl, err := ParseTemplate(source)
		if err != nil {
			return
		}
		parsed++
		c := &Chat{AddGenerationPrompt: rapid.Bool().Draw(t, "generate"), BOS: rapid.SampledFrom([]string{"", "<s>"}).Draw(t, "bos"), EOS: "</s>", Now: time.Unix(1e9, 0)}
		for range rapid.IntRange(0, 3).Draw(t, "messages") {
			m := Message{
				Role:    rapid.SampledFrom([]string{"system", "user", "assistant"}).Draw(t, "role"),
				Content: rapid.SampledFrom([]string{"", "hi", " a\n", "role", "1"}).Draw(t, "content"),
			}
			if rapid.IntRange(0, 4).Draw(t, "fields") == 0 {
				m.Fields = map[string]any{"name": "n", "tool_calls": []any{}}
			}
			c.Messages = append(c.Messages, m)
		}
		if sameAsLibrary(t, tpl, source, c) {
			direct++
		}
	})
	t.Logf("%d templates, %d of them rendered directly", parsed, direct)
}

func TestDirectIsBounded(t *testing.T) {
	chat := &Chat{Messages: make([]Message, 3000)}
	for i := range chat.Messages {
		chat.Messages[i] = Message{Role: "user", Content: "x"}
	}
	for _, source := range []string{
		"{% for a in messages %}{% for b in messages %}{% for c in messages %}{% endfor %}{% endfor %}{% endfor %}",
		"{% set x = 'xxxxxxxx' %}" + strings.Repeat("{% set x = x + x %}", 200),
		"{% for m in messages %}{{ m.content + 'a long text in every message' }}{% endfor %}",
	} {
		tpl, err := ParseTemplate(source)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := tpl.AppendDirect(nil, chat, 1000); ok {
			t.Errorf("rendered to the end: %.60s", source)
		}
	}
	tpl, err := ParseTemplate("{{ custom }}")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := tpl.AppendDirect(nil, &Chat{Extra: map[string]any{"custom": 1}}, 1000); ok {
		t.Error("rendered with variables of the client's")
	}
}

func BenchmarkRenderWays(b *testing.B) {
	for _, name := range []string{"smollm2", "llama3", "qwen25"} {
		tpl, err := ParseTemplate(publishedTemplates(b)[name])
		if err != nil {
			b.Fatal(err)
		}
		for _, n := range []int{2, 100} {
			c := &Chat{AddGenerationPrompt: true, Messages: []Message{{Role: "system", Content: strings.Repeat("The quick brown fox jumps over. ", 1500)}}}
			for i := 1; i < n; i++ {
				c.Messages = append(c.Messages, Message{Role: []string{"assistant", "user"}[i%2], Content: "What is the weather today?"})
			}
			b.Run(fmt.Sprintf("%s/%d/library", name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := tpl.Render(b.Context(), c); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(fmt.Sprintf("%s/%d/direct", name, n), func(b *testing.B) {
				b.ReportAllocs()
				var out []byte
				var ok bool
				for b.Loop() {
					if out, ok = tpl.AppendDirect(out[:0], c, 1<<20); !ok {
						b.Fatal("not rendered")
					}
				}
			})
		}
	}
}
