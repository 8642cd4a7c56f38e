package tokens

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	controlStructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	lex "github.com/nikolalohinski/gonja/v2/tokens"
)

// The template library costs a hundred allocations a message. Most of what chat
// templates do is much simpler: they walk the messages, compare roles and put
// texts together. The direct program does just that on texts, numbers and the
// messages themselves, exactly as the library does; whatever it does not know
// makes it give up, and the caller renders with the library instead. Templates
// are compiled whole: only what is met when a chat is rendered counts.

// AppendDirect appends the prompt to dst as Render writes it, many times faster,
// if it can. Otherwise ok is false, and Render is to be called, which knows the
// reason if there is one. It writes limit bytes at most.
func (t *Template) AppendDirect(dst []byte, c *Chat, limit int) (text []byte, ok bool) {
	if len(c.Extra) > 0 {
		return dst, false
	}
	d, _ := t.states.Get().(*direct)
	if d == nil {
		d = &direct{}
	}
	defer t.states.Put(d)
	*d = direct{chat: c, out: dst, limit: len(dst) + limit, steps: budgetSteps, vars: d.vars[:0], loops: d.loops[:0]}
	ok = runAll(t.program, d)
	text = d.out
	if !ok {
		text = dst
	}
	clear(d.vars[:cap(d.vars)]) // they hold on to the chat
	d.chat, d.out = nil, nil
	return text, ok
}

// direct is the state of one rendering. An expression that cannot be evaluated
// sets gaveUp.
type direct struct {
	chat   *Chat
	out    []byte
	limit  int
	steps  int
	vars   []binding
	frame  int // where the innermost scope begins in vars
	loops  []loopState
	gaveUp bool
}

type binding struct {
	name  string
	value datum
}

type loopState struct{ index, length int }

type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindInt
	kindText
	kindMessages // n to m of the chat's
	kindMessage  // n of the chat's
	kindLoop     // n of the loops
	kindFunction // a name that can be called
)

// datum is a value of a template.
type datum struct {
	kind kind
	n, m int // number; 0 or 1
	text string
}

func boolDatum(b bool) datum {
	if b {
		return datum{kind: kindBool, n: 1}
	}
	return datum{kind: kindBool}
}

type (
	statement  func(*direct) (ok bool)
	expression func(*direct) datum
)

func (d *direct) giveUp() datum {
	d.gaveUp = true
	return datum{}
}

func (d *direct) step() bool {
	d.steps--
	return d.steps >= 0 && !d.gaveUp
}

func (d *direct) write(s string) bool {
	if d.gaveUp || len(d.out)+len(s) > d.limit {
		return false
	}
	d.out = append(d.out, s...)
	return true
}

// writeDatum writes what the library's Value.String gives.
func (d *direct) writeDatum(v datum) bool {
	switch v.kind {
	case kindText:
		return d.write(v.text)
	case kindNil:
		return !d.gaveUp
	case kindInt:
		return d.write(strconv.Itoa(v.n))
	case kindBool:
		return d.write(v.boolText())
	default:
		return false
	}
}

func (v datum) boolText() string {
	if v.n != 0 {
		return "True"
	}
	return "False"
}

// simple reports whether the datum has a text.
func (v datum) simple() bool { return v.kind <= kindText }

// string is the text of a simple datum.
func (v datum) string() string {
	switch v.kind {
	case kindInt:
		return strconv.Itoa(v.n)
	case kindBool:
		return v.boolText()
	default:
		return v.text
	}
}

func (d *direct) truth(v datum) bool {
	switch v.kind {
	case kindBool, kindInt:
		return v.n != 0
	case kindText:
		return v.text != ""
	case kindMessages:
		return v.m > v.n
	case kindMessage:
		return true
	case kindNil:
	default:
		d.gaveUp = true
	}
	return false
}

