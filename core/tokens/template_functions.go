package tokens

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nikolalohinski/gonja/v2/exec"
)

const maxRange = 10_000

// rangeFunction is Jinja's range as a list. The library's own runs a goroutine
// that leaks when a loop breaks.
func rangeFunction(e *exec.Evaluator, params *exec.VarArgs) ([]any, error) {
	var n [3]int
	for i, a := range params.Args {
		if i >= len(n) || !a.IsInteger() {
			return nil, fmt.Errorf("%w: range takes one to three integers", ErrTemplate)
		}
		n[i] = a.Integer()
	}
	start, stop, step := n[0], n[1], n[2]
	switch len(params.Args) {
	case 0:
		return nil, fmt.Errorf("%w: range takes one to three integers", ErrTemplate)
	case 1:
		start, stop, step = 0, n[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		return nil, fmt.Errorf("%w: range with a step of zero", ErrTemplate)
	}
	b := budgetOf(e.Environment.Context)
	out := []any{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(out) == maxRange {
			b.err = fmt.Errorf("%w: a range has more than %d numbers", ErrTemplateBudget, maxRange)
			return nil, b.err
		}
		out = append(out, i)
	}
	return out, b.spend(len(out) / 16)
}

// meteredFilter charges for a filter's call and checks its result.
func meteredFilter(f exec.FilterFunction) exec.FilterFunction {
	return func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
		b := budgetOf(e.Environment.Context)
		if err := b.spend(1); err != nil {
			return exec.AsValue(err)
		}
		out := f(e, in, params)
		if !out.IsError() {
			if err := b.hold(out.Interface()); err != nil {
				return exec.AsValue(err)
			}
		}
		return out
	}
}

// guardedReplace refuses before it computes what would not fit.
func guardedReplace(f exec.FilterFunction) exec.FilterFunction {
	return func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
		if len(params.Args) >= 2 {
			if err := replaceFits(in.String(), params.Args[0].String(), params.Args[1].String()); err != nil {
				return exec.AsValue(err)
			}
		}
		return f(e, in, params)
	}
}

func replaceFits(s, old, by string) error {
	if grown := strings.Count(s, old) * (len(by) - len(old)); grown > budgetBytes {
		return fmt.Errorf("%w: replace grows a text by %d bytes", ErrTemplateBudget, grown)
	}
	return nil
}

func guardedJoin(f exec.FilterFunction) exec.FilterFunction {
	return func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
		if len(params.Args) > 0 {
			if err := joinFits(params.Args[0].String(), in.Len()); err != nil {
				return exec.AsValue(err)
			}
		}
		return f(e, in, params)
	}
}

func joinFits(separator string, n int) error {
	if grown := len(separator) * n; grown > budgetBytes {
		return fmt.Errorf("%w: join grows a text by %d bytes", ErrTemplateBudget, grown)
	}
	return nil
}

// boundedMethod checks the methods that can multiply their input.
func boundedMethod(name string, m exec.Method[string]) exec.Method[string] {
	switch name {
	case "replace":
		return func(self string, v *exec.Value, a *exec.VarArgs) (any, error) {
			if len(a.Args) >= 2 {
				if err := replaceFits(self, a.Args[0].String(), a.Args[1].String()); err != nil {
					return nil, err
				}
			}
			return m(self, v, a)
		}
	case "join":
		return func(self string, v *exec.Value, a *exec.VarArgs) (any, error) {
			if len(a.Args) > 0 {
				if err := joinFits(self, a.Args[0].Len()); err != nil {
					return nil, err
				}
			}
			return m(self, v, a)
		}
	}
	return m
}

// splitMethod splits at white space when no separator is given, which the
// library's own does not manage.
func splitMethod(m exec.Method[string]) exec.Method[string] {
	return func(self string, v *exec.Value, a *exec.VarArgs) (any, error) {
		if len(a.Args) > 0 || len(a.KwArgs) > 0 {
			return m(self, v, a)
		}
		words := strings.Fields(self)
		out := make([]any, len(words))
		for i, w := range words {
			out[i] = w
		}
		return out, nil
	}
}

