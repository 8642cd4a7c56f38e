package abitest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// Hostile is a policy that means harm, or was built wrongly.
type Hostile struct {
	Name string
	// Wasm is refused by package vet at Step, with a sentence that has the words Says.
	Wasm       []byte
	Step, Says string
	// Sleeper, if there is one, does the same harm only when a request's prompt has
	// [Trigger] tokens. No trial finds that: it is accepted, and package host contains
	// it under the name of Fault. What its memory may then be is MostPages at most.
	Sleeper []byte
	Fault   string
}

// Trigger is the length of prompt that wakes a sleeper.
const Trigger = 12_648_430

// Corpus are the hostile policies. All but the deliberately broken ones are routers
// with one column.
func Corpus() []Hostile {
	var all []Hostile
	for _, list := range [][]Hostile{broken(), forbidden(), unfit(), misplaced(), harmful()} {
		all = append(all, list...)
	}
	return all
}

// base is the policy that the hostile ones are changed from.
func base() Policy {
	return Policy{Columns: []string{"queued_tokens"}, Locals: "i32 i32", Code: good}
}

// good copies the column into the scores.
var good = Loop("local.get 1 local.get 1 f32.load @0 f32.store @out")

func with(change func(p *Policy)) []byte {
	p := base()
	change(&p)
	return p.Build()
}

func more(add func(m *wattest.Module)) []byte {
	return with(func(p *Policy) { p.More = add })
}

// broken are uploads that are no modules, or contradict themselves.
func broken() []Hostile {
	whole := base().Build()
	return []Hostile{
		{Name: "empty upload", Step: "size", Says: "is empty"},
		{Name: "over 4 MiB", Wasm: make([]byte, 4<<20+1), Step: "size", Says: "at most 4194304"},
		{Name: "text", Wasm: []byte("(module)"), Step: "structure", Says: "must be assembled first"},
		{Name: "cut off", Wasm: whole[:len(whole)/2], Step: "structure", Says: "cut off"},
		{Name: "component", Wasm: []byte("\x00asm\x0d\x00\x01\x00"), Step: "structure", Says: "components are not allowed"},
		{Name: "duplicate sections", Wasm: more(func(m *wattest.Module) {
			m.Before(module.SectionMemory, wattest.Section(module.SectionMemory, 1, 0, 1)...)
		}), Step: "structure", Says: "second memory section"},
		{Name: "invalid UTF-8", Wasm: append(whole, wattest.Section(0, 2, 0xff, 0xfe)...), Step: "structure", Says: "not valid UTF-8"},
		{Name: "500 KB straight-line body", Wasm: more(func(m *wattest.Module) { m.Func("", "", strings.Repeat("i32.const 1 if nop end ", 90_000)) }), Step: "structure", Says: "split it"},
		{Name: "16,000 empty loops", Wasm: more(func(m *wattest.Module) { m.Func("", "", strings.Repeat("loop end ", 16_000)) }), Step: "meter", Says: "once its loops are metered"},
	}
}