func (d *direct) lookup(name string) datum {
	for _, v := range slices.Backward(d.vars) {
		if v.name == name {
			return v.value
		}
	}
	switch name {
	case "messages":
		return datum{kind: kindMessages, m: len(d.chat.Messages)}
	case "add_generation_prompt":
		return boolDatum(d.chat.AddGenerationPrompt)
	case "bos_token":
		return datum{kind: kindText, text: d.chat.BOS}
	case "eos_token":
		return datum{kind: kindText, text: d.chat.EOS}
	case "raise_exception", "strftime_now", "range", "namespace", "dict", "self":
		return datum{kind: kindFunction}
	}
	return datum{}
}

func (d *direct) set(name string, v datum) {
	for i := len(d.vars) - 1; i >= d.frame; i-- {
		if d.vars[i].name == name {
			d.vars[i].value = v
			return
		}
	}
	d.vars = append(d.vars, binding{name, v})
}

// compileNodes translates a list of nodes.
func compileNodes(list []nodes.Node) []statement {
	out := make([]statement, 0, len(list))
	for _, n := range list {
		if s := compileNode(n); s != nil {
			out = append(out, s)
		}
	}
	return out
}

func runAll(list []statement, d *direct) bool {
	for _, s := range list {
		if !s(d) {
			return false
		}
	}
	return true
}

func never(*direct) bool { return false }

func compileNode(n nodes.Node) statement {
	switch n := n.(type) {
	case *nodes.Comment:
		return nil
	case *nodes.Data:
		text := dataText(n)
		return func(d *direct) bool { return d.write(text) }
	case *nodes.Output:
		return compileOutput(n)
	case *nodes.ControlStructureBlock:
		return compileControl(n)
	default:
		return never
	}
}

// dataText is what the library's renderer makes of template text.
func dataText(n *nodes.Data) string {
	text := n.Data.Val
	if n.RemoveFirstLineReturn {
		text = strings.TrimPrefix(text, "\r\n")
		text = strings.TrimPrefix(text, "\n")
	}
	if n.Trim.Left {
		text = strings.TrimLeft(text, " \r\n\t")
	}
	if n.Trim.Right {
		text = strings.TrimRight(text, " \r\n\t")
	}
	if n.RemoveTrailingWhiteSpaceFromLastLine {
		at := strings.LastIndexByte(text, '\n') + 1
		text = text[:at] + strings.TrimRight(text[at:], " \n\t\r")
	}
	return text
}

func compileOutput(n *nodes.Output) statement {
	then := compileWrite(n.Expression)
	if n.Condition == nil {
		return then
	}
	condition := compileExpression(n.Condition)
	otherwise := func(*direct) bool { return true }
	if n.Alternative != nil {
		otherwise = compileWrite(n.Alternative)
	}
	return func(d *direct) bool {
		if d.truth(condition(d)) {
			return then(d)
		}
		return !d.gaveUp && otherwise(d)
	}
}

// compileWrite writes an expression. Texts that are put together are written one
// after the other.
func compileWrite(n nodes.Expression) statement {
	terms := sum(nil, n)
	if len(terms) < 2 {
		value := compileExpression(n)
		return func(d *direct) bool { return d.writeDatum(value(d)) }
	}
	values := make([]expression, len(terms))
	for i, t := range terms {
		values[i] = compileExpression(t)
	}
	return func(d *direct) bool {
		first, second := values[0](d), values[1](d)
		if first.kind != kindText && second.kind != kindText || !first.simple() || !second.simple() {
			return false // a sum of numbers, or of lists
		}
		if !d.writeDatum(first) || !d.writeDatum(second) {
			return false
		}
		for _, v := range values[2:] {
			if !d.writeDatum(v(d)) {
				return false
			}
		}
		return true
	}
}

// sum lists the terms of ((a + b) + c) + d.
func sum(dst []nodes.Expression, n nodes.Expression) []nodes.Expression {
	if b, ok := n.(*nodes.BinaryExpression); ok && b.Operator.Token.Type == lex.Addition {
		return append(sum(dst, b.Left), b.Right)
	}
	return append(dst, n)
}

