package tokens

import (
	"slices"
	"strconv"
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
