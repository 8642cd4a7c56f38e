package tokens

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// Message is one turn of a chat.
type Message struct {
	Role    string
	Content string
	// Fields are further members of the message as decoded JSON, e.g. name.
	Fields map[string]any
}

// Chat is what a template renders.
type Chat struct {
	Messages            []Message
	AddGenerationPrompt bool
	BOS, EOS            string // texts of the special tokens, for bos_token and eos_token
	// Extra are further variables, as decoded JSON. They cannot replace those
	// above.
	Extra map[string]any
	// Now is what strftime_now shows.
	Now time.Time
}

// Errors of templates.
var (
	// ErrTemplate means a template that cannot be parsed or that fails when it
	// is rendered.
	ErrTemplate = errors.New("chat template failed")
	// ErrTemplateBudget means a template that computes or writes too much.
	ErrTemplateBudget = errors.New("chat template exceeds its budget")
)

// RaisedError is what a template says by raise_exception: the messages do not
// suit the model, e.g. roles that do not alternate. Its text is meant for the
// client.
type RaisedError struct{ Message string }

// Error is the template's own text.
func (e *RaisedError) Error() string { return e.Message }

// Template is a chat template, parsed. It is safe for concurrent use.
//
// Statements that load other templates do not exist in it, nor filters and
// methods that no chat template needs. Rendering is bounded by a budget of
// steps and bytes, and ends early when its context does.
type Template struct {
	tpl     *exec.Template
	env     *exec.Environment
	program []statement // of AppendDirect
	states  sync.Pool   // of *direct
}

// ParseTemplate parses Jinja source. Blocks are trimmed as Hugging Face does
// (trim_blocks, lstrip_blocks). Errors wrap ErrTemplate or ErrTemplateBudget.
func ParseTemplate(source string) (t *Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("%w: %v", ErrTemplate, p)
		}
	}()
	cfg := config.New()
	cfg.TrimBlocks, cfg.LeftStripBlocks = true, true
	if err := inspect(source, cfg); err != nil {
		return nil, err
	}
	env := sandbox()
	tpl, err := exec.NewTemplate(rootName, cfg, onlyRoot(source), env)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrTemplate, shorten(err))
	}
	return &Template{tpl: tpl, env: env, program: compileNodes(tpl.Root().Nodes)}, nil
}

// Render gives the prompt. What a template raises is a *RaisedError; other
// failures wrap ErrTemplate or ErrTemplateBudget, or are ctx's own error.
func (t *Template) Render(ctx context.Context, c *Chat) (text string, err error) {
	b := newBudget(ctx, c)
	defer func() {
		if p := recover(); p != nil {
			text, err = "", b.failure(fmt.Errorf("%v", p))
		}
	}()
	out := &cappedWriter{budget: b}
	if err := t.tpl.Execute(out, exec.NewContext(c.variables(b))); err != nil {
		return "", b.failure(err)
	}
	if b.err != nil { // an expression may have swallowed it
		return "", b.failure(b.err)
	}
	return out.text.String(), nil
}

// variables are the names that a template sees.
func (c *Chat) variables(b *budget) map[string]any {
	vars := make(map[string]any, len(c.Extra)+8)
	for name, v := range c.Extra {
		vars[name] = plain(v)
	}
	messages := make([]any, len(c.Messages))
	for i, m := range c.Messages {
		fields := make(map[string]any, len(m.Fields)+2)
		for name, v := range m.Fields {
			fields[name] = plain(v)
		}
		fields["role"], fields["content"] = m.Role, m.Content
		messages[i] = fields
	}
	vars["messages"] = messages
	vars["add_generation_prompt"] = c.AddGenerationPrompt
	vars["bos_token"], vars["eos_token"] = c.BOS, c.EOS
	vars["tools"], vars["documents"] = nil, nil
	vars["strftime_now"] = func(format string) string { return strftime(c.Now, format) }
	vars["raise_exception"] = func(message string) (string, error) {
		b.raised = &RaisedError{Message: clipTo(message, 512)}
		return "", b.raised
	}
	vars[budgetName] = b
	return vars
}

// plain turns whole JSON numbers into integers: to a template 2 is not 2.0.
func plain(v any) any {
	switch v := v.(type) {
	case float64:
		if v == float64(int(v)) {
			return int(v)
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = plain(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = plain(e)
		}
		return out
	}
	return v
}

// failure finds the reason behind err.
func (b *budget) failure(err error) error {
	switch {
	case b.raised != nil:
		return b.raised
	case b.err != nil:
		return b.err
	}
	return fmt.Errorf("%w: %s", ErrTemplate, shorten(err))
}

// shorten keeps the end of an error's text, where the cause is: the library
// quotes whole templates and values in front of it.
func shorten(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "': "); i >= 0 && len(text) > 200 {
		text = text[i+3:]
	}
	if len(text) > 200 {
		text = "…" + text[len(text)-200:]
	}
	return strings.ToValidUTF8(text, "")
}

func clipTo(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return s
}

const rootName = "chat_template"

// onlyRoot is a loader that knows one template and no files.
type onlyRoot string

func (s onlyRoot) Read(path string) (io.Reader, error) {
	if path != rootName {
		return nil, fmt.Errorf("%w: no template %q", ErrTemplate, clip(path))
	}
	return strings.NewReader(string(s)), nil
}

func (s onlyRoot) Resolve(path string) (string, error) { return path, nil }

func (s onlyRoot) Inherit(string) (loaders.Loader, error) { return s, nil }

// strftime formats the directives that chat templates use; others stay as they are.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'm': "01", 'y': "06", 'Y': "2006",
		'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002", 'Z': "MST", 'z': "-0700",
	}
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		switch {
		case ok:
			out.WriteString(t.Format(layout))
		case format[i] == '%':
			out.WriteByte('%')
		default:
			out.WriteByte('%')
			out.WriteByte(format[i])
		}
	}
	return out.String()
}