// filterIndent is Jinja's indent: width spaces before every line but the first
// (with first=true before that too) that is not blank.
func filterIndent(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	width, first := 4, false
	if len(params.Args) > 0 {
		width = params.Args[0].Integer()
	}
	if v, ok := params.KwArgs["width"]; ok {
		width = v.Integer()
	}
	if len(params.Args) > 1 {
		first = params.Args[1].IsTrue()
	}
	if v, ok := params.KwArgs["first"]; ok {
		first = v.IsTrue()
	}
	if width < 0 || width > 16 {
		return exec.AsValue(fmt.Errorf("%w: indent by %d", ErrTemplateBudget, width))
	}
	pad := strings.Repeat(" ", width)
	lines := strings.Split(in.String(), "\n")
	for i, line := range lines {
		if line != "" && (i > 0 || first) {
			lines[i] = pad + line
		}
	}
	return exec.AsValue(strings.Join(lines, "\n"))
}

// filterToJSON is Hugging Face's tojson: Python's json.dumps without escaping
// anything beyond ASCII. Keys come in alphabetical order, because the order of
// the client's is not kept.
func filterToJSON(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	indent := -1
	v, ok := params.KwArgs["indent"]
	if !ok && len(params.Args) > 0 {
		v, ok = params.Args[0], true
	}
	if ok && v.IsInteger() {
		indent = v.Integer()
	}
	if indent > 16 {
		return exec.AsValue(fmt.Errorf("%w: indent by %d", ErrTemplateBudget, indent))
	}
	value := in.ToGoSimpleType(false)
	if err, bad := value.(error); bad {
		return exec.AsValue(err)
	}
	out, err := appendPython(nil, reflect.ValueOf(value), indent, 0)
	if err != nil {
		return exec.AsValue(err)
	}
	return exec.AsValue(string(out))
}

// appendPython appends v as Python's json.dumps does. A negative indent is the
// one-line form.
func appendPython(dst []byte, v reflect.Value, indent, depth int) ([]byte, error) {
	if depth > maxValueDepth {
		return nil, fmt.Errorf("%w: JSON nests too deeply", ErrTemplateBudget)
	}
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Invalid:
		return append(dst, "null"...), nil
	case reflect.String:
		return appendQuoted(dst, v.String()), nil
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool()), nil
	case reflect.Int, reflect.Int64, reflect.Int32:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case reflect.Float64:
		b, err := json.Marshal(v.Float())
		return append(dst, b...), err
	case reflect.Slice, reflect.Array:
		return appendItems(dst, '[', ']', v.Len(), indent, depth, func(dst []byte, i int) ([]byte, error) {
			return appendPython(dst, v.Index(i), indent, depth+1)
		})
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		return appendItems(dst, '{', '}', len(keys), indent, depth, func(dst []byte, i int) ([]byte, error) {
			dst = append(appendQuoted(dst, fmt.Sprint(keys[i])), ": "...)
			return appendPython(dst, v.MapIndex(keys[i]), indent, depth+1)
		})
	default:
		return nil, fmt.Errorf("%w: %s is not JSON", ErrTemplate, v.Kind())
	}
}

func appendItems(
	dst []byte, open, end byte, n, indent, depth int, item func([]byte, int) ([]byte, error),
) ([]byte, error) {
	dst = append(dst, open)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		switch {
		case indent >= 0:
			dst = append(dst, '\n')
			dst = append(dst, strings.Repeat(" ", indent*(depth+1))...)
		case i > 0:
			dst = append(dst, ' ')
		}
		var err error
		if dst, err = item(dst, i); err != nil {
			return nil, err
		}
	}
	if n > 0 && indent >= 0 {
		dst = append(dst, '\n')
		dst = append(dst, strings.Repeat(" ", indent*depth)...)
	}
	return append(dst, end), nil
}

// appendQuoted quotes as json.dumps with ensure_ascii=False does.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c == '\b':
			dst = append(dst, `\b`...)
		case c == '\f':
			dst = append(dst, `\f`...)
		case c < 0x20:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
