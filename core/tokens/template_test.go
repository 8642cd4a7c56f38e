package tokens

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSmolLM2Chats(t *testing.T) {
	tok, err := New(smolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := ParseTemplate(tok.ChatTemplate())
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Messages []Message `json:"messages"`
		With     string    `json:"text_add_generation_prompt"`
		Without  string    `json:"text_no_generation_prompt"`
		IDs      []int32   `json:"ids_add_generation_prompt"`
	}
	readJSON(t, "testdata/chat_template.json", &rows)
	for _, row := range rows {
		got, err := tpl.Render(t.Context(), &Chat{Messages: row.Messages, AddGenerationPrompt: true})
		if err != nil || got != row.With {
			t.Errorf("got  %q, %v\nwant %q", got, err, row.With)
		}
		if ids := tok.Encode(nil, got, true); !slices.Equal(ids, row.IDs) {
			t.Errorf("ids %v\nwant %v", ids, row.IDs)
		}
		if got, err := tpl.Render(t.Context(), &Chat{Messages: row.Messages}); err != nil || got != row.Without {
			t.Errorf("got  %q, %v\nwant %q", got, err, row.Without)
		}
	}
}

func TestTemplatesAsJinja(t *testing.T) {
	var file struct {
		Templates map[string]string
		Rows      []struct {
			Name     string
			Messages []Message
			Gen      bool
			Extra    map[string]any
			Text     string
			Raised   string
		}
	}
	readJSON(t, "testdata/templates.json", &file)
	parsed := map[string]*Template{}
	for name, source := range file.Templates {
		tpl, err := ParseTemplate(source)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		parsed[name] = tpl
	}
	now := time.Date(2026, 3, 4, 15, 6, 7, 0, time.UTC)
	for _, row := range file.Rows {
		tpl := parsed[row.Name]
		if tpl == nil {
			continue
		}
		got, err := tpl.Render(t.Context(), &Chat{
			Messages: row.Messages, AddGenerationPrompt: row.Gen, BOS: "<s>", EOS: "</s>", Extra: row.Extra, Now: now,
		})
		if raised, ok := errors.AsType[*RaisedError](err); row.Raised != "" {
			if !ok || raised.Message != row.Raised {
				t.Errorf("%s: %v, want raised %q", row.Name, err, row.Raised)
			}
		} else if err != nil || got != row.Text {
			t.Errorf("%s %v:\n got  %q, %v\n want %q", row.Name, row.Messages, got, err, row.Text)
		}
	}
}

// A hostile template must end, and must not reach outside.
func TestHostileTemplates(t *testing.T) {
	many := strings.Repeat
	tests := map[string]string{
		"include":         `{% include '/etc/passwd' %}`,
		"import":          `{% import '/etc/passwd' as x %}`,
		"extends":         `{% extends '/etc/passwd' %}`,
		"from":            `{% from '/etc/passwd' import x %}`,
		"long range":      `{% for i in range(1000000000) %}{% endfor %}`,
		"nested ranges":   `{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}`,
		"filtered loops":  `{% for i in range(9999) %}{% for j in range(9999) if false %}{% endfor %}{% endfor %}`,
		"doubling":        `{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}`,
		"doubling list":   `{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}`,
		"tilde":           `{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}`,
		"times":           `{{ 'a' * 1000000000 }}`,
		"power":           `{{ 9 ** 9 ** 9 }}`,
		"output":          `{% for i in range(9999) %}{{ '` + many("a", 9999) + `' }}{% endfor %}`,
		"recursion":       `{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
		"growing macro":   `{% macro f(x) %}` + many("{{x}}", 3000) + `{% endmacro %}{{ f(f(f(f(f(f('aa')))))) }}`,
		"macro arguments": `{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('aaaaaaaa') }}`,
		"macro fan-out":   `{% macro f(x) %}{% if x > 0 %}{{ f(x-1) }}{{ f(x-1) }}{{ f(x-1) }}{% endif %}{% endmacro %}{{ f(50) }}`,
		"self-reference":  `{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}`,
		"two references":  `{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a }}`,
		"replace":         `{% set x = '` + many("a", 9999) + `' %}{{ x | replace('a', x) | replace('a', x) }}`,
		"replace method":  `{% set x = '` + many("a", 9999) + `' %}{{ x.replace('a', x).replace('a', x) }}`,
		"join":            `{% set x = '` + many("a", 9999) + `' %}{{ x.join(x).join(x) }}`,
		"method chain":    `{{ 'a'` + many(".strip()", 9) + ` }}`,
		"brackets":        `{{ ` + many("(", 30000) + `1` + many(")", 30000) + ` }}`,
		"lists":           `{{ ` + many("[", 30000) + many("]", 30000) + ` }}`,
		"nots":            `{{ ` + many("not ", 15000) + `1 }}`,
		"minuses":         `{{ ` + many("-", 60000) + `1 }}`,
		"sums":            `{{ 1` + many("+1", 30000) + ` }}`,
		"blocks":          many("{% if true %}", 4000) + many("{% endif %}", 4000),
		"size":            many("a", 1<<20),
		"endless range":   `{% for i in range(0, 10, 0) %}{% endfor %}`,
		"wide indent":     `{{ 'a\na' | indent(1000000000) }}`,
		"json indent":     `{{ [1] | tojson(indent=1000000000) }}`,
		"format":          `{{ '%1000000000d' | format(1) }}`,
		"center":          `{{ 'a' | center(1000000000) }}`,
		"center method":   `{{ 'a'.center(1000000000) }}`,
		"ljust":           `{{ 'a'.ljust(1000000000) }}`,
		"recursive loop":  `{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}`,
		"division":        `{{ 1 % 0 }}`,
		"unclosed":        `{% for`,
		"garbage":         `{{ }} {% %} {# `,
		"call block":      `{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{{ f() }}{% endcall %}`,
		"budget name":     "{% set \x00budget = 1 %}x",
	}
	for name, source := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			tpl, err := ParseTemplate(source)
			if err == nil {
				_, err = tpl.Render(t.Context(), &Chat{Messages: []Message{{Role: "user", Content: "x"}}})
			}
			if !errors.Is(err, ErrTemplate) && !errors.Is(err, ErrTemplateBudget) {
				t.Errorf("got %v", err)
			} else if len(err.Error()) > 400 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			if d := time.Since(start); d > 10*time.Second*slowness {
				t.Errorf("took %v", d)
			}
		})
	}
}

func TestRenderStopsWithItsContext(t *testing.T) {
	tpl, err := ParseTemplate(`{% for i in range(100) %}{% for j in range(100) %}{% endfor %}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tpl.Render(ctx, &Chat{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		`{% for m in messages %}{{ m.role }}{% endfor %}`, `{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}`,
		`{% macro f(x, y=2) %}{{ f(x ~ y) }}{% endmacro %}{{ f(1) }}`, `{{ messages | tojson(indent=2) }}`,
		`{{ messages[0].content.split('x')[-1] | trim }}`, `{% if a is defined and not b %}{% elif c %}{% else %}{% endif %}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		tpl, err := ParseTemplate(source)
		if err != nil {
			return
		}
		_, _ = tpl.Render(t.Context(), &Chat{Messages: []Message{{Role: "user", Content: "xyz"}}})
	})
}