func compileControl(n *nodes.ControlStructureBlock) statement {
	switch c := n.ControlStructure.(type) {
	case *guard:
		return nil // its budget is counted otherwise
	case *controlStructures.IfControlStructure:
		return compileIf(c)
	case *boundedFor:
		return compileFor(c)
	case *boundedSet:
		if a, ok := c.ControlStructure.(*assignment); ok {
			return compileSet(a)
		}
		return never
	case *generation:
		body := compileNodes(c.body.Nodes)
		return func(d *direct) bool { return runAll(body, d) }
	default:
		return never
	}
}

func compileIf(c *controlStructures.IfControlStructure) statement {
	conditions := make([]expression, len(c.Conditions))
	for i, e := range c.Conditions {
		conditions[i] = compileExpression(e)
	}
	bodies := make([][]statement, len(c.Wrappers))
	for i, w := range c.Wrappers {
		bodies[i] = compileNodes(w.Nodes)
	}
	return func(d *direct) bool {
		if !d.step() {
			return false
		}
		for i, condition := range conditions {
			yes := d.truth(condition(d))
			switch {
			case d.gaveUp:
				return false
			case yes:
				return runAll(bodies[i], d)
			}
		}
		if len(bodies) > len(conditions) {
			return runAll(bodies[len(conditions)], d)
		}
		return true
	}
}

func compileFor(c *boundedFor) statement {
	if c.Value != "" || c.IfCondition != nil || c.Recursive {
		return never
	}
	over, name := compileExpression(c.iterable), c.Key
	body := compileNodes(c.BodyWrapper.Nodes)
	var empty []statement
	if c.EmptyWrapper != nil {
		empty = compileNodes(c.EmptyWrapper.Nodes)
	}
	return func(d *direct) bool {
		list := over(d)
		if list.kind != kindMessages || d.gaveUp {
			return false
		}
		frame, mark := d.frame, len(d.vars)
		defer func() { d.frame = frame }()
		d.frame = mark
		if list.n >= list.m {
			ok := runAll(empty, d)
			d.vars = d.vars[:mark]
			return ok
		}
		depth := len(d.loops)
		d.loops = append(d.loops, loopState{length: list.m - list.n})
		for i := list.n; i < list.m; i++ {
			d.loops[depth].index = i - list.n
			d.vars = append(d.vars[:mark], binding{name, datum{kind: kindMessage, n: i}}, binding{"loop", datum{kind: kindLoop, n: depth}})
			if !d.step() || !runAll(body, d) {
				return false
			}
		}
		d.vars, d.loops = d.vars[:mark], d.loops[:depth]
		return true
	}
}

func compileSet(c *assignment) statement {
	value := compileExpression(c.expression)
	var condition, alternative expression
	if c.condition != nil {
		condition, alternative = compileExpression(c.condition), compileExpression(c.alternative)
	}
	return func(d *direct) bool {
		v := value
		if condition != nil && !d.truth(condition(d)) {
			v = alternative
		}
		if d.gaveUp || !d.step() {
			return false
		}
		d.set(c.name, v(d))
		return !d.gaveUp
	}
}

func compileExpression(n nodes.Expression) expression {
	switch n := n.(type) {
	case *nodes.None:
		return constant(datum{})
	case *nodes.String:
		return constant(datum{kind: kindText, text: n.Val})
	case *nodes.Integer:
		return constant(datum{kind: kindInt, n: n.Val})
	case *nodes.Bool:
		return constant(boolDatum(n.Val))
	case *nodes.Name:
		name := n.Name.Val
		return func(d *direct) datum { return d.lookup(name) }
	case *nodes.Negation:
		return negation(compileExpression(n.Term))
	case *nodes.UnaryExpression:
		return unary(n)
	case *nodes.BinaryExpression:
		return operation(n)
	case *nodes.GetItem:
		return item(n)
	case *nodes.GetAttribute:
		return attribute(n)
	case *nodes.GetSlice:
		return slice(n)
	case *nodes.TestExpression:
		return test(n)
	case *nodes.FilteredExpression:
		return filtered(n)
	case *nodes.Call:
		return call(n)
	default:
		return (*direct).giveUp
	}
}

