package tokens

import (
	"strings"

	"github.com/nikolalohinski/gonja/v2/nodes"
	lex "github.com/nikolalohinski/gonja/v2/tokens"
)

// What the direct program makes of expressions.

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
