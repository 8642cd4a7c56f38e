package wattest

import (
	"strings"

	"github.com/yardmaster/yardmaster/policies/module"
)

// Hostile is a module that means harm, or was built wrongly.
type Hostile struct {
	Name string
	Wasm []byte
	// Refused is the kind of refusal that package module gives, and Reason what its
	// sentence says. Both are empty for what is a valid module and does its harm
	// when its export "f" is called: the host contains it.
	Refused error
	Reason  string
}

// Corpus returns the hostile modules.
func Corpus() []Hostile {
	return append(append(append(brokenBytes(), brokenParts()...), forbidden()...), contained()...)
}

// with builds a module by a function.
func with(build func(m *Module)) []byte {
	m := New()
	build(m)
	return m.Bytes()
}

// body is a module with one function without a type, exported as f.
func body(code string) []byte {
	return with(func(m *Module) {
		m.Memory(1, 1)
		m.Export("memory", module.KindMemory, 0)
		m.Export("f", module.KindFunc, m.Func("", "", code))
	})
}

// brokenBytes are uploads that are no modules.
func brokenBytes() []Hostile {
	whole := body("")
	return []Hostile{
		{"empty upload", nil, module.ErrMalformed, "no WebAssembly binary"},
		{"text format", []byte("(module)"), module.ErrMalformed, "text must be assembled first"},
		{"component", []byte("\x00asm\x0d\x00\x01\x00"), module.ErrFeature, "components are not allowed"},
		{"version 2", []byte("\x00asm\x02\x00\x00\x00"), module.ErrMalformed, "binary version 02000000"},
		{"cut off in the header", whole[:6], module.ErrMalformed, "cut off or damaged"},
		{"cut off in a section", whole[:len(whole)-2], module.ErrMalformed, "cut off"},
		{"over 4 MiB", make([]byte, 4<<20+1), module.ErrLimit, "at most 4194304 are allowed"},
		{"unknown section", append(Header(), Section(14)...), module.ErrMalformed, "no section 14"},
		{"number of six bytes", append(Header(), 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0), module.ErrMalformed, "does not fit into 32 bits"},
		{"number over 32 bits", append(Header(), 1, 0xff, 0xff, 0xff, 0xff, 0x7f), module.ErrMalformed, "does not fit into 32 bits"},
		{"claims 4 billion types", append(Header(), Section(module.SectionType, 0xff, 0xff, 0xff, 0xff, 0x0f)...), module.ErrLimit, "4294967295 types are more than"},
		{"claims 4,000 types in 3 bytes", append(Header(), Section(module.SectionType, 0xa0, 0x1f, 0x60)...), module.ErrMalformed, "4000 types are announced"},
		{"bytes left over in a section", append(Header(), Section(module.SectionType, 0, 7)...), module.ErrMalformed, "1 bytes are left over"},
		{"section of 2 GiB", append(Header(), 1, 0xff, 0xff, 0xff, 0xff, 0x07), module.ErrMalformed, "only 0 are left"},
	}
}