func constant(v datum) expression { return func(*direct) datum { return v } }

func negation(term expression) expression {
	return func(d *direct) datum {
		v := term(d)
		if v.kind == kindInt { // the library's not keeps numbers numbers
			if v.n != 0 {
				return datum{kind: kindInt}
			}
			return datum{kind: kindInt, n: 1}
		}
		return boolDatum(!d.truth(v))
	}
}

func unary(n *nodes.UnaryExpression) expression {
	term := compileExpression(n.Term)
	if !n.Negative {
		return term
	}
	return func(d *direct) datum {
		v := term(d)
		if v.kind != kindInt {
			return d.giveUp()
		}
		v.n = -v.n
		return v
	}
}

func operation(n *nodes.BinaryExpression) expression {
	left, right := compileExpression(n.Left), compileExpression(n.Right)
	switch op := n.Operator.Token.Type; op {
	case lex.And, lex.Or:
		return func(d *direct) datum {
			v := left(d)
			if d.truth(v) == (op == lex.Or) {
				return v
			}
			return right(d)
		}
	case lex.Addition:
		return func(d *direct) datum { return d.add(left(d), right(d)) }
	case lex.Subtraction, lex.LowerThan, lex.LowerThanOrEqual, lex.GreaterThan, lex.GreaterThanOrEqual:
		return func(d *direct) datum { return d.arithmetic(op, left(d), right(d)) }
	case lex.Tilde:
		return func(d *direct) datum {
			a, b := left(d), right(d)
			if !a.simple() || !b.simple() {
				return d.giveUp()
			}
			return d.joined(a, b)
		}
	case lex.Equals:
		return func(d *direct) datum { return boolDatum(d.equal(left(d), right(d))) }
	case lex.Ne:
		return func(d *direct) datum { return boolDatum(!d.equal(left(d), right(d))) }
	default:
		return (*direct).giveUp
	}
}

func (d *direct) add(a, b datum) datum {
	switch {
	case a.simple() && b.simple() && (a.kind == kindText || b.kind == kindText):
		return d.joined(a, b)
	case a.kind == kindInt && b.kind == kindInt:
		return datum{kind: kindInt, n: a.n + b.n}
	}
	return d.giveUp()
}

// joined puts two texts together, which costs steps by its length: a loop must
// not double a text forever.
func (d *direct) joined(a, b datum) datum {
	text := a.string() + b.string()
	d.steps -= len(text) / 256
	if d.steps < 0 {
		return d.giveUp()
	}
	return datum{kind: kindText, text: text}
}

func (d *direct) arithmetic(op lex.Type, a, b datum) datum {
	if a.kind != kindInt || b.kind != kindInt {
		return d.giveUp()
	}
	switch op {
	case lex.Subtraction:
		return datum{kind: kindInt, n: a.n - b.n}
	case lex.LowerThan:
		return boolDatum(a.n < b.n)
	case lex.LowerThanOrEqual:
		return boolDatum(a.n <= b.n)
	case lex.GreaterThan:
		return boolDatum(a.n > b.n)
	default:
		return boolDatum(a.n >= b.n)
	}
}

func (d *direct) equal(a, b datum) bool {
	if !a.simple() || !b.simple() {
		d.gaveUp = true
		return false
	}
	// Different kinds are different: the library compares Go values.
	return a.kind == b.kind && a.n == b.n && a.text == b.text
}

