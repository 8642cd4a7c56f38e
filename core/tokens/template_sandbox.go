package tokens

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/nikolalohinski/gonja/v2/builtins"
	controlStructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	lex "github.com/nikolalohinski/gonja/v2/tokens"
)

// The template library neither stops nor forgets: a loop runs to its end, a
// macro may call itself until the stack is full, a string may double in every
// round. So a template is inspected before it is parsed (inspect), sees only
// what is listed here, and pays for every loop round, macro call, filter,
// method and stored value out of a budget.
const (
	maxTemplate    = 64 << 10 // bytes of source
	maxStatement   = 1024     // lexical tokens in one {{ }} or {% %}
	maxMethodCalls = 8        // in one statement: the library evaluates x in x.f() twice
	maxBrackets    = 32       // depth within a statement
	maxBlocks      = 64       // depth of statements
	maxCalls       = 64       // depth of macro calls
	maxValueDepth  = 32

	budgetSteps = 200_000
	budgetBytes = 4 << 20 // plus eight times the chat's own size
	// budgetName is the variable that holds the budget; no template can spell it.
	budgetName = "\x00budget"
	// iterableName holds a loop's iterable between its evaluation and its use.
	iterableName = "\x00iterable"
)

var allowedFilters = []string{
	"abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items",
	"join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse",
	"round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "trim", "unique", "upper", "wordcount",
}

var allowedStringMethods = []string{
	"capitalize", "count", "endswith", "find", "isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric",
	"isspace", "isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind",
	"rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
}

var allowedDictMethods = []string{"get", "items", "keys", "values"}

// sandbox is the environment that chat templates run in.
func sandbox() *exec.Environment {
	filters := map[string]exec.FilterFunction{"tojson": meteredFilter(filterToJSON), "indent": meteredFilter(filterIndent)}
	for _, name := range allowedFilters {
		if f, ok := builtins.Filters.Get(name); ok {
			filters[name] = meteredFilter(f)
		}
	}
	filters["replace"] = meteredFilter(guardedReplace(filters["replace"]))
	filters["join"] = meteredFilter(guardedJoin(filters["join"]))
	strs := map[string]exec.Method[string]{}
	for _, name := range allowedStringMethods {
		if m, ok := builtins.Methods.Str.Get(name); ok {
			strs[name] = boundedMethod(name, m)
		}
	}
	strs["split"] = splitMethod(strs["split"])
	dicts := map[string]exec.Method[map[string]any]{}
	for _, name := range allowedDictMethods {
		if m, ok := builtins.Methods.Dict.Get(name); ok {
			dicts[name] = m
		}
	}
	globals := exec.NewContext(map[string]any{"range": rangeFunction})
	for _, name := range []string{"namespace", "dict"} {
		if f, ok := builtins.GlobalFunctions.Get(name); ok {
			globals.Set(name, f)
		}
	}
	structures := map[string]parser.ControlStructureParser{
		"for": forParser, "macro": macroParser, "set": setParser, "generation": generationParser,
	}
	for _, name := range []string{"if", "break", "continue", "raw"} {
		if p, ok := builtins.ControlStructures.Get(name); ok {
			structures[name] = p
		}
	}
	return &exec.Environment{
		Context: globals, Filters: exec.NewFilterSet(filters), Tests: builtins.Tests,
		ControlStructures: exec.NewControlStructureSet(structures),
		Methods: exec.Methods{
			Str: exec.NewMethodSet(strs), Dict: exec.NewMethodSet(dicts),
			Bool: exec.NewMethodSet[bool](nil), Int: exec.NewMethodSet[int](nil),
			Float: exec.NewMethodSet[float64](nil), List: exec.NewMethodSet[[]any](nil),
		},
	}
}

// inspect refuses source whose parsing or evaluation could not be bounded.
func inspect(source string, cfg *config.Config) error {
	if len(source) > maxTemplate {
		return fmt.Errorf("%w: %d bytes of source, at most %d", ErrTemplateBudget, len(source), maxTemplate)
	}
	stream := lex.LexAll(source, cfg)
	var statement, calls, brackets, blocks, dots int
	var macro bool
	for ; !stream.End(); stream.Next() {
		t := stream.Current()
		statement++
		dots-- // one token behind a dot it is 1, two behind 0
		switch t.Type {
		case lex.BlockBegin, lex.VariableBegin:
			statement, calls, brackets, dots, macro = 0, 0, 0, 0, false
			if next := stream.Peek(); t.Type == lex.BlockBegin && next != nil {
				macro = next.Val == "macro"
				blocks += nesting(next.Val)
			}
		case lex.LeftParenthesis, lex.LeftBracket, lex.LeftBrace:
			brackets++
			if t.Type == lex.LeftParenthesis && dots == 0 {
				calls++
			}
		case lex.RightParenthesis, lex.RightBracket, lex.RightBrace:
			brackets--
		case lex.Dot:
			dots = 2
		case lex.Multiply, lex.Power:
			if !macro {
				return fmt.Errorf("%w: line %d: %q is not available in chat templates", ErrTemplate, t.Line, t.Val)
			}
		default:
		}
		if statement > maxStatement || calls > maxMethodCalls || brackets > maxBrackets || blocks > maxBlocks {
			return fmt.Errorf("%w: line %d is too long or nested too deeply", ErrTemplateBudget, t.Line)
		}
	}
	return nil
}

