package meter_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/yardmaster/yardmaster/policies/meter"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// trace is all that a call of "f" leaves behind.
type trace struct {
	Results []uint64
	Trap    string
	Memory  [sha256.Size]byte
	Globals []uint64
	Left    int64 // fuel
}

func (r trace) exhausted() bool { return r.Left < 0 }

// deep says that the engine's own limit ended the call; each has another one.
func (r trace) deep() bool { return strings.Contains(r.Trap, "stack overflow") }

// engine is a runtime that can be asked again and again.
type engine struct{ r wazero.Runtime }

func newEngine(t testing.TB, config wazero.RuntimeConfig) engine {
	t.Helper()
	r := wazero.NewRuntimeWithConfig(context.Background(), config)
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return engine{r}
}

// run calls "f" in a new instance with some fuel, if the module takes it; it is all
// in the reserve, if there is one.
func (e engine) run(t testing.TB, wasm []byte, budget int64) trace {
	t.Helper()
	ctx := context.Background()
	compiled, err := e.r.CompileModule(ctx, wasm)
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	defer func() { _ = compiled.Close(ctx) }()
	in, err := e.r.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return trace{Trap: cause(err), Left: budget} // nothing ran
	}
	defer func() { _ = in.Close(ctx) }()
	left, metered := in.ExportedGlobal(meter.Export).(api.MutableGlobal)
	if metered {
		left.Set(uint64(budget))
	}
	reserve, pauses := in.ExportedGlobal(meter.ExportReserve).(api.MutableGlobal)
	if pauses {
		left.Set(0)
		reserve.Set(uint64(budget))
	}
	var out trace
	if f := in.ExportedFunction("f"); f != nil {
		args := make([]uint64, len(f.Definition().ParamTypes()))
		for i := range args {
			args[i] = uint64(7 - 3*i)
		}
		out.Results, err = f.Call(ctx, args...)
		out.Trap = cause(err)
	}
	if m := in.ExportedMemory("memory"); m != nil {
		b, _ := m.Read(0, m.Size())
		out.Memory = sha256.Sum256(b)
	}
	for i := range 6 {
		if g := in.ExportedGlobal(fmt.Sprint("g", i)); g != nil {
			out.Globals = append(out.Globals, g.Get()) // half of a v128
		}
	}
	if metered {
		out.Left = int64(left.Get())
	}
	if pauses {
		out.Left += int64(reserve.Get())
	}
	return out
}

// cause is the first line of a trap; the others name functions.
func cause(err error) string {
	if err == nil {
		return ""
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// engines are the two ways in which wazero runs a module.
type engines struct{ interpreter, compiler engine }

func bothEngines(t testing.TB) engines {
	return engines{newEngine(t, wazero.NewRuntimeConfigInterpreter()), newEngine(t, wazero.NewRuntimeConfigCompiler())}
}

// compare runs a valid module metered and not, in both engines, and says whether it
// finished. Metering changes nothing while there is fuel; with as much as is used there
// is enough, and with one unit less there is not.
func (e engines) compare(t testing.TB, wasm []byte) (finished bool) {
	t.Helper()
	const budget = 30_000
	m, err := module.Decode(wasm, module.Options{})
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	rewritten, err := meter.Rewrite(m, meter.Options{Pages: 64})
	if err != nil {
		t.Fatalf("rewrite: %v", err)
	}
	pausing, err := meter.Rewrite(m, meter.Options{Pages: 64, Slice: 100})
	if err != nil {
		t.Fatalf("rewrite: %v", err)
	}
	if _, err := module.Decode(rewritten, module.Options{}); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("a metered module could be uploaded: %v", err)
	}
	a, b := e.interpreter.run(t, rewritten, budget), e.compiler.run(t, rewritten, budget)
	if a.deep() || b.deep() {
		return false
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("the interpreter and the compiler differ (-interpreter +compiler):\n%s\n%x", diff, rewritten)
	}
	if a.exhausted() {
		return false
	}
	if diff := cmp.Diff(a, e.compiler.run(t, pausing, budget)); diff != "" {
		t.Errorf("pauses change what is computed (-without +with):\n%s\n%x", diff, wasm)
	}
	used := budget - a.Left
	for name, engine := range map[string]engine{"interpreter": e.interpreter, "compiler": e.compiler} {
		plain := engine.run(t, wasm, 0)
		plain.Left = a.Left
		if diff := cmp.Diff(plain, a); diff != "" {
			t.Errorf("%s: metering changes what is computed (-plain +metered):\n%s\n%x", name, diff, wasm)
		}
	}
	if used > 0 {
		if enough := e.compiler.run(t, rewritten, used); enough.Left != 0 {
			t.Errorf("with the %d units that it uses, %d are left", used, enough.Left)
		}
		if short := e.compiler.run(t, rewritten, used-1); !short.exhausted() {
			t.Errorf("with %d units of %d there are %d left", used-1, used, short.Left)
		}
	}
	return true
}

func TestMeteringChangesNothing(t *testing.T) {
	e := bothEngines(t)
	finished := 0
	const runs = 70
	for seed := range uint64(runs) {
		wasm := wattest.Random(rand.New(rand.NewPCG(seed, 2)).IntN).Bytes()
		ok := e.compare(t, wasm)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if ok {
			finished++
		}
	}
	if finished < runs/2 {
		t.Errorf("only %d of %d modules finished: the test tests little", finished, runs)
	}
}

func FuzzMetering(f *testing.F) {
	for seed := range byte(16) {
		b := make([]byte, 256)
		for i := range b {
			b[i] = byte(i*i)*seed + byte(i)*7
		}
		f.Add(b)
	}
	e := bothEngines(f)
	f.Fuzz(func(t *testing.T, b []byte) { e.compare(t, wattest.Random(wattest.Choices(b)).Bytes()) })
}

// Bytes that package module accepts are the same instructions to us and to wazero,
// or metering would break them.
func FuzzMeteringBytes(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(wattest.Random(rand.New(rand.NewPCG(seed, 3)).IntN).Bytes())
	}
	e := bothEngines(f)
	f.Fuzz(func(t *testing.T, wasm []byte) {
		if m, err := module.Decode(wasm, module.Options{Limits: module.Limits{Pages: 16}}); err == nil && len(m.Funcs) > 0 {
			e.compare(t, wasm)
		}
	})
}