func (d *direct) contains(in, what datum) datum {
	switch {
	case in.kind == kindText && what.kind == kindText:
		return boolDatum(strings.Contains(in.text, what.text))
	case in.kind == kindMessage && what.kind == kindText:
		_, ok := d.chat.Messages[in.n].Fields[what.text]
		return boolDatum(ok || what.text == "role" || what.text == "content")
	case in.kind == kindNil:
		return boolDatum(false)
	}
	return d.giveUp()
}

func item(n *nodes.GetItem) expression {
	if n.Arg == nil {
		return (*direct).giveUp
	}
	of, arg := compileExpression(n.Node), compileExpression(n.Arg)
	return func(d *direct) datum {
		v, key := of(d), arg(d)
		switch {
		case key.kind == kindText:
			return d.member(v, key.text)
		case key.kind == kindInt && v.kind == kindMessages:
			return v.at(key.n)
		}
		return d.giveUp()
	}
}

// at is the i-th of messages, nil when there is none. As in the library, the
// first one cannot be named from the end.
func (v datum) at(i int) datum {
	size := v.m - v.n
	switch {
	case i >= 0 && i < size:
		return datum{kind: kindMessage, n: v.n + i}
	case i < 0 && -i < size:
		return datum{kind: kindMessage, n: v.m + i}
	}
	return datum{}
}

func attribute(n *nodes.GetAttribute) expression {
	of := compileExpression(n.Node)
	if n.Attribute == "" {
		return func(d *direct) datum {
			if v := of(d); v.kind == kindMessages {
				return v.at(n.Index)
			}
			return d.giveUp()
		}
	}
	return func(d *direct) datum { return d.member(of(d), n.Attribute) }
}

// member is a member of a message or of a loop.
func (d *direct) member(v datum, name string) datum {
	switch v.kind {
	case kindMessage:
		m := &d.chat.Messages[v.n]
		switch name {
		case "role":
			return datum{kind: kindText, text: m.Role}
		case "content":
			return datum{kind: kindText, text: m.Content}
		}
		if f, ok := m.Fields[name]; ok {
			text, ok := f.(string)
			if !ok {
				return d.giveUp()
			}
			return datum{kind: kindText, text: text}
		}
		return datum{}
	case kindLoop:
		return d.loopMember(d.loops[v.n], name)
	default:
		return d.giveUp()
	}
}

func (d *direct) loopMember(l loopState, name string) datum {
	switch name {
	case "index":
		return datum{kind: kindInt, n: l.index + 1}
	case "index0":
		return datum{kind: kindInt, n: l.index}
	case "revindex":
		return datum{kind: kindInt, n: l.length - l.index}
	case "revindex0":
		return datum{kind: kindInt, n: l.length - l.index - 1}
	case "length":
		return datum{kind: kindInt, n: l.length}
	case "first":
		return boolDatum(l.index == 0)
	case "last":
		return boolDatum(l.index == l.length-1)
	}
	return d.giveUp()
}

// slice is messages[start:end].
func slice(n *nodes.GetSlice) expression {
	if n.Step != nil {
		return (*direct).giveUp
	}
	of := compileExpression(n.Node)
	bound := func(e nodes.Node) expression {
		if e == nil {
			return nil
		}
		return compileExpression(e)
	}
	start, end := bound(n.Start), bound(n.End)
	return func(d *direct) datum {
		v := of(d)
		if v.kind != kindMessages {
			return d.giveUp()
		}
		size := v.m - v.n
		place := func(e expression, absent int) int {
			if e == nil {
				return absent
			}
			i := e(d)
			if i.kind != kindInt {
				d.gaveUp = true
			}
			if i.n < 0 {
				return size + i.n
			}
			return i.n
		}
		from := max(0, min(place(start, 0), size))
		to := max(from, min(place(end, size), size))
		return datum{kind: kindMessages, n: v.n + from, m: v.n + to}
	}
}

