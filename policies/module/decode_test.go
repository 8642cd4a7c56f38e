package module_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

func TestHostileModulesAreRefusedWithAReason(t *testing.T) {
	for _, h := range wattest.Corpus() {
		t.Run(h.Name, func(t *testing.T) {
			_, err := module.Decode(h.Wasm, module.Options{})
			if !errors.Is(err, h.Refused) {
				t.Fatalf("got %v, want %v", err, h.Refused)
			}
			if err == nil {
				return
			}
			e, ok := errors.AsType[*module.Error](err)
			if !ok {
				t.Fatalf("%T is no *module.Error", err)
			}
			if !strings.Contains(e.Reason, h.Reason) {
				t.Errorf("the reason is %q; it should say %q", e.Reason, h.Reason)
			}
			if e.Offset < 0 || e.Offset > len(h.Wasm) {
				t.Errorf("offset %d of %d bytes", e.Offset, len(h.Wasm))
			}
		})
	}
}

func TestImportsAreMatchedByNameAndType(t *testing.T) {
	offered := []module.Import{
		{Module: "ym1", Name: "log", Type: module.FuncType{Params: []module.ValType{module.I32, module.I32, module.I32}}},
		{Module: "ym1", Name: "now_ms", Type: module.FuncType{Results: []module.ValType{module.I64}}},
	}
	tests := []struct{ name, from, fn, typ, want string }{
		{"as offered", "ym1", "log", "i32 i32 i32 ->", ""},
		{"another type", "ym1", "log", "i32 -> i32", `"ym1"."log" is imported as (i32) -> i32; the host's is (i32, i32, i32) -> ()`},
		{"another name", "ym1", "logs", "->", `"ym1"."logs" is not offered; "ym1" has log, now_ms`},
		{"another module", "env", "log", "->", `"env"."log" is not offered, nor is anything of "env"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := wattest.New()
			m.Import(tt.from, tt.fn, tt.typ)
			_, err := module.Decode(m.Bytes(), module.Options{Imports: offered})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (!errors.Is(err, module.ErrImport) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestModuleShowsItsParts(t *testing.T) {
	m := wattest.New()
	m.Memory(2, 9)
	m.Table("funcref", 3, 3)
	g := m.Global("mut f64", "f64.const 1")
	f := m.Func("i32 v128 -> i64", "i32 f32", "local.get 0 memory.grow i64.extend_i32_u")
	m.Export("f", module.KindFunc, f)
	m.Export("g", module.KindGlobal, g)
	m.Before(255, wattest.Custom("yardmaster.manifest", "{}")...)
	got, err := module.Decode(m.Bytes(), module.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if *got.Memory != (module.Memory{Min: 2, Max: 9}) || !got.Grows {
		t.Errorf("memory %+v, grows %v", *got.Memory, got.Grows)
	}
	if e, ok := got.Export("f"); !ok || got.FuncType(e.Index).String() != "(i32, v128) -> i64" {
		t.Errorf("f is %v %v", e, ok)
	}
	if _, ok := got.Export("h"); ok {
		t.Error("there is no export h")
	}
	if fn := got.Funcs[0]; fn.Locals != 4 || fn.Slots != 10 {
		t.Errorf("f has %d locals and %d slots; want 4 and, with one operand and all counted as vectors, 10", fn.Locals, fn.Slots)
	}
	if len(got.Custom) != 1 || got.Custom[0].Name != "yardmaster.manifest" || string(got.Custom[0].Data) != "{}" {
		t.Errorf("custom sections: %v", got.Custom)
	}
}

func TestLimitsReportEveryProblem(t *testing.T) {
	err := module.Limits{Size: -1, Body: 1 << 30}.Validate()
	if err == nil || !strings.Contains(err.Error(), "Size") || !strings.Contains(err.Error(), "Body") {
		t.Errorf("got %v", err)
	}
	if _, err := module.Decode(wattest.Header(), module.Options{Limits: module.Limits{Body: -1}}); err == nil {
		t.Error("a negative limit was taken")
	}
	m := wattest.New()
	m.Func("", "", "nop nop nop nop")
	if _, err := module.Decode(m.Bytes(), module.Options{Limits: module.Limits{Body: 3}}); !errors.Is(err, module.ErrLimit) {
		t.Errorf("got %v", err)
	}
}

// What is allocated follows the input's size, whatever numbers stand in it.
func TestMemoryFollowsTheInput(t *testing.T) {
	const perByte, fixed = 80, 128 << 10
	for _, h := range wattest.Corpus() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := module.Decode(h.Wasm, module.Options{})
		runtime.ReadMemStats(&after)
		if (err == nil) != (h.Refused == nil) {
			t.Errorf("%s: %v", h.Name, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > uint64(perByte*len(h.Wasm)+fixed) {
			t.Errorf("%s: %d bytes allocated for %d", h.Name, got, len(h.Wasm))
		}
	}
}

// A function without locals and instructions takes three bytes; a module of nothing
// else is valid.
func TestEmptyFunctions(t *testing.T) {
	m := wattest.New()
	m.Func("", "", "")
	m.Func("", "", "")
	if _, err := module.Decode(m.Bytes(), module.Options{}); err != nil {
		t.Error(err)
	}
}
