package meter_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/yardmaster/yardmaster/policies/meter"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// metered decodes and rewrites a module.
func metered(t testing.TB, wasm []byte) []byte {
	t.Helper()
	m, err := module.Decode(wasm, module.Options{})
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	out, err := meter.Rewrite(m, meter.Options{Pages: 64})
	if err != nil {
		t.Fatalf("rewrite: %v", err)
	}
	return out
}

// instance runs a module that imports nothing.
func instance(t testing.TB, config wazero.RuntimeConfig, wasm []byte) api.Module {
	t.Helper()
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, config)
	t.Cleanup(func() {
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	compiled, err := r.CompileModule(ctx, wasm)
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	in, err := r.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithStartFunctions())
	if err != nil {
		t.Fatalf("instantiate: %v", err)
	}
	return in
}

// fuel is the global that counts.
func fuel(t testing.TB, in api.Module) api.MutableGlobal {
	t.Helper()
	g, ok := in.ExportedGlobal(meter.Export).(api.MutableGlobal)
	if !ok {
		t.Fatalf("%s is not exported as a mutable global", meter.Export)
	}
	return g
}

func TestFuelStopsWhatDoesNotEnd(t *testing.T) {
	const budget = 100_000
	tests := []struct{ name, locals, code string }{
		{"endless loop", "", "loop br 0 end"},
		{"loop in a loop", "", "loop loop br 0 end br 0 end"},
		{"loop by table", "", "loop i32.const 0 br_table 0 0 end"},
		{"deep recursion", "", "call 0"},
		{"exponential calls", "", "call 1 call 1"},
		{"many fills", "", "loop i32.const 0 i32.const 0 i32.const 65536 memory.fill br 0 end"},
		{"many copies", "", "loop i32.const 0 i32.const 0 i32.const 65536 memory.copy br 0 end"},
		{"growing", "", "loop i32.const 1 memory.grow drop br 0 end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := wattest.New()
			m.Memory(1, -1)
			m.Export("f", module.KindFunc, m.Func("", tt.locals, tt.code))
			m.Func("", "i32", "call 0")
			in := instance(t, wazero.NewRuntimeConfigCompiler(), metered(t, m.Bytes()))
			left := fuel(t, in)
			left.Set(budget)
			if _, err := in.ExportedFunction("f").Call(t.Context()); err == nil {
				t.Fatal("it ended")
			}
			if got := int64(left.Get()); got >= 0 || got < -budget {
				t.Errorf("fuel left is %d", got)
			}
		})
	}
}

func TestTheSameModuleGivesTheSameBytes(t *testing.T) {
	m := wattest.New()
	m.Memory(1, 2)
	m.Export("f", module.KindFunc, m.Func("i32 -> i32", "i64", "loop local.get 0 br_if 0 end local.get 0"))
	a, b := metered(t, m.Bytes()), metered(t, m.Bytes())
	if !bytes.Equal(a, b) {
		t.Error("two rewrites differ")
	}
}

// The hostile modules that are valid end in time once they are metered, with as
// much memory as was granted.
func TestHostileModulesAreContained(t *testing.T) {
	for _, h := range wattest.Corpus() {
		if h.Refused != nil {
			continue
		}
		t.Run(h.Name, func(t *testing.T) {
			in := instance(t, wazero.NewRuntimeConfigCompiler(), metered(t, h.Wasm))
			fuel(t, in).Set(1_000_000)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := in.ExportedFunction("f").Call(t.Context()); err == nil {
				t.Error("it did no harm")
			}
			runtime.ReadMemStats(&after)
			if m := in.ExportedMemory("memory"); m != nil && m.Size() > 64*module.PageSize {
				t.Errorf("%d bytes of memory", m.Size())
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 96<<20 {
				t.Errorf("%d MiB were allocated", got>>20)
			} else {
				t.Logf("%d KiB allocated", got>>10)
			}
		})
	}
}

func TestLoopsBeyondBoundsAreRefused(t *testing.T) {
	m := wattest.New()
	m.Func("", "", strings.Repeat("loop end ", 20_000))
	decoded, err := module.Decode(m.Bytes(), module.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := meter.Rewrite(decoded, meter.Options{}); !errors.Is(err, meter.ErrGrowth) || !strings.Contains(err.Error(), "split it") {
		t.Errorf("got %v", err)
	}
}

func TestMemoryIsGranted(t *testing.T) {
	tests := []struct {
		low, high, granted int
		grows              bool
		want               int // pages at last, or negative if it is refused
	}{
		{1, -1, 4, true, 4},
		{1, 2, 4, true, 2},
		{3, 9, 4, true, 4},
		{4, 4, 4, true, 4},
		{5, 5, 4, true, -1},
		{2, 9, 4, false, 2},
	}
	for _, tt := range tests {
		m := wattest.New()
		m.Memory(tt.low, tt.high)
		if !tt.grows {
			m.Export("grow", module.KindFunc, m.Func("-> i32", "", "memory.size"))
		} else {
			m.Export("grow", module.KindFunc, m.Func("-> i32", "", "loop i32.const 1 memory.grow i32.const -1 i32.ne br_if 0 end memory.size"))
		}
		decoded, err := module.Decode(m.Bytes(), module.Options{})
		if err != nil {
			t.Fatal(err)
		}
		out, err := meter.Rewrite(decoded, meter.Options{Pages: uint32(tt.granted)})
		if tt.want < 0 {
			if !errors.Is(err, meter.ErrGrowth) {
				t.Errorf("%+v: %v", tt, err)
			}
			continue
		}
		in := instance(t, wazero.NewRuntimeConfigInterpreter(), out)
		fuel(t, in).Set(1 << 30)
		got, err := in.ExportedFunction("grow").Call(t.Context())
		if err != nil || int(got[0]) != tt.want {
			t.Errorf("%+v: %v pages, %v", tt, got, err)
		}
		if high, bounded := in.Memory().Definition().Max(); !bounded || int(high) != tt.want {
			t.Errorf("%+v: the maximum is %d pages", tt, high)
		}
	}
}
