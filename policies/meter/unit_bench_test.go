package meter_test

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/yardmaster/yardmaster/policies/meter"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// slow are pieces of code that take long for what they are; locals are 0 i32 loop,
// 1 i32, 2 i64, 3 f32, 4 f64, 5 v128, 6 i32 that walks through the memory.
var slow = map[string]string{
	"add":            "local.get 1 local.get 1 i32.add local.set 1",
	"chase":          "local.get 6 i32.load 0 local.set 6",
	"div":            "i32.const 0x7fffffff local.get 1 i32.const 1 i32.or i32.div_s local.set 1",
	"div64":          "i64.const 0x7fffffffffffffff local.get 2 i64.const 3 i64.or i64.div_u local.set 2",
	"rem64":          "i64.const 0x7fffffffffffffff local.get 2 i64.const 3 i64.or i64.rem_s local.set 2",
	"sqrt":           "local.get 4 f64.sqrt local.set 4",
	"fdiv":           "local.get 4 f64.const 1.1 f64.div local.set 4",
	"nearest":        "local.get 4 f64.nearest local.set 4",
	"trunc":          "local.get 4 i64.trunc_sat_f64_u f64.convert_i64_u local.set 4",
	"trunc trapping": "local.get 4 i64.trunc_f64_u f64.convert_i64_u local.set 4",
	"min":            "local.get 4 f64.const 1.5 f64.min local.set 4",
	"popcnt":         "local.get 5 i8x16.popcnt local.set 5",
	"shl":            "local.get 5 local.get 1 i8x16.shl local.set 5",
	"shr64":          "local.get 5 local.get 1 i64x2.shr_s local.set 5",
	"mul64":          "local.get 5 local.get 5 i64x2.mul local.set 5",
	"vdiv":           "local.get 5 local.get 5 f64x2.div local.set 5",
	"vsqrt":          "local.get 5 f64x2.sqrt local.set 5",
	"vtrunc":         "local.get 5 i32x4.trunc_sat_f32x4_u local.set 5",
	"vtrunc64":       "local.get 5 i32x4.trunc_sat_f64x2_u_zero local.set 5",
	"vnearest":       "local.get 5 f64x2.nearest local.set 5",
	"shuffle":        "local.get 5 local.get 5 i8x16.shuffle 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 local.set 5",
	"swizzle":        "local.get 5 local.get 5 i8x16.swizzle local.set 5",
	"load lane":      "i32.const 0 local.get 5 v128.load8_lane 8 3 local.set 5",
	"fill 0":         "i32.const 0 i32.const 0 i32.const 0 memory.fill",
	"fill 7":         "i32.const 0 i32.const 0 i32.const 7 memory.fill",
	"fill 64K":       "i32.const 0 i32.const 0 i32.const 65536 memory.fill",
	"fill 16M":       "i32.const 0 i32.const 0 i32.const 0xf00000 memory.fill",
	"copy 0":         "i32.const 0 i32.const 0 i32.const 0 memory.copy",
	"copy 7":         "i32.const 0 i32.const 8 i32.const 7 memory.copy",
	"copy 64K":       "i32.const 0 i32.const 65536 i32.const 65536 memory.copy",
	"copy 7M":        "i32.const 0 i32.const 0x700000 i32.const 0x700000 memory.copy",
	"init 0":         "i32.const 0 i32.const 0 i32.const 0 memory.init 0",
	"init 7":         "i32.const 0 i32.const 0 i32.const 7 memory.init 0",
	"grow 0":         "i32.const 0 memory.grow drop",
	"grow fails":     "i32.const -1 memory.grow drop",
	"table.init":     "i32.const 0 i32.const 0 i32.const 1 table.init 0 0",
	"table.get":      "i32.const 0 table.get 0 drop",
	"table.set":      "i32.const 0 ref.null funcref table.set 0",
	"ref.is_null":    "i32.const 0 table.get 0 ref.is_null drop",
	"call":           "call 0",
	"call wide":      "call 1",
	"indirect":       "i32.const 1 call_indirect 0 0",
	"br_table":       "block block block local.get 1 i32.const 3 i32.and br_table 3 0 1 2 0 end end end local.get 1 i32.const 1 i32.add local.set 1",
	"empty loop":     "loop end",
	"global":         "global.get 0 i64.const 1 i64.add global.set 0",
	"data.drop":      "data.drop 1",
	"elem.drop":      "elem.drop 1",
	"store":          "local.get 6 i32.load 0 local.tee 6 i64.const 1 i64.store 8",
	"clz":            "local.get 2 i64.clz local.set 2",
	"rotl":           "local.get 2 local.get 2 i64.rotl local.set 2",
	"mul":            "local.get 2 local.get 2 i64.mul local.set 2",
	"select":         "local.get 5 local.get 5 local.get 1 select local.set 5",
}

