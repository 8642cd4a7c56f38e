package bind

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"slices"
	"strings"
	"text/template"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// Language is one that has an SDK.
type Language string

// The languages.
const (
	C              Language = "c"
	Go             Language = "go"
	Rust           Language = "rust"
	AssemblyScript Language = "assemblyscript"
)

// Languages are all languages.
func Languages() []Language { return []Language{C, Go, Rust, AssemblyScript} }

// ErrLanguage says that a language has no SDK.
var ErrLanguage = errors.New("unknown language")

// ErrNames says that two names of a manifest become one in the language.
var ErrNames = errors.New("names collide")

//go:embed *.tmpl
var sources embed.FS

// files are the bindings' paths from a policy's folder.
var files = map[Language]string{
	C:              "policy.gen.h",
	Go:             "policy_gen.go",
	Rust:           "src/policy_gen.rs",
	AssemblyScript: "assembly/policy.gen.ts",
}

// Generate returns the bindings of a policy and their path from the policy's folder.
// The same manifest makes the same bytes. Errors wrap [ErrLanguage] or [ErrNames].
func Generate(m *abi.Manifest, lang Language) (path string, code []byte, err error) {
	path, ok := files[lang]
	if !ok {
		return "", nil, fmt.Errorf("%w %q; there are %v", ErrLanguage, lang, Languages())
	}
	v := viewOf(m, lang)
	if err := v.distinct(); err != nil {
		return "", nil, err
	}
	t, err := template.New(string(lang)+".tmpl").Funcs(template.FuncMap{"add": func(a, b int) int { return a + b }}).ParseFS(sources, string(lang)+".tmpl")
	if err != nil {
		return "", nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, v); err != nil {
		return "", nil, err
	}
	if lang != Go {
		return path, out.Bytes(), nil
	}
	code, err = format.Source(out.Bytes())
	return path, code, err
}

// view is a manifest as the templates see it, with names of the language.
type view struct {
	Row                 string
	RequestSize         uint32
	Inputs, Outputs     []column
	Params              []param
	Counters            []metric
	Histograms          []metric
	Router, Admission   bool
	Autoscaler, Observe bool
}

type column struct {
	Name, Help string
	F32        bool
}

type param struct {
	Name, Help string
	Type       abi.ParamType
}

type metric struct{ Name, Help string }

func viewOf(m *abi.Manifest, lang Language) view {
	v := view{
		RequestSize: m.Kind.RequestSize(),
		Router:      m.Kind == abi.Router, Admission: m.Kind == abi.Admission,
		Autoscaler: m.Kind == abi.Autoscaler, Observe: m.Kind == abi.Observer,
	}
	switch m.Kind {
	case abi.Router:
		v.Row = "worker"
	case abi.Autoscaler:
		v.Row = "sample of a pool"
	case abi.Observer:
		v.Row = "outcome"
	case abi.Admission:
	}
	known := m.Kind.Columns()
	for _, use := range m.Columns {
		c := column{Name: spell(use.Name, lang), F32: true, Help: "unknown to this version"}
		if at := slices.IndexFunc(known, func(k abi.Column) bool { return k.Name == use.Name }); at >= 0 {
			c.F32, c.Help = known[at].Type == abi.F32, known[at].Help
		}
		v.Inputs = append(v.Inputs, c)
	}
	for _, o := range m.Kind.Outputs() {
		v.Outputs = append(v.Outputs, column{spell(o.Name, lang), o.Help, o.Type == abi.F32})
	}
	for _, p := range m.Params {
		v.Params = append(v.Params, param{spell(p.Name, lang), oneLine(p.Help), p.Type})
	}
	for _, c := range m.Counters {
		v.Counters = append(v.Counters, metric{constant("counter_"+c.Name, lang), oneLine(c.Help)})
	}
	for _, h := range m.Histograms {
		v.Histograms = append(v.Histograms, metric{constant("histogram_"+h.Name, lang), oneLine(h.Help)})
	}
	return v
}

// oneLine keeps a help text from ending a comment.
func oneLine(s string) string {
	return strings.NewReplacer("\n", " ", "\r", " ", "*/", "* /").Replace(s)
}

// reserved are the languages' words that may be a param's name.
var reserved = map[Language][]string{
	C: strings.Fields("auto break case char const continue default do double else enum extern float for goto if inline int long " +
		"register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while"),
	Rust: strings.Fields("as async await box break const continue crate do dyn else enum extern false final fn for if impl in let loop " +
		"macro match mod move mut override priv pub ref return self static struct super trait true try type typeof unsafe " +
		"unsized use virtual where while yield abstract become"),
	AssemblyScript: strings.Fields("abstract any as async await break case catch class const continue debugger declare default delete do " +
		"else enum export extends false finally for function get if implements import in instanceof interface is let module namespace " +
		"new null of package private protected public readonly return set static super switch this throw true try type typeof var " +
		"void while with yield"),
}

// spell makes a name the language's: QueuedTokens in Go, queuedTokens in
// AssemblyScript, queued_tokens elsewhere.
func spell(name string, lang Language) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' })
	for i, w := range words {
		if lang == Go || lang == AssemblyScript && i > 0 {
			words[i] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	out := strings.Join(words, "_")
	if lang == Go || lang == AssemblyScript {
		out = strings.Join(words, "")
	}
	if slices.Contains(reserved[lang], out) {
		out += "_"
	}
	return out
}

func constant(name string, lang Language) string {
	if lang == Go {
		return strings.ToLower(name[:1]) + spell(name, Go)[1:]
	}
	return strings.ToUpper(name)
}

// distinct says which names have become one.
func (v view) distinct() error {
	seen := map[string]bool{}
	check := func(prefix, name string) error {
		if seen[prefix+name] {
			return fmt.Errorf("%w: two are spelt %q in this language; rename one in the manifest", ErrNames, name)
		}
		seen[prefix+name] = true
		return nil
	}
	var all []error
	for _, c := range slices.Concat(v.Inputs, v.Outputs) {
		all = append(all, check("column ", c.Name))
	}
	for _, p := range v.Params {
		all = append(all, check("param ", p.Name))
	}
	for _, m := range slices.Concat(v.Counters, v.Histograms) {
		all = append(all, check("metric ", m.Name))
	}
	return errors.Join(all...)
}