// forbidden have what no policy may have.
func forbidden() []Hostile {
	body := func(code string) []byte {
		return more(func(m *wattest.Module) { m.Func("", "", code) })
	}
	return []Hostile{
		{Name: "threads", Wasm: body("byte 0xfe byte 3 byte 0"), Step: "structure", Says: "threads"},
		{Name: "shared memory", Wasm: more(func(m *wattest.Module) { m.MemoryRaw(3, 1, 1) }), Step: "structure", Says: "several memories"},
		{Name: "exceptions", Wasm: body("byte 0x06 byte 0x40"), Step: "structure", Says: "exceptions are not allowed"},
		{Name: "start function", Wasm: more(func(m *wattest.Module) { m.Start(m.Func("", "", "loop br 0 end")) }), Step: "structure", Says: "_initialize"},
		{Name: "table bomb", Wasm: more(func(m *wattest.Module) {
			m.Table("funcref", 1, -1)
			m.Func("", "", "loop ref.null funcref i32.const 100000 table.grow 0 drop br 0 end")
		}), Step: "structure", Says: "table.grow is not allowed"},
		{Name: "huge table", Wasm: more(func(m *wattest.Module) { m.Table("funcref", 100_000_000, -1) }), Step: "structure", Says: "100000000 entries"},
		{Name: "huge memory", Wasm: with(func(p *Policy) { p.Min = 65_536 }), Step: "structure", Says: "65536 pages"},
		{Name: "missing import", Wasm: imported("env", "gettimeofday", "i32 i32 -> i32"), Step: "structure", Says: `"env"."gettimeofday" is not offered`},
		{Name: "WASI call that opens files", Wasm: imported(abi.ImportWASI, "path_open", "i32 i32 i32 i32 i32 i64 i64 i32 i32 -> i32"), Step: "structure", Says: `"path_open" is not offered`},
		{Name: "WASI call of another type", Wasm: imported(abi.ImportWASI, "random_get", "i64 i64 -> i32"), Step: "structure", Says: "random_get"},
		{Name: "reserved export", Wasm: more(func(m *wattest.Module) {
			m.Export("__ym_fuel", module.KindGlobal, m.Global("mut i64", "i64.const 0"))
		}), Step: "structure", Says: "reserved"},
	}
}

// imported is a module that imports one function more. It is not run.
func imported(from, name, typ string) []byte {
	m := wattest.New()
	m.Import(from, name, typ)
	m.Memory(1, 1)
	m.Export("memory", module.KindMemory, 0)
	return m.Bytes()
}

// unfit are modules that do not keep the contract.
func unfit() []Hostile {
	manifest := func(text string) []byte { return with(func(p *Policy) { p.Manifest = text }) }
	const head = `{"abi":"1.0","kind":"router","name":"x","version":"1"`
	return []Hostile{
		{Name: "no manifest", Wasm: imported(abi.ImportModule, "rand_u64", "-> i64"), Step: "contract", Says: "no custom section"},
		{Name: "unknown kind", Wasm: manifest(`{"abi":"1.0","kind":"gateway","name":"x","version":"1"}`), Step: "contract", Says: `kind "gateway" is unknown`},
		{Name: "another major version", Wasm: manifest(`{"abi":"2.0","kind":"router","name":"x","version":"1"}`), Step: "contract", Says: "another major version"},
		{Name: "a later minor version", Wasm: manifest(`{"abi":"1.9","kind":"router","name":"x","version":"1"}`), Step: "contract", Says: "newer than this host's"},
		{Name: "oversized manifest", Wasm: manifest(head + `,"params":"` + strings.Repeat("x", 17<<10) + `"}`), Step: "contract", Says: "at most 16384 are allowed"},
		{Name: "manifest that is no JSON", Wasm: manifest("name: x"), Step: "contract", Says: "not JSON"},
		{Name: "manifest with invalid UTF-8", Wasm: manifest("{\"abi\":\"\xff\xfe\"}"), Step: "contract", Says: "not JSON"},
		{Name: "two manifests", Wasm: append(base().Build(), wattest.Custom(abi.Section, head+"}")...), Step: "contract", Says: "2 custom sections"},
		{Name: "capability not asked for", Wasm: manifest(head + `,"columns":[{"name":"queued_tokens"}]}`), Step: "contract", Says: "does not ask for the capability"},
		{Name: "1,000 optional columns", Wasm: manifest(head + `,"columns":[` + strings.TrimSuffix(strings.Repeat(`{"name":"c","optional":true},`, 500), ",") + `]}`), Step: "contract", Says: "columns are more than 64"},
		{Name: "fuel without end", Wasm: manifest(head + `,"fuel":9000000000000}`), Step: "contract", Says: "may ask for up to"},
		{Name: "no memory exported", Wasm: noMemory(), Step: "contract", Says: `"memory"`},
	}
}

func noMemory() []byte {
	m := wattest.New()
	m.Export(abi.ExportGuard, module.KindFunc, m.Func("->", "", ""))
	m.Before(255, wattest.Custom(abi.Section, `{"abi":"1.0","kind":"router","name":"x","version":"1"}`)...)
	return m.Bytes()
}