// BenchmarkUnit measures how long a unit of fuel can be: ns/unit of each piece. The
// costs are set so that none is far above the rest.
func BenchmarkUnit(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(slow)) {
		b.Run(name, func(b *testing.B) {
			in := instance(b, wazero.NewRuntimeConfigCompiler(), unitMetered(b, slow[name], 0))
			in.ExportedGlobal(meter.Export).(api.MutableGlobal).Set(1 << 40)
			if _, err := in.ExportedFunction("prepare").Call(b.Context()); err != nil {
				b.Fatal(err)
			}
			left := in.ExportedGlobal(meter.Export).(api.MutableGlobal)
			f := in.ExportedFunction("f")
			const budget = 2_000_000
			used := int64(0)
			for b.Loop() {
				left.Set(budget)
				if _, err := f.Call(b.Context()); err != nil && int64(left.Get()) >= 0 {
					b.Fatal(err)
				}
				used += budget - int64(left.Get())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(used), "ns/unit")
		})
	}
}

func unitMetered(b *testing.B, code string, slice int64) []byte {
	b.Helper()
	m, err := module.Decode(unit(code), module.Options{Limits: module.Limits{Pages: 300}})
	if err != nil {
		b.Fatal(err)
	}
	out, err := meter.Rewrite(m, meter.Options{Pages: 300, Slice: slice})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// unit is a module whose f repeats a piece of code until its fuel ends.
func unit(code string) []byte {
	m := wattest.New()
	m.Memory(257, 257)
	m.Table("funcref", 4, 4)
	m.Global("mut i64", "i64.const 0")
	m.Func("->", "", "")
	m.Func("->", strings.Repeat("v128 ", 200), "")
	m.Elem(0, 0, 0)
	m.ElemRaw(1, 0, 1, 0)
	m.Data(-1, "0123456789abcdef")
	m.Data(-1, "x")
	m.DataCount()
	locals := "i32 i32 i64 f32 f64 v128 i32"
	m.Export("f", module.KindFunc, m.Func("->", locals, "f64.const 1e9 local.set 4 i64.const 12345 local.set 2 loop "+strings.Repeat(code+" ", 50)+" br 0 end"))
	// A chain through all lines of 16 MiB in an order that no prefetcher follows: a
	// linear congruence over the line's number.
	m.Export("prepare", module.KindFunc, m.Func("->", locals, `loop
		local.get 1 i32.const 64 i32.mul
		local.get 1 i32.const 1664525 i32.mul i32.const 1013904223 i32.add i32.const 0x3ffff i32.and i32.const 64 i32.mul
		i32.store 0
		local.get 1 i32.const 1 i32.add local.tee 1 i32.const 0x40000 i32.lt_u br_if 0 end`))
	return m.Bytes()
}

// BenchmarkCollection measures how long a garbage collection takes while a guest
// follows a chain through 16 MiB with the largest budget there is, without pauses
// and with them.
func BenchmarkCollection(b *testing.B) {
	const budget = 20_000_000
	for name, slice := range map[string]int64{"without pauses": 0, "with pauses": 50_000} {
		b.Run(name, func(b *testing.B) {
			in := instance(b, wazero.NewRuntimeConfigCompiler(), unitMetered(b, slow["chase"], slice))
			left := in.ExportedGlobal(meter.Export).(api.MutableGlobal)
			left.Set(1 << 40)
			if _, err := in.ExportedFunction("prepare").Call(b.Context()); err != nil {
				b.Fatal(err)
			}
			longest := time.Duration(0)
			for b.Loop() {
				left.Set(budget)
				if reserve, ok := in.ExportedGlobal(meter.ExportReserve).(api.MutableGlobal); ok {
					left.Set(uint64(slice))
					reserve.Set(uint64(budget - slice))
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = in.ExportedFunction("f").Call(b.Context()) // ends without fuel
				}()
				for running := true; running; {
					start := time.Now()
					runtime.GC()
					longest = max(longest, time.Since(start))
					select {
					case <-done:
						running = false
					default:
					}
				}
			}
			b.ReportMetric(float64(longest.Microseconds())/1000, "gc-ms")
		})
	}
}
