package wattest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/policies/module"
)

// Choice returns a number from 0 to n-1, n being at least 1.
type Choice func(n int) int

// Choices turns bytes into choices, zeros once they are used up.
func Choices(b []byte) Choice {
	return func(n int) int {
		v := 0
		for span := 1; span < n && len(b) > 0; span <<= 8 {
			v = v<<8 | int(b[0])
			b = b[1:]
		}
		return v % n
	}
}

// Random makes a valid module by choice: functions over all instructions that a
// policy may use, a memory, a table, globals and segments. Its export "f" takes an
// i32 and an i64 and returns an i64; the memory and the globals are exported too.
// It may trap and it may run for ever. NaNs are made canonical where arithmetic
// yields them, so that what it computes is determined.
func Random(choose Choice) *Module {
	g := generator{m: New(), choose: choose, ops: opsByResult()}
	g.module()
	return g.m
}

var (
	valueTypes = []string{"i32", "i64", "f32", "f64", "v128"}
	labelTypes = [][]string{nil, {"i32"}, {"i64"}, {"f64"}, {"v128"}, {"i32", "i64"}, {"f32", "v128", "i32"}}
)

// function is what one can be called with.
type function struct{ params, results []string }

func (f function) String() string {
	return strings.Join(f.params, " ") + " -> " + strings.Join(f.results, " ")
}

type generator struct {
	m      *Module
	choose Choice
	ops    map[string][]module.Op

	funcs   []function
	globals []string
	locals  []string   // parameters included
	labels  [][]string // what a branch takes, the innermost last
	budget  int        // instructions that may still be made
	out     strings.Builder
}

// opsByResult lists the instructions of a fixed type by their result.
func opsByResult() map[string][]module.Op {
	ops := map[string][]module.Op{}
	for op := range module.Op(0x300) {
		t, ok := op.Type()
		if !ok {
			continue
		}
		result := ""
		if len(t.Results) > 0 {
			result = t.Results[0].String()
		}
		ops[result] = append(ops[result], op)
	}
	return ops
}

// pages is the size of the random memory, and its growth is of one page.
const pages = 1

func (g *generator) module() {
	g.m.Memory(pages, pages+1)
	g.m.Table("funcref", 8, 8)
	g.m.Export("memory", module.KindMemory, 0)
	for i, t := range []string{"i32", "i64", "f32", "f64", "v128", "i64"} {
		g.globals = append(g.globals, t)
		g.m.Export(fmt.Sprint("g", i), module.KindGlobal, g.m.Global("mut "+t, zero(t)))
	}
	g.m.Data(16, "some bytes to begin with, and more of them")
	g.m.Data(-1, "passive bytes")
	g.m.DataCount()
	n := 1 + g.choose(4)
	for range n {
		g.function(function{params: g.types(4), results: g.types(3)})
	}
	g.m.Export("f", module.KindFunc, g.function(function{params: []string{"i32", "i64"}, results: []string{"i64"}}))
	// The segment names functions of several types, so that some calls through the
	// table trap.
	g.m.Elem(0, 0, n/2, n)
	g.m.ElemRaw(append([]byte{1, 0}, 2, 0, byte(n))...)
}

func zero(t string) string {
	if t == "v128" {
		return "v128.const 0 0"
	}
	return t + ".const 0"
}

func (g *generator) types(most int) []string {
	out := make([]string, g.choose(most))
	for i := range out {
		out[i] = valueTypes[g.choose(len(valueTypes))]
	}
	return out
}

func (g *generator) emit(format string, args ...any) {
	fmt.Fprintf(&g.out, format+" ", args...)
}

// function adds one and returns its index. It may call those before it, and
// through the table any.
func (g *generator) function(f function) int {
	// Behind those by chance are those that loops and canonical NaNs need.
	locals := append(g.types(6), "i64", "i32", "i32", "f32", "f64", "v128")
	g.locals = append(slices.Clone(f.params), locals...)
	g.labels = [][]string{f.results}
	g.budget = 20 + g.choose(200)
	g.out.Reset()
	g.statements()
	for _, t := range f.results {
		g.value(t, 0)
	}
	g.funcs = append(g.funcs, f)
	return g.m.Func(f.String(), strings.Join(locals, " "), g.out.String())
}

func (g *generator) statements() {
	for range 1 + g.choose(5) {
		g.statement()
	}
}