// misplaced are policies that fail before their first call.
func misplaced() []Hostile {
	header := func(change func(words []uint32)) []byte {
		return with(func(p *Policy) { p.Header = change })
	}
	const request, column, output = 4, 10, 11 // words of the header
	return []Hostile{
		{Name: "layout outside the memory", Wasm: with(func(p *Policy) { p.Layout = "i32.const -4" }), Step: "start", Says: "is not in the memory"},
		{Name: "layout without a header", Wasm: with(func(p *Policy) { p.Layout = "i32.const 8192" }), Step: "start", Says: "must begin with"},
		{Name: "column outside the memory", Wasm: header(func(w []uint32) { w[column] = 0x7fff_fff0 }), Step: "start", Says: "is not in the memory"},
		{Name: "column at the end of the address space", Wasm: header(func(w []uint32) { w[column] = 0xffff_fff0 }), Step: "start", Says: "is not in the memory"},
		{Name: "column not aligned", Wasm: header(func(w []uint32) { w[column]++ }), Step: "start", Says: "multiple of 16"},
		{Name: "overlapping buffers", Wasm: header(func(w []uint32) { w[output] = w[column] }), Step: "start", Says: "overlaps"},
		{Name: "column over the header", Wasm: header(func(w []uint32) { w[column] = headerAt &^ 15 }), Step: "start", Says: "overlaps"},
		{Name: "request block over a column", Wasm: header(func(w []uint32) { w[request] = w[column] + 64 }), Step: "start", Says: "overlaps"},
		{Name: "no rows", Wasm: header(func(w []uint32) { w[3] = 0 }), Step: "start", Says: "0 rows"},
		{Name: "4 billion rows", Wasm: header(func(w []uint32) { w[3] = 0xffff_ffff }), Step: "start", Says: "rows"},
		{Name: "trap in _initialize", Wasm: with(func(p *Policy) { p.Initialize = "unreachable" }), Step: "start", Says: "policy trapped"},
		{Name: "_initialize without end", Wasm: with(func(p *Policy) { p.Initialize = "loop br 0 end" }), Step: "start", Says: "out of fuel: _initialize"},
		{Name: "ym_layout without end", Wasm: with(func(p *Policy) { p.Layout = "loop br 0 end i32.const 0" }), Step: "start", Says: "out of fuel: ym_layout"},
		{Name: "params refused", Wasm: with(func(p *Policy) { p.Configure = "i32.const 5" }), Step: "start", Says: "returned 5 for its params"},
		{Name: "layout that moves", Wasm: with(func(p *Policy) {
			p.Layout = "i32.const 1024 i32.const 8 i32.load 0 i32.add"
			p.Code = "i32.const 8 i32.const 4096 i32.store 0 " + good
		}), Step: "dry-run", Says: "the header was at"},
		{Name: "layout that changes", Wasm: with(func(p *Policy) { p.Code = "i32.const 1024 i32.const 16 i32.store 12 " + good }), Step: "dry-run", Says: "something else than in the beginning"},
	}
}

// attack is code that does harm in a call. Local 2 is an i32 to use.
type attack struct {
	name, code, says, fault string
	more                    func(m *wattest.Module)
	change                  func(p *Policy)
}

