package abitest

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// Policy is a policy in the making. The zero value is a router without columns that
// gives every candidate the score that its memory begins with, 0.
type Policy struct {
	Kind     abi.Kind // default router
	Name     string   // default "test"
	Version  string   // default "1"
	Columns  []string // a "?" in front makes one optional
	Params   []abi.Param
	Fuel     int64
	Pages    uint32
	Fallback string
	Fail     string
	Rows     int // default 4096
	Min      int // pages that the memory begins with, if more than the buffers need

	Export string // default the kind's, ym_score of routers
	Code   string // of that call; default: return 0
	Locals string // of that call, beside its parameter

	Initialize, Layout, Configure string

	// Manifest, if set, stands in place of the one that the fields above give.
	Manifest string
	// Header changes the words of the layout's header.
	Header func(words []uint32)
	// More adds to the module, before the exports of the policy.
	More func(m *wattest.Module)
	// Grow lets the memory grow.
	Grow bool
}

// The places of the buffers in the guest's memory.
const (
	headerAt  = 1024
	requestAt = 2048
	paramsAt  = 4096
	columnsAt = 65536
)

// imports are those of every test policy, in this order: function 0 is log, and so on.
var imports = []struct{ name, typ string }{
	{"log", "i32 i32 i32 ->"},
	{"counter_add", "i32 i64 ->"},
	{"rand_u64", "-> i64"},
	{"now_ms", "-> i64"},
	{"kv_get", "i32 i32 i32 i32 i32 -> i32"},
	{"kv_set", "i32 i32 i32 i32 i32 -> i32"},
	{"kv_add", "i32 i32 i32 i64 -> i64"},
}

// Imports is how many functions a test policy imports: the first one that
// [Policy.More] adds has this index.
const Imports = 7

// call is what a kind answers by.
type call struct{ export, typ, result string }

func (p *Policy) call() call {
	zero := "i32.const 0"
	switch {
	case p.Kind == abi.Admission:
		return call{abi.ExportAdmit, "-> i64", "i64.const 0"}
	case p.Kind == abi.Autoscaler:
		return call{abi.ExportTick, "i32 -> i32", zero}
	case p.Kind == abi.Observer:
		return call{abi.ExportObserve, "i32 -> i32", zero}
	case p.Export == abi.ExportRoute:
		return call{abi.ExportRoute, "i32 -> i64", "i64.const 0"}
	default:
		return call{abi.ExportScore, "i32 -> i32", zero}
	}
}

// Build makes the module.
func (p Policy) Build() []byte {
	if p.Kind == "" {
		p.Kind = abi.Router
	}
	if p.Rows == 0 {
		p.Rows = 4096
	}
	c := p.call()
	m := wattest.New()
	for _, i := range imports {
		m.Import(abi.ImportModule, i.name, i.typ)
	}
	outputs := p.outputs()
	size := (4*p.Rows + 15) &^ 15
	low := (columnsAt + size*(len(p.Columns)+outputs) + module.PageSize - 1) / module.PageSize
	low = max(low, p.Min)
	if p.Grow {
		m.Memory(low, -1)
	} else {
		m.Memory(low, low)
	}
	if p.More != nil {
		p.More(m)
	}
	code := func(text, standard string) string {
		if text == "" {
			text = standard
		}
		return p.places(size).Replace(text)
	}
	m.Export("memory", module.KindMemory, 0)
	m.Export(abi.ExportGuard, module.KindFunc, m.Func("->", "", ""))
	m.Export(abi.ExportLayout, module.KindFunc, m.Func("-> i32", "", code(p.Layout, "i32.const "+strconv.Itoa(headerAt))))
	m.Export(abi.ExportConfigure, module.KindFunc, m.Func("i32 -> i32", "", code(p.Configure, "i32.const 0")))
	m.Export(c.export, module.KindFunc, m.Func(c.typ, p.Locals, code(p.Code, c.result)))
	if p.Initialize != "" {
		m.Export(abi.ExportInitialize, module.KindFunc, m.Func("->", "", code(p.Initialize, "")))
	}
	m.Data(headerAt, string(p.header(size, outputs)))
	m.Data(64, "hello")
	m.Before(255, wattest.Custom(abi.Section, p.manifest())...)
	return m.Bytes()
}

// outputs is how many output columns the kind has.
func (p *Policy) outputs() int {
	switch p.Kind {
	case abi.Router:
		return 1
	case abi.Autoscaler:
		return 2
	default:
		return 0
	}
}

// places replaces the names of buffers by their addresses.
func (p *Policy) places(size int) *strings.Replacer {
	at := func(i int) string { return strconv.Itoa(columnsAt + size*i) }
	words := []string{"@request", strconv.Itoa(requestAt), "@params", strconv.Itoa(paramsAt), "@out1", at(len(p.Columns) + 1), "@out", at(len(p.Columns))}
	for i := range slices.Backward(p.Columns) { // @10 before @1
		words = append(words, "@"+strconv.Itoa(i), at(i))
	}
	return strings.NewReplacer(words...)
}

func (p *Policy) header(size, outputs int) []byte {
	columns := len(p.Columns) + outputs
	request := map[abi.Kind]uint32{
		abi.Router: abi.RouterRequestSize, abi.Admission: abi.AdmissionRequestSize,
		abi.Autoscaler: abi.PoolsRequestSize, abi.Observer: abi.OutcomesRequestSize,
	}[p.Kind]
	words := []uint32{
		0x314c4d59, abi.Major << 16, uint32(10 + columns), uint32(p.Rows), requestAt, request,
		paramsAt, uint32(8 * len(p.Params)), uint32(len(p.Columns)), uint32(outputs),
	}
	for i := range columns {
		words = append(words, uint32(columnsAt+size*i))
	}
	if p.Header != nil {
		p.Header(words)
	}
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

func (p *Policy) manifest() string {
	if p.Manifest != "" {
		return p.Manifest
	}
	m := abi.Manifest{
		ABI: fmt.Sprintf("%d.%d", abi.Major, abi.Minor), Kind: p.Kind, Name: p.Name, Version: cmp.Or(p.Version, "1"),
		Params: p.Params, Capabilities: abi.Capabilities(), Counters: []abi.Metric{{Name: "calls"}},
		Fuel: p.Fuel, Pages: p.Pages, Fallback: p.Fallback, Fail: p.Fail,
	}
	if m.Name == "" {
		m.Name = "test"
	}
	for _, name := range p.Columns {
		bare, optional := strings.CutPrefix(name, "?")
		m.Columns = append(m.Columns, abi.Use{Name: bare, Optional: optional})
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic("abitest: " + err.Error())
	}
	return string(b)
}

// Loop repeats code for each row of a column of 4-byte values, with the row's offset
// in bytes in local 1, an i32. The call's parameter, local 0, is the number of rows.
func Loop(code string) string {
	return `block local.get 0 i32.eqz br_if 0 loop ` + code + `
		local.get 1 i32.const 4 i32.add local.tee 1 local.get 0 i32.const 2 i32.shl i32.lt_u br_if 0 end end i32.const 0`
}

// Vectors is Loop for vectors of four.
func Vectors(code string) string {
	return strings.Replace(Loop(code), "i32.const 4 i32.add", "i32.const 16 i32.add", 1)
}

// Set gives every candidate the same score, whose bits are given.
func Set(bits uint32) Policy {
	return Policy{Locals: "i32", Code: Loop("local.get 1 i32.const " + strconv.Itoa(int(int32(bits))) + " i32.store @out")}
}