// brokenParts are modules whose sections contradict one another or the rules.
func brokenParts() []Hostile {
	twice := Section(module.SectionMemory, 1, 0, 1)
	badName := append(number(nil, 2), 0xff, 0xfe)
	return []Hostile{
		{"duplicate sections", with(func(m *Module) { m.Memory(1, 1); m.Before(module.SectionMemory, twice...) }), module.ErrMalformed, "second memory section"},
		{"sections out of order", with(func(m *Module) { m.Type("->"); m.Before(255, Section(module.SectionType, 0)...) }), module.ErrMalformed, "second type section"},
		{"type section behind the memory", with(func(m *Module) { m.Memory(1, 1); m.Before(255, Section(module.SectionType, 0)...) }), module.ErrMalformed, "comes too late"},
		{"invalid UTF-8 in an export", with(func(m *Module) {
			m.Memory(1, 1)
			m.Before(module.SectionExport, Section(module.SectionExport, append(append([]byte{1}, badName...), 2, 0)...)...)
		}), module.ErrMalformed, "not valid UTF-8"},
		{"invalid UTF-8 in a custom section", append(Header(), Section(0, badName...)...), module.ErrMalformed, "not valid UTF-8"},
		{"two exports of one name", with(func(m *Module) {
			m.Memory(1, 1)
			m.Export("memory", module.KindMemory, 0)
			m.Export("memory", module.KindMemory, 0)
		}), module.ErrInvalid, `two exports are named "memory"`},
		{"export of what is not there", with(func(m *Module) { m.Export("f", module.KindFunc, 7) }), module.ErrInvalid, `"f" exports function 7`},
		{"functions without bodies", with(func(m *Module) {
			m.Type("->")
			m.Before(module.SectionFunction, Section(module.SectionFunction, 1, 0)...)
		}), module.ErrMalformed, "there is no code section"},
		{"bodies without functions", with(func(m *Module) { m.Before(module.SectionCode, Section(module.SectionCode, 1, 2, 0, 0x0b)...) }), module.ErrMalformed, "0 functions are declared, but 1 bodies follow"},
		{"data without a memory", with(func(m *Module) { m.Data(0, "x") }), module.ErrInvalid, "the module has none"},
		{"element in no table", with(func(m *Module) { m.Elem(0) }), module.ErrInvalid, "fills table 0; the module has 0"},
		{"maximum below minimum", with(func(m *Module) { m.Memory(3, 2) }), module.ErrInvalid, "below its minimum"},
		{"operand of the wrong type", body("i32.const 1 i64.const 1 i32.add drop"), module.ErrInvalid, "i32.add needs an i32 and finds an i64"},
		{"operand missing", body("i32.add drop"), module.ErrInvalid, "stack, which is empty"},
		{"value left over", body("i32.const 1"), module.ErrInvalid, "1 values too many"},
		{"branch to nowhere", body("br 9"), module.ErrInvalid, "label 9"},
		{"unknown local", body("local.get 4 drop"), module.ErrInvalid, "local 4 of 0"},
		{"unknown function", body("call 12"), module.ErrInvalid, "function 12 of 1"},
		{"writes a constant", with(func(m *Module) { m.Global("i32", "i32.const 1"); m.Func("", "", "i32.const 2 global.set 0") }), module.ErrInvalid, "which is constant"},
		{"misaligned by claim", with(func(m *Module) {
			m.Memory(1, 1)
			m.FuncRaw("", Body("", Code("i32.const 0 byte 0x28 byte 3 byte 0 drop end")))
		}), module.ErrInvalid, "natural alignment"},
		{"lane beyond the vector", body("v128.const 0 0 i32x4.extract_lane 4 drop"), module.ErrInvalid, "lane 4 of 4"},
		{"no end", with(func(m *Module) { m.FuncRaw("", Body("", Code("nop nop"))) }), module.ErrMalformed, "the function ends in the middle"},
		{"code behind the end", with(func(m *Module) { m.FuncRaw("", Body("", Code("end nop"))) }), module.ErrMalformed, "left over behind the end"},
		{"memory.init without a count", with(func(m *Module) {
			m.Memory(1, 1)
			m.Data(-1, "abc")
			m.Func("", "", "i32.const 0 i32.const 0 i32.const 1 memory.init 0")
		}), module.ErrInvalid, "data count"},
	}
}

