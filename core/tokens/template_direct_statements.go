package tokens

import (
	"strings"

	controlStructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/nodes"
	lex "github.com/nikolalohinski/gonja/v2/tokens"
)

// What the direct program makes of text, output and control structures.

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