func nesting(keyword string) int {
	switch keyword {
	case "if", "for", "macro":
		return 1
	case "endif", "endfor", "endmacro":
		return -1
	}
	return 0
}

// budget is what one rendering may still spend.
type budget struct {
	ctx    context.Context //nolint:containedctx // lives for one call to Render, which the library cannot hand it through
	steps  int
	bytes  int
	depth  int // of macro calls
	raised *RaisedError
	err    error // the first reason to stop
}

func newBudget(ctx context.Context, c *Chat) *budget {
	b := &budget{ctx: ctx, steps: budgetSteps, bytes: budgetBytes}
	for _, m := range c.Messages {
		b.bytes += 8 * (len(m.Content) + len(m.Role) + 64)
		b.steps += 64
	}
	return b
}

func budgetOf(ctx *exec.Context) *budget {
	v, _ := ctx.Get(budgetName)
	b, ok := v.(*budget)
	if !ok {
		panic("tokens: template rendered without a budget")
	}
	return b
}

// spend takes n steps.
func (b *budget) spend(n int) error {
	if b.err == nil {
		if b.steps -= n; b.steps < 0 {
			b.err = fmt.Errorf("%w: too many steps", ErrTemplateBudget)
		} else if err := b.ctx.Err(); err != nil {
			b.err = err
		}
	}
	return b.err
}

// write takes n bytes of output.
func (b *budget) write(n int) error {
	if b.err == nil {
		if b.bytes -= n; b.bytes < 0 {
			b.err = fmt.Errorf("%w: too much text", ErrTemplateBudget)
		}
	}
	return b.err
}

// hold checks a value before it is kept: its size, and that it does not contain
// itself.
func (b *budget) hold(v any) error {
	left := max(b.bytes, 0)
	if b.err == nil && !fits(reflect.ValueOf(v), &left, maxValueDepth) {
		b.err = fmt.Errorf("%w: a value grows too large", ErrTemplateBudget)
	}
	return b.err
}

var valueType = reflect.TypeFor[exec.Value]()

// fits subtracts the size of v from left and says whether it fitted.
func fits(v reflect.Value, left *int, depth int) bool {
	if *left -= 16; *left < 0 || depth < 0 {
		return false
	}
	switch v.Kind() {
	case reflect.String:
		*left -= v.Len()
		return *left >= 0
	case reflect.Interface, reflect.Pointer:
		return v.IsNil() || fits(v.Elem(), left, depth)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if !fits(v.Index(i), left, depth-1) {
				return false
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if !fits(it.Key(), left, depth-1) || !fits(it.Value(), left, depth-1) {
				return false
			}
		}
	case reflect.Struct:
		if v.Type() == valueType {
			inner := v.Interface().(exec.Value)
			return !inner.Val.IsValid() || fits(inner.Val, left, depth)
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !fits(v.Field(i), left, depth-1) {
				return false
			}
		}
	default:
	}
	return true
}

// cappedWriter collects text and stops when the budget's bytes are spent.
type cappedWriter struct {
	budget *budget
	text   strings.Builder
}

func (w *cappedWriter) Write(p []byte) (int, error) {
	if err := w.budget.write(len(p)); err != nil {
		return 0, err
	}
	return w.text.Write(p)
}

// meteredWriter does so for text that goes elsewhere, as a macro's does.
type meteredWriter struct {
	io.Writer
	budget *budget
}

func (w *meteredWriter) Write(p []byte) (int, error) {
	if err := w.budget.write(len(p)); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// guard is a statement put into a template's blocks to collect what is due.
type guard struct {
	at  *lex.Token
	run func(r *exec.Renderer, b *budget) error
}

func (g *guard) Position() *lex.Token { return g.at }
func (g *guard) String() string       { return "guard" }
func (g *guard) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return g.run(r, budgetOf(r.Environment.Context))
}

func guardNode(at *lex.Token, run func(r *exec.Renderer, b *budget) error) nodes.Node {
	return &nodes.ControlStructureBlock{Location: at, Name: "guard", ControlStructure: &guard{at, run}}
}

// boundedFor charges for all rounds of a loop before the first.
type boundedFor struct {
	*controlStructures.ForControlStructure
	iterable nodes.Expression
}

