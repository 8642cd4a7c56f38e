package module

import (
	"slices"
	"strings"
)

// ValType is the type of a value, by its byte in the binary format.
type ValType byte

// The types of values.
const (
	I32       ValType = 0x7f
	I64       ValType = 0x7e
	F32       ValType = 0x7d
	F64       ValType = 0x7c
	V128      ValType = 0x7b
	FuncRef   ValType = 0x70
	ExternRef ValType = 0x6f
)

// String is the type's name in the text format.
func (t ValType) String() string {
	switch t {
	case I32:
		return "i32"
	case I64:
		return "i64"
	case F32:
		return "f32"
	case F64:
		return "f64"
	case V128:
		return "v128"
	case FuncRef:
		return "funcref"
	case ExternRef:
		return "externref"
	default:
		return "any value"
	}
}

func (t ValType) isRef() bool { return t == FuncRef || t == ExternRef }

// foreignTypes are types of proposals, by what asks for them.
var foreignTypes = map[byte]string{
	0x78: "packed fields (garbage collection)", 0x77: "packed fields (garbage collection)",
	0x74: "exception references", 0x69: "exception references",
	0x73: "garbage collection", 0x72: "garbage collection", 0x71: "garbage collection", 0x6e: "garbage collection",
	0x6d: "garbage collection", 0x6c: "garbage collection", 0x6b: "garbage collection", 0x6a: "garbage collection",
	0x64: "typed function references", 0x63: "typed function references",
}

// valType reads the type of a value.
func (r *reader) valType() ValType {
	at := r.pos
	switch t := ValType(r.byte()); t {
	case I32, I64, F32, F64, V128, FuncRef, ExternRef:
		return t
	default:
		r.badType(at, byte(t))
		return 0
	}
}

func (r *reader) refType() ValType {
	at := r.pos
	t := r.valType()
	if r.err == nil && !t.isRef() {
		r.failf(ErrMalformed, at, "a table or reference has type %s; only funcref and externref are references", t)
	}
	return t
}

func (r *reader) badType(at int, c byte) {
	if feature, ok := foreignTypes[c]; ok {
		r.foreign(at, feature)
		return
	}
	r.failf(ErrMalformed, at, "%#x is no type of value", c)
}

// foreign refuses a feature by name.
func (r *reader) foreign(at int, feature string) {
	r.fail(ErrFeature, at, feature+" are not allowed in a policy; build for core WebAssembly 2.0 without that feature")
}

// FuncType is the type of a function.
type FuncType struct{ Params, Results []ValType }

// Equal says whether both are the same type.
func (t FuncType) Equal(u FuncType) bool {
	return slices.Equal(t.Params, u.Params) && slices.Equal(t.Results, u.Results)
}

// String is the type in the shape "(i32, f32) -> i64".
func (t FuncType) String() string {
	results := typeList(t.Results)
	if len(t.Results) != 1 {
		results = "(" + results + ")"
	}
	return "(" + typeList(t.Params) + ") -> " + results
}

func typeList(types []ValType) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.String()
	}
	return strings.Join(names, ", ")
}

// types reads a list of value types.
func (r *reader) types(what string, limit int) []ValType {
	out := make([]ValType, r.count(what, limit, 1))
	for i := range out {
		out[i] = r.valType()
	}
	return out
}
