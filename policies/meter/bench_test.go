package meter_test

import (
	"bytes"
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/meter"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// goGuest builds a policy of about 2 MB with the Go toolchain that runs the test.
func goGuest(b *testing.B) []byte {
	b.Helper()
	dir := b.TempDir()
	source, err := os.ReadFile("testdata/goguest/main.go.txt")
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{"main.go": string(source), "go.mod": "module guest\n\ngo 1.26\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	cmd := exec.CommandContext(b.Context(), "go", "build", "-buildmode=c-shared", "-o", "guest.wasm", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Skipf("no Go toolchain for wasip1: %v: %s", err, out)
	}
	wasm, err := os.ReadFile(filepath.Join(dir, "guest.wasm"))
	if err != nil {
		b.Fatal(err)
	}
	return wasm
}

func BenchmarkGoGuest(b *testing.B) {
	wasm := goGuest(b)
	options := module.Options{Imports: abi.Imports()}
	m, err := module.Decode(wasm, options)
	if err != nil {
		b.Fatal(err)
	}
	out, err := meter.Rewrite(m, meter.Options{Pages: 256})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(wasm)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := module.Decode(wasm, options); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("rewrite", func(b *testing.B) {
		b.SetBytes(int64(len(wasm)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := meter.Rewrite(m, meter.Options{Pages: 256}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(growth(b, m, out), "%code")
	})
	plain, with := guest(b, wasm), guest(b, out)
	for name, in := range map[string]api.Module{"score/plain": plain, "score/metered": with} {
		b.Run(name, func(b *testing.B) { score(b, in, 4096) })
	}
}

// growth is how much larger the code section has become, in percent.
func growth(t testing.TB, m *module.Module, metered []byte) float64 {
	t.Helper()
	size := func(m *module.Module) float64 {
		i := slices.IndexFunc(m.Sections, func(s module.Section) bool { return s.ID == module.SectionCode })
		return float64(m.Sections[i].End - m.Sections[i].Body)
	}
	// The reserved export must go before the decoder takes the result.
	with, err := module.Decode(bytes.ReplaceAll(metered, []byte(meter.Export), []byte("a_ym_fuel")), module.Options{Imports: abi.Imports(), Limits: module.Limits{Body: 128 << 10}})
	if err != nil {
		t.Fatal(err)
	}
	return 100 * (size(with)/size(m) - 1)
}

// guest is an instance of a policy made by Go.
func guest(t testing.TB, wasm []byte) api.Module {
	t.Helper()
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithMemoryLimitPages(256))
	t.Cleanup(func() {
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	compiled, err := r.CompileModule(ctx, wasm)
	if err != nil {
		t.Fatal(err)
	}
	in, err := r.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithStartFunctions())
	if err != nil {
		t.Fatal(err)
	}
	refuel(in)
	if f := in.ExportedFunction("_initialize"); f != nil {
		if _, err := f.Call(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return in
}

// refuel gives a module enough for anything, if it is metered.
func refuel(in api.Module) {
	if g, ok := in.ExportedGlobal(meter.Export).(api.MutableGlobal); ok {
		g.Set(1 << 40)
	}
}

// score calls ym_score over and over.
func score(b *testing.B, in api.Module, n uint64) {
	b.Helper()
	ctx := context.Background()
	f := in.ExportedFunction("ym_score")
	left, metered := in.ExportedGlobal(meter.Export).(api.MutableGlobal)
	const budget = 1 << 40
	stack := []uint64{n}
	b.ReportAllocs()
	for b.Loop() {
		if metered {
			left.Set(budget)
		}
		stack[0] = n
		if err := f.CallWithStack(ctx, stack); err != nil {
			b.Fatal(err)
		}
	}
	if metered {
		b.ReportMetric(float64(budget-left.Get()), "fuel")
	}
}

// scorers are loops over columns of n values, cheaper and dearer ones.
var scorers = map[string]string{
	// Four at a time: out = a × b + c.
	"simd": `loop
		local.get 1
		local.get 1 v128.load 65536 local.get 1 v128.load 131072 f32x4.mul local.get 1 v128.load 196608 f32x4.add
		v128.store 262144
		local.get 1 i32.const 16 i32.add local.tee 1 local.get 0 i32.const 2 i32.shl i32.lt_u br_if 0 end i32.const 0`,
	// One at a time, with a division.
	"scalar": `loop
		local.get 1
		local.get 1 f32.load 65536 local.get 1 f32.load 131072 f32.div local.get 1 f32.load 196608 f32.add
		f32.store 262144
		local.get 1 i32.const 4 i32.add local.tee 1 local.get 0 i32.const 2 i32.shl i32.lt_u br_if 0 end i32.const 0`,
	// Nothing but the loop: the worst that metering can do.
	"empty": `loop local.get 1 i32.const 1 i32.add local.tee 1 local.get 0 i32.lt_u br_if 0 end i32.const 0`,
}

func BenchmarkScorer(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(scorers)) {
		m := wattest.New()
		m.Memory(8, 8)
		m.Export("memory", module.KindMemory, 0)
		m.Export("ym_score", module.KindFunc, m.Func("i32 -> i32", "i32", scorers[name]))
		wasm := m.Bytes()
		b.Run(name+"/plain", func(b *testing.B) { score(b, guest(b, wasm), 4096) })
		b.Run(name+"/metered", func(b *testing.B) { score(b, guest(b, metered(b, wasm)), 4096) })
	}
}