func test(n *nodes.TestExpression) expression {
	of := compileExpression(n.Expression)
	switch {
	case n.Test.Name == "in" && len(n.Test.Args) == 1: // so the library parses "a in b"
		in := compileExpression(n.Test.Args[0])
		return func(d *direct) datum { return d.contains(in(d), of(d)) }
	case len(n.Test.Args)+len(n.Test.Kwargs) > 0:
		return (*direct).giveUp
	}
	var holds func(datum) bool
	switch n.Test.Name {
	case "defined":
		holds = func(v datum) bool { return v.kind != kindNil }
	case "undefined", "none":
		holds = func(v datum) bool { return v.kind == kindNil }
	case "string":
		holds = func(v datum) bool { return v.kind == kindText }
	case "mapping":
		holds = func(v datum) bool { return v.kind == kindMessage }
	case "iterable":
		holds = func(v datum) bool { return v.kind == kindText || v.kind == kindMessages || v.kind == kindMessage }
	case "sequence":
		holds = func(v datum) bool { return v.kind == kindMessages }
	default:
		return (*direct).giveUp
	}
	return func(d *direct) datum { return boolDatum(holds(of(d))) }
}

func filtered(n *nodes.FilteredExpression) expression {
	v := compileExpression(n.Expression)
	for _, f := range n.Filters {
		if len(f.Args)+len(f.Kwargs) > 0 {
			return (*direct).giveUp
		}
		switch f.Name {
		case "trim":
			v = trimmed(v)
		case "length", "count":
			v = length(v)
		default:
			return (*direct).giveUp
		}
	}
	return v
}

func trimmed(of expression) expression {
	return func(d *direct) datum {
		v := of(d)
		if v.kind != kindText {
			return d.giveUp()
		}
		v.text = strings.TrimSpace(v.text)
		return v
	}
}

func length(of expression) expression {
	return func(d *direct) datum {
		if v := of(d); v.kind == kindMessages {
			return datum{kind: kindInt, n: v.m - v.n}
		}
		return d.giveUp()
	}
}

// call is strftime_now(format). What a template raises is the library's to say.
func call(n *nodes.Call) expression {
	name, ok := n.Func.(*nodes.Name)
	if !ok || name.Name.Val != "strftime_now" || len(n.Args) != 1 || len(n.Kwargs) > 0 {
		return (*direct).giveUp
	}
	format := compileExpression(n.Args[0])
	return func(d *direct) datum {
		f := format(d)
		if f.kind != kindText || d.lookup("strftime_now").kind != kindFunction {
			return d.giveUp()
		}
		return datum{kind: kindText, text: strftime(d.chat.Now, f.text)}
	}
}

// assignment is {% set name = expression if condition else alternative %}.
type assignment struct {
	at                                 *lex.Token
	name                               string
	expression, condition, alternative nodes.Expression
}

func assignmentParser(args *parser.Parser) (*assignment, error) {
	a := &assignment{at: args.Current(), name: args.Match(lex.Name).Val}
	args.Match(lex.Assign)
	var err error
	if a.expression, err = args.ParseExpression(); err != nil {
		return nil, err
	}
	if a.condition, a.alternative, err = args.ParseCondition(); err != nil {
		return nil, err
	}
	if a.expression == nil || a.condition != nil && a.alternative == nil || !args.End() {
		return nil, fmt.Errorf("%w: malformed set", ErrTemplate)
	}
	return a, nil
}

func (a *assignment) Position() *lex.Token { return a.at }
func (a *assignment) String() string       { return "set" }

// Execute does what the library's own does.
func (a *assignment) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	source := a.expression
	if a.condition != nil {
		condition := r.Eval(a.condition)
		if condition.IsError() {
			return condition
		}
		if condition.IsNil() || !condition.IsTrue() {
			source = a.alternative
		}
	}
	value := r.Eval(source)
	if value.IsError() {
		return value
	}
	r.Environment.Context.Set(a.name, value.Interface())
	return nil
}