// local is some local of the type.
func (g *generator) local(t string) (int, bool) {
	var found []int
	for i, u := range g.locals {
		if u == t {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return 0, false
	}
	return found[g.choose(len(found))], true
}

func (g *generator) statement() {
	g.budget--
	if g.budget <= 0 || len(g.labels) > 8 {
		g.emit("nop")
		return
	}
	switch g.choose(17) {
	case 0, 1:
		i := g.choose(len(g.locals))
		g.value(g.locals[i], 0)
		g.emit("local.set %d", i)
	case 2, 3:
		i := g.choose(len(g.globals))
		g.value(g.globals[i], 0)
		g.emit("global.set %d", i)
	case 4, 5:
		stores := g.ops[""]
		g.apply(stores[g.choose(len(stores))], 0)
	case 6:
		g.counted()
	case 7:
		g.open("block", labelTypes[0])
		g.statements()
		g.close()
	case 8:
		g.value("i32", 0)
		g.open("if", labelTypes[0])
		g.statements()
		if g.choose(2) == 0 {
			g.emit("else")
			g.statements()
		}
		g.close()
	case 9, 10:
		g.branch()
	case 11:
		g.call(g.choose(len(g.funcs)+1), "")
	case 12:
		g.table()
	case 13:
		g.multi()
	case 16:
		g.leave()
	case 14:
		g.value(valueTypes[g.choose(len(valueTypes))], 0)
		g.emit("drop")
	default:
		g.emit([]string{"data.drop 1", "elem.drop 1", "nop", "block i32.const 1 br_if 0 unreachable end"}[g.choose(4)])
	}
}

// open begins a block whose label takes, and which yields, the types.
func (g *generator) open(op string, yields []string) {
	g.labels = append(g.labels, yields)
	switch len(yields) {
	case 0:
		g.emit("%s", op)
	case 1:
		g.emit("%s %s", op, yields[0])
	default:
		g.emit("%s %d", op, g.m.Type(function{results: yields}.String()))
	}
}

func (g *generator) close() {
	g.labels = g.labels[:len(g.labels)-1]
	g.emit("end")
}

// counted is a loop over a local that its body may or may not disturb.
func (g *generator) counted() {
	n := len(g.locals) - 5
	g.emit("i32.const %d local.set %d", 1+g.choose(6), n)
	// A branch to a loop takes its parameters, of which it has none.
	g.open("loop", nil)
	g.statements()
	g.emit("local.get %d i32.const 1 i32.sub local.tee %d br_if 0", n, n)
	g.close()
}

// branch leaves some block, perhaps; what follows may then never run.
func (g *generator) branch() {
	label := g.choose(len(g.labels))
	takes := g.labels[len(g.labels)-1-label]
	for _, t := range takes {
		g.value(t, 0)
	}
	switch g.choose(4) {
	case 0:
		g.emit("br %d", label)
		g.emit([]string{"", "i32.add drop", "drop drop", "i64.const 1 i32.wrap_i64 select drop", "f32x4.add i32x4.extract_lane 1 if end"}[g.choose(5)])
	case 1:
		g.emit("i32.const %d br_table 2 %d %d %d", g.choose(4), label, label, label)
	default:
		g.value("i32", 0)
		g.emit("br_if %d", label)
		for range takes {
			g.emit("drop")
		}
	}
}

// leave returns from the function, perhaps.
func (g *generator) leave() {
	g.value("i32", 0)
	g.open("if", nil)
	for _, t := range g.labels[0] {
		g.value(t, 0)
	}
	g.emit("return")
	g.close()
}

// call calls a function, the last choice one through the table, and keeps one
// result of the wanted type at most; it says whether it did.
func (g *generator) call(i int, want string) bool {
	if len(g.funcs) == 0 {
		return false
	}
	f := g.funcs[min(i, len(g.funcs)-1)]
	if want != "" && (len(f.results) == 0 || f.results[0] != want) {
		return false
	}
	for _, t := range f.params {
		g.value(t, 0)
	}
	if i < len(g.funcs) {
		g.emit("call %d", i)
	} else {
		g.emit("i32.const %d call_indirect %d 0", g.choose(9), g.m.Type(f.String()))
	}
	drop := len(f.results)
	if want != "" {
		drop--
	}
	for range drop {
		g.emit("drop")
	}
	return true
}

// table uses references and the table.
func (g *generator) table() {
	switch g.choose(4) {
	case 0:
		g.emit("i32.const %d i32.const %d table.get 0 table.set 0", g.choose(9), g.choose(8))
	case 1:
		g.emit("i32.const %d ref.null funcref table.set 0", g.choose(9))
	case 2:
		g.emit("i32.const %d i32.const %d i32.const %d table.init 1 0", g.choose(8), g.choose(2), g.choose(3))
	default:
		g.emit("i32.const %d table.get 0 ref.null funcref i32.const %d select-t funcref ref.is_null table.size 0 i32.add global.set 0", g.choose(9), g.choose(2))
	}
}

// multi is a block of several results, and one with parameters.
func (g *generator) multi() {
	yields := labelTypes[5+g.choose(2)]
	g.open("block", yields)
	g.statements()
	for _, t := range yields {
		g.value(t, 0)
	}
	g.close()
	if yields[0] == "i32" {
		// A loop with parameters, which goes round once more at most: its second
		// value is not negative then.
		t := g.m.Type("i32 i64 -> i32 i64")
		g.emit("loop %d local.set %d local.tee %d local.get %d i64.const -1 i64.xor", t, g.long(), len(g.locals)-5, g.long())
		g.emit("local.get %d i64.const 0 i64.lt_s br_if 0 end", g.long())
	}
	for range yields {
		g.emit("drop")
	}
}

// long is an i64 that each function has.
func (g *generator) long() int { return len(g.locals) - 6 }

const deepest = 6

// value makes one value of the type.
func (g *generator) value(t string, depth int) {
	g.budget--
	if g.budget <= 0 || depth > deepest {
		g.leaf(t)
		return
	}
	switch g.choose(12) {
	case 0, 1:
		g.leaf(t)
	case 2:
		if len(g.labels) > 8 {
			g.leaf(t)
			return
		}
		g.open("block", []string{t})
		g.statements()
		g.value(t, depth+1)
		g.close()
	case 3:
		if len(g.labels) > 8 {
			g.leaf(t)
			return
		}
		g.value("i32", depth+1)
		g.open("if", []string{t})
		g.value(t, depth+1)
		g.emit("else")
		g.value(t, depth+1)
		g.close()
	case 4:
		g.value(t, depth+1)
		g.value(t, depth+1)
		g.value("i32", depth+1)
		g.emit("select")
	case 5:
		if !g.call(g.choose(len(g.funcs)+1), t) {
			g.leaf(t)
		}
	default:
		ops := g.ops[t]
		g.apply(ops[g.choose(len(ops))], depth+1)
	}
}

// leaf makes a value at no depth.
func (g *generator) leaf(t string) {
	switch g.choose(3) {
	case 0:
		if i, ok := g.local(t); ok {
			g.emit("local.get %d", i)
			return
		}
	case 1:
		if i := slices.Index(g.globals, t); i >= 0 {
			g.emit("global.get %d", i)
			return
		}
	}
	g.constant(t)
}

func (g *generator) constant(t string) {
	integers := []int64{0, 1, -1, 2, 7, 31, 255, 65535, -128, 0x7fffffff, -0x80000000, 0x01020304, 0x7ff8000000000000}
	n := integers[g.choose(len(integers))]
	switch t {
	case "v128":
		g.emit("v128.const %d %d", n, integers[g.choose(len(integers))])
	case "f32", "f64":
		g.emit("%s.const %s", t, []string{"0", "-0", "1", "-1.5", "1e10", "3e38", "inf", "-inf", "nan", "0.1"}[g.choose(10)])
	default:
		g.emit("%s.const %d", t, n)
	}
}

// apply makes the operands of an instruction, and the instruction.
func (g *generator) apply(op module.Op, depth int) {
	name := op.String()
	t, _ := op.Type()
	switch {
	case strings.HasSuffix(name, ".const"):
		g.constant(t.Results[0].String())
		return
	case op == module.OpMemoryGrow:
		g.emit("i32.const %d memory.grow", g.choose(3))
		return
	case op == module.OpMemoryInit:
		g.emit("i32.const %d i32.const %d i32.const %d memory.init 1", g.choose(65536), g.choose(8), g.choose(8))
		return
	case strings.HasPrefix(name, "memory.") && len(t.Params) == 3:
		g.emit("i32.const %d i32.const %d i32.const %d %s", g.choose(65536), g.choose(4096), g.choose(1024), name)
		return
	}
	memory := strings.Contains(name, "load") || strings.Contains(name, "store")
	for i, p := range t.Params {
		g.value(p.String(), depth)
		if memory && i == 0 && g.choose(40) > 0 {
			g.emit("i32.const 0xffe0 i32.and")
		}
	}
	g.emit("%s", name)
	if memory {
		g.emit("%d", g.choose(17))
	}
	lanes, named := op.Lanes()
	for range named {
		g.emit("%d", g.choose(lanes))
	}
	g.canonical(name)
}

// canonical replaces a NaN that arithmetic made by the one NaN: which it is, is
// up to the machine.
func (g *generator) canonical(name string) {
	t, verb, _ := strings.Cut(name, ".")
	n := len(g.locals)
	if strings.Contains(verb, "load") || strings.Contains(verb, "store") || strings.Contains(verb, "reinterpret") || slices.Contains([]string{"abs", "neg", "copysign", "splat", "replace_lane", "extract_lane", "pmin", "pmax"}, verb) {
		return
	}
	comparison := slices.Contains([]string{"eq", "ne", "lt", "gt", "le", "ge"}, verb)
	switch {
	case comparison:
	case t == "f32":
		g.emit("local.tee %d f32.const nan local.get %d local.get %d f32.eq select", n-3, n-3, n-3)
	case t == "f64":
		g.emit("local.tee %d f64.const nan local.get %d local.get %d f64.eq select", n-2, n-2, n-2)
	case t == "f32x4":
		g.emit("local.tee %d v128.const 0x7fc000007fc00000 0x7fc000007fc00000 local.get %d local.get %d f32x4.eq v128.bitselect", n-1, n-1, n-1)
	case t == "f64x2":
		g.emit("local.tee %d v128.const 0x7ff8000000000000 0x7ff8000000000000 local.get %d local.get %d f64x2.eq v128.bitselect", n-1, n-1, n-1)
	}
}