// forbidden are valid modules, of this or a later version of WebAssembly, with
// what a policy may not have.
func forbidden() []Hostile {
	return []Hostile{
		{"missing import", with(func(m *Module) { m.Import("env", "gettimeofday", "i32 i32 -> i32") }), module.ErrImport, `"env"."gettimeofday" is not offered`},
		{"imported memory", with(func(m *Module) { m.ImportRaw("env", "memory", 2, 0, 1) }), module.ErrImport, "must define its own memory"},
		{"imported global", with(func(m *Module) { m.ImportRaw("env", "g", 3, 0x7f, 0) }), module.ErrImport, "must define its own global"},
		{"start function", with(func(m *Module) { m.Start(m.Func("", "", "loop br 0 end")) }), module.ErrFeature, "_initialize"},
		{"table bomb", with(func(m *Module) {
			m.Table("funcref", 1, -1)
			m.Export("f", module.KindFunc, m.Func("", "", "loop ref.null funcref i32.const 100000 table.grow 0 drop br 0 end"))
		}), module.ErrFeature, "table.grow is not allowed"},
		{"reference bomb", with(func(m *Module) { m.Export("f", module.KindFunc, m.Func("", "", "loop ref.func 0 drop br 0 end")) }), module.ErrFeature, "ref.func is not allowed in functions"},
		{"huge table", with(func(m *Module) { m.Table("funcref", 100_000_000, -1) }), module.ErrLimit, "100000000 entries"},
		{"huge memory", with(func(m *Module) { m.Memory(65_536, -1) }), module.ErrLimit, "65536 pages"},
		{"two memories", with(func(m *Module) { m.Memory(1, 1); m.Memory(1, 1) }), module.ErrFeature, "several memories"},
		{"500 KB straight-line body", body(strings.Repeat("i32.const 1 if nop end ", 90_000)), module.ErrLimit, "split it"},
		{"too many locals", with(func(m *Module) { m.FuncRaw("", []byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, 0x0b}) }), module.ErrLimit, "parameters and locals"},
		{"nested 3,000 deep", body(strings.Repeat("block ", 3000) + strings.Repeat("end ", 3000)), module.ErrLimit, "nested more than"},
		{"br_table of 9,000", body("i32.const 0 br_table 9000 " + strings.Repeat("0 ", 9001)), module.ErrLimit, "targets of a br_table"},
		{"reserved export", with(func(m *Module) { m.Export("__ym_fuel", module.KindGlobal, m.Global("mut i64", "i64.const 0")) }), module.ErrFeature, "reserved"},
		{"debugging data of 3 MB", with(func(m *Module) { m.Before(255, Custom(".debug_info", strings.Repeat("x", 3<<20))...) }), module.ErrLimit, "strip the module"},
		{"exceptions: tag", append(Header(), Section(13, 1, 0, 0)...), module.ErrFeature, "exceptions are not allowed"},
		{"exceptions: throw", body("byte 0x08 byte 0"), module.ErrFeature, "exceptions are not allowed"},
		{"exceptions: try", body("byte 0x06 byte 0x40"), module.ErrFeature, "exceptions are not allowed"},
		{"exceptions: try_table", body("byte 0x1f byte 0x40 byte 0"), module.ErrFeature, "exceptions are not allowed"},
		{"threads: atomic", body("byte 0xfe byte 3 byte 0"), module.ErrFeature, "threads"},
		{"threads: shared memory", with(func(m *Module) { m.MemoryRaw(3, 1, 1) }), module.ErrFeature, "shared memories"},
		{"tail call", body("byte 0x12 byte 0"), module.ErrFeature, "tail calls"},
		{"garbage collection: type", append(Header(), Section(module.SectionType, 1, 0x5f, 0)...), module.ErrFeature, "garbage-collected"},
		{"garbage collection: code", body("byte 0xfb byte 1 byte 0"), module.ErrFeature, "garbage-collected"},
		{"typed references", body("byte 0x14 byte 0"), module.ErrFeature, "typed function references"},
		{"64-bit memory", with(func(m *Module) { m.MemoryRaw(4, 1) }), module.ErrFeature, "64-bit memories"},
		{"relaxed SIMD", body("v128.const 0 0 v128.const 0 0 byte 0xfd byte 0x80 byte 0x02 drop"), module.ErrFeature, "relaxed SIMD"},
	}
}

// contained are modules that are valid and do harm at run time.
func contained() []Hostile {
	double := func(m *Module) {
		f := m.Func("", "", "call 1 call 1")
		for i := range 30 {
			m.Func("", "", "call "+itoa(i+2)+" call "+itoa(i+2))
		}
		m.Func("", "", "")
		m.Export("f", module.KindFunc, f)
	}
	return []Hostile{
		{Name: "endless loop", Wasm: body("loop br 0 end")},
		{Name: "exponential calls", Wasm: with(double)},
		{Name: "deep recursion", Wasm: body("call 0")},
		{Name: "deep recursion with wide frames", Wasm: with(func(m *Module) {
			m.Export("f", module.KindFunc, m.Func("", strings.Repeat("v128 ", 400), "call 0 "+wide(400)))
		})},
		{Name: "memory bomb", Wasm: with(func(m *Module) {
			m.Memory(1, -1)
			m.Export("memory", module.KindMemory, 0)
			m.Export("f", module.KindFunc, m.Func("", "", "loop i32.const 1 memory.grow drop br 0 end"))
		})},
		{Name: "fill bomb", Wasm: with(func(m *Module) {
			m.Memory(64, 64)
			m.Export("memory", module.KindMemory, 0)
			m.Export("f", module.KindFunc, m.Func("", "", "loop i32.const 0 i32.const 0 i32.const 0x400000 memory.fill br 0 end"))
		})},
		{Name: "trap", Wasm: body("unreachable")},
		{Name: "division by zero", Wasm: body("i32.const 1 i32.const 0 i32.div_s drop")},
		{Name: "load out of bounds", Wasm: body("i32.const 0x7fffffff i32.load 0 drop")},
	}
}

// wide uses n vectors.
func wide(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("local.get " + itoa(i) + " drop ")
	}
	return b.String()
}