// harmful are policies that do harm when they are called.
func harmful() []Hostile {
	call := func(add func(m *wattest.Module) int) func(m *wattest.Module) {
		return func(m *wattest.Module) { add(m) }
	}
	first := strconv.Itoa(Imports) // the index of what an attack adds
	set := func(bits string) string { return Loop("local.get 1 i32.const " + bits + " i32.store @out") }
	attacks := []attack{
		{name: "endless loop", code: "loop br 0 end", says: "out of fuel", fault: "fuel"},
		{name: "exponential calls", code: "call " + first, says: "out of fuel", fault: "fuel", more: exponential},
		{name: "deep recursion", code: "call " + first, says: "out of fuel", fault: "fuel", more: call(func(m *wattest.Module) int { return m.Func("", "", "call "+first) })},
		{name: "deep recursion with wide frames", code: "call " + first, says: "out of fuel", fault: "fuel", more: call(func(m *wattest.Module) int { return m.Func("", strings.Repeat("v128 ", 400), "call "+first) })},
		{
			name: "memory bomb", code: "loop i32.const 1 memory.grow drop i32.const 0 i32.const 1 i32.const 65536 memory.fill br 0 end", says: "out of fuel", fault: "fuel",
			change: func(p *Policy) { p.Grow = true },
		},
		{name: "fill bomb", code: "loop i32.const 65536 i32.const 0 i32.const 65536 memory.fill br 0 end", says: "out of fuel", fault: "fuel"},
		{name: "grow by everything", code: "loop i32.const 0x7fffffff memory.grow drop i32.const -1 memory.grow drop br 0 end", says: "out of fuel", fault: "fuel", change: func(p *Policy) { p.Grow = true }},
		{name: "log flood", code: "loop i32.const 3 i32.const 64 i32.const 1024 call 0 br 0 end", says: "out of fuel", fault: "fuel"},
		{name: "state flood", code: "loop i32.const 0 i32.const 64 i32.const 8 i32.const 64 i32.const 4096 call 5 drop br 0 end", says: "out of fuel", fault: "fuel"},
		{name: "trap", code: "unreachable", says: "policy trapped", fault: "trap"},
		{name: "division by zero", code: "i32.const 1 i32.const 0 i32.div_s drop", says: "policy trapped", fault: "trap"},
		{name: "load out of bounds", code: "i32.const 0x7fffffff i32.load 0 drop", says: "policy trapped", fault: "trap"},
		{name: "store out of bounds", code: "i32.const -1 i32.const 1 i32.store 0", says: "policy trapped", fault: "trap"},
		{
			name: "trap every third call", says: "policy trapped", fault: "trap",
			code: "i32.const 8 i32.const 8 i32.load 0 i32.const 1 i32.add local.tee 2 i32.store 0 local.get 2 i32.const 3 i32.rem_u i32.eqz if unreachable end",
		},
		{name: "no answer", code: "i32.const 7 return", says: "answered none of the calls", fault: "refused"},
		{name: "NaN scores", code: set("0x7fc00000") + " return", says: "no candidate a score", fault: "scores"},
		{name: "infinite scores", code: set("0x7f800000") + " return", says: "no candidate a score", fault: "scores"},
		{name: "the least scores there are", code: set("-8388608") + " return", says: "no candidate a score", fault: "scores"},
		{
			name: "pick out of range", code: "local.get 0 i64.extend_i32_u return", says: "answered none of the calls", fault: "refused",
			change: func(p *Policy) { p.Export, p.Code = abi.ExportRoute, "i64.const 0" },
		},
		{
			name: "negative pick", code: "i64.const -9 return", says: "answered none of the calls", fault: "refused",
			change: func(p *Policy) { p.Export, p.Code = abi.ExportRoute, "i64.const 0" },
		},
	}
	var all []Hostile
	for _, a := range attacks {
		all = append(all, a.hostile())
	}
	return all
}

// hostile is the attack in both forms.
func (a attack) hostile() Hostile {
	h := Hostile{Name: a.name, Step: "dry-run", Says: a.says, Fault: a.fault}
	build := func(code string) []byte {
		p := base()
		p.More = a.more
		if a.change != nil {
			a.change(&p)
		}
		p.Code = code + " " + p.Code
		return p.Build()
	}
	h.Wasm = build(a.code)
	h.Sleeper = build(fmt.Sprintf("i32.const @request i32.load 40 i32.const %d i32.eq if %s end", Trigger, a.code))
	return h
}

// exponential adds a tree of calls, 2^30 in all.
func exponential(m *wattest.Module) {
	const depth = 30
	for i := range depth {
		next := strconv.Itoa(Imports + i + 1)
		m.Func("", "", "call "+next+" call "+next)
	}
	m.Func("", "", "")
}