func forParser(p, args *parser.Parser) (nodes.ControlStructure, error) {
	original, _ := builtins.ControlStructures.Get("for")
	node, err := original(p, args)
	if err != nil {
		return nil, err
	}
	loop, ok := node.(*controlStructures.ForControlStructure)
	if !ok || loop.Recursive {
		return nil, fmt.Errorf("%w: recursive loops are not available", ErrTemplate)
	}
	bounded := &boundedFor{ForControlStructure: loop, iterable: loop.ObjectEvaluator}
	loop.ObjectEvaluator = &nodes.Name{Name: &lex.Token{Type: lex.Name, Val: iterableName}}
	loop.BodyWrapper.Nodes = append([]nodes.Node{
		guardNode(loop.Position(), func(_ *exec.Renderer, b *budget) error { return b.spend(1) }),
	}, loop.BodyWrapper.Nodes...)
	return bounded, nil
}

func (f *boundedFor) Execute(r *exec.Renderer, tag *nodes.ControlStructureBlock) error {
	b := budgetOf(r.Environment.Context)
	iterable := r.Eval(f.iterable)
	if iterable.IsError() {
		return iterable
	}
	if err := b.spend(1 + iterable.Len()); err != nil {
		return err
	}
	if err := b.hold(iterable.Interface()); err != nil {
		return err
	}
	r.Environment.Context.Set(iterableName, iterable)
	return f.ForControlStructure.Execute(r, tag)
}

func macroParser(p, args *parser.Parser) (nodes.ControlStructure, error) {
	original, _ := builtins.ControlStructures.Get("macro")
	node, err := original(p, args)
	if err != nil {
		return nil, err
	}
	macro, ok := node.(*controlStructures.MacroControlStructure)
	if !ok {
		return nil, fmt.Errorf("%w: macro", ErrTemplate)
	}
	enter := func(r *exec.Renderer, b *budget) error {
		if b.depth++; b.depth > maxCalls {
			b.err = fmt.Errorf("%w: macro calls nest too deeply", ErrTemplateBudget)
			return b.err
		}
		for _, argument := range macro.Kwargs {
			if v, ok := r.Environment.Context.Get(argument.Key.(*nodes.String).Val); ok {
				if err := b.hold(v); err != nil {
					return err
				}
			}
		}
		r.Output = &meteredWriter{r.Output, b}
		return b.spend(1)
	}
	leave := func(_ *exec.Renderer, b *budget) error { b.depth--; return nil }
	macro.Wrapper.Nodes = slices.Concat(
		[]nodes.Node{guardNode(macro.Position(), enter)}, macro.Wrapper.Nodes, []nodes.Node{guardNode(macro.Position(), leave)})
	return macro, nil
}

// boundedSet checks a variable after it was set.
type boundedSet struct {
	exec.ControlStructure
	name string
}

func setParser(p, args *parser.Parser) (nodes.ControlStructure, error) {
	name := args.Current()
	if name == nil || name.Type != lex.Name {
		return nil, fmt.Errorf("%w: set needs a name", ErrTemplate)
	}
	if next := args.Peek(); next == nil || next.Type == lex.EOF {
		return captureParser(p, name)
	}
	if next := args.Peek(); next.Type == lex.Assign {
		a, err := assignmentParser(args)
		return &boundedSet{a, name.Val}, err
	}
	original, _ := builtins.ControlStructures.Get("set")
	node, err := original(p, args)
	if err != nil {
		return nil, err
	}
	return &boundedSet{node.(exec.ControlStructure), name.Val}, nil
}

func (s *boundedSet) Execute(r *exec.Renderer, tag *nodes.ControlStructureBlock) error {
	if err := s.ControlStructure.Execute(r, tag); err != nil {
		return err
	}
	b := budgetOf(r.Environment.Context)
	if v, ok := r.Environment.Context.Get(s.name); ok {
		if err := b.hold(v); err != nil {
			return err
		}
	}
	return b.spend(1)
}

// capture is {% set name %}…{% endset %}.
type capture struct {
	at   *lex.Token
	body *nodes.Wrapper
}

func captureParser(p *parser.Parser, name *lex.Token) (nodes.ControlStructure, error) {
	body, _, err := p.WrapUntil("endset")
	if err != nil {
		return nil, err
	}
	return &capture{name, body}, nil
}

func (c *capture) Position() *lex.Token { return c.at }
func (c *capture) String() string       { return "set" }
func (c *capture) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	out := &cappedWriter{budget: budgetOf(r.Environment.Context)}
	sub := r.Inherit()
	sub.Output = out
	if err := sub.ExecuteWrapper(c.body); err != nil {
		return err
	}
	r.Environment.Context.Set(c.at.Val, out.text.String())
	return nil
}

// generation is Hugging Face's {% generation %}…{% endgeneration %}, which marks
// what the assistant wrote and shows it unchanged.
type generation struct{ body *nodes.Wrapper }

func generationParser(p, _ *parser.Parser) (nodes.ControlStructure, error) {
	body, _, err := p.WrapUntil("endgeneration")
	if err != nil {
		return nil, err
	}
	return &generation{body}, nil
}

func (g *generation) Position() *lex.Token { return g.body.Location }
func (g *generation) String() string       { return "generation" }
func (g *generation) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return r.ExecuteIfWrapper(g.body)
}
