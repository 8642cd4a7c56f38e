package wattest

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/policies/module"
)

// Module is a module in the making.
type Module struct {
	types   []string
	imports [][]byte
	funcs   []int
	bodies  [][]byte
	tables  [][]byte
	memory  [][]byte
	globals [][]byte
	exports [][]byte
	elems   [][]byte
	data    [][]byte
	start   []byte
	counted bool
	before  map[byte][]byte // raw bytes in front of a section
	after   []byte
}

// New returns an empty module.
func New() *Module { return &Module{before: map[byte][]byte{}} }

func number(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(n)) }

// Name encodes a string behind its length.
func Name(s string) []byte { return append(number(nil, len(s)), s...) }

// Section encodes a section.
func Section(id byte, content ...byte) []byte {
	return append(number([]byte{id}, len(content)), content...)
}

// Custom encodes a custom section.
func Custom(name, data string) []byte {
	return Section(module.SectionCustom, append(Name(name), data...)...)
}

var typeBytes = map[string]module.ValType{
	"i32": module.I32, "i64": module.I64, "f32": module.F32, "f64": module.F64, "v128": module.V128,
	"funcref": module.FuncRef, "externref": module.ExternRef,
}

// types encodes a list like "i32 f64" without its length.
func types(list string) []byte {
	var b []byte
	for name := range strings.FieldsSeq(list) {
		t, ok := typeBytes[name]
		if !ok {
			panic("wattest: unknown type " + name)
		}
		b = append(b, byte(t))
	}
	return b
}

// Type adds a type of function like "i32 i32 -> i64", once, and returns its index.
func (m *Module) Type(t string) int {
	params, results, _ := strings.Cut(t, "->")
	p, r := types(params), types(results)
	b := append(number([]byte{0x60}, len(p)), p...)
	b = append(number(b, len(r)), r...)
	if i := slices.Index(m.types, string(b)); i >= 0 {
		return i
	}
	m.types = append(m.types, string(b))
	return len(m.types) - 1
}

// Import adds an imported function and returns its index. Imports come first.
func (m *Module) Import(from, name, t string) int {
	return m.ImportRaw(from, name, append([]byte{0}, number(nil, m.Type(t))...)...)
}

// ImportRaw adds an import with the given kind and description.
func (m *Module) ImportRaw(from, name string, desc ...byte) int {
	m.imports = append(m.imports, slices.Concat(Name(from), Name(name), desc))
	return len(m.imports) - 1
}

// Func adds a function of the given type and locals and returns its index. The
// code is as for [Code]; the last end is added.
func (m *Module) Func(t, locals, code string) int {
	return m.FuncRaw(t, Body(locals, append(Code(code), byte(module.OpEnd))))
}

// FuncRaw adds a function with the given body, declarations of locals included.
func (m *Module) FuncRaw(t string, body []byte) int {
	m.funcs = append(m.funcs, m.Type(t))
	m.bodies = append(m.bodies, append(number(nil, len(body)), body...))
	return len(m.imports) + len(m.funcs) - 1
}

// Body puts declarations of locals like "i32 i32 v128" in front of instructions.
func Body(locals string, code []byte) []byte {
	list := types(locals)
	b := number(nil, len(list))
	for _, t := range list {
		b = append(b, 1, t)
	}
	return append(b, code...)
}

func span(low, high int) []byte {
	if high < 0 {
		return number([]byte{0}, low)
	}
	return number(number([]byte{1}, low), high)
}

// Memory adds a memory of pages of 64 KiB; a negative maximum is none.
func (m *Module) Memory(low, high int) { m.MemoryRaw(span(low, high)...) }

// MemoryRaw adds a memory with the given limits.
func (m *Module) MemoryRaw(limits ...byte) { m.memory = append(m.memory, limits) }

// Table adds a table of funcref or externref; a negative maximum is none.
func (m *Module) Table(t string, low, high int) int {
	m.tables = append(m.tables, append(types(t), span(low, high)...))
	return len(m.tables) - 1
}

// Global adds a global, "i32" or "mut i32", that begins with the constant.
func (m *Module) Global(t, init string) int {
	name, mutable := strings.CutPrefix(t, "mut ")
	b := append(types(name), 0)
	if mutable {
		b[1] = 1
	}
	m.globals = append(m.globals, append(append(b, Code(init)...), byte(module.OpEnd)))
	return len(m.globals) - 1
}

// Export adds an export.
func (m *Module) Export(name string, kind module.Kind, index int) {
	m.exports = append(m.exports, number(append(Name(name), byte(kind)), index))
}

// Elem adds an active element segment that fills table 0 from an offset.
func (m *Module) Elem(offset int, funcs ...int) {
	b := append(number(nil, 0), Code("i32.const "+itoa(offset)+" end")...)
	b = number(b, len(funcs))
	for _, f := range funcs {
		b = number(b, f)
	}
	m.elems = append(m.elems, b)
}

// ElemRaw adds an element segment.
func (m *Module) ElemRaw(segment ...byte) { m.elems = append(m.elems, segment) }

// Data adds an active data segment; a negative offset makes it passive.
func (m *Module) Data(offset int, bytes string) {
	if offset < 0 {
		m.data = append(m.data, append([]byte{1}, Name(bytes)...))
		return
	}
	m.data = append(m.data, slices.Concat([]byte{0}, Code("i32.const "+itoa(offset)+" end"), Name(bytes)))
}

// DataCount announces the data segments, which some instructions need.
func (m *Module) DataCount() { m.counted = true }

// Start adds a start function.
func (m *Module) Start(index int) { m.start = number(nil, index) }

// Before puts raw bytes in front of where a section is, or would be; after all
// others if id is 255.
func (m *Module) Before(id byte, raw ...byte) {
	if id == 255 {
		m.after = append(m.after, raw...)
		return
	}
	m.before[id] = append(m.before[id], raw...)
}

// Header is what a module begins with.
func Header() []byte { return []byte{0, 'a', 's', 'm', 1, 0, 0, 0} }

// Bytes assembles the module.
func (m *Module) Bytes() []byte {
	out := Header()
	section := func(id byte, items [][]byte) {
		out = append(out, m.before[id]...)
		if len(items) > 0 {
			content := append(number(nil, len(items)), slices.Concat(items...)...)
			out = append(out, Section(id, content...)...)
		}
	}
	var list, funcs [][]byte
	for _, t := range m.types {
		list = append(list, []byte(t))
	}
	for _, t := range m.funcs {
		funcs = append(funcs, number(nil, t))
	}
	section(module.SectionType, list)
	section(module.SectionImport, m.imports)
	section(module.SectionFunction, funcs)
	section(module.SectionTable, m.tables)
	section(module.SectionMemory, m.memory)
	section(module.SectionGlobal, m.globals)
	section(module.SectionExport, m.exports)
	if m.start != nil {
		out = append(out, Section(module.SectionStart, m.start...)...)
	}
	section(module.SectionElement, m.elems)
	if m.counted {
		out = append(out, Section(module.SectionDataCount, number(nil, len(m.data))...)...)
	}
	section(module.SectionCode, m.bodies)
	section(module.SectionData, m.data)
	return append(out, m.after...)
}
