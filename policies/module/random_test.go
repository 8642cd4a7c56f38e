package module_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

func chance(seed uint64) wattest.Choice {
	return rand.New(rand.NewPCG(seed, 1)).IntN
}

// interpreter is a wazero that reads and validates, and compiles quickly.
func interpreter(t testing.TB) wazero.Runtime {
	t.Helper()
	r := wazero.NewRuntimeWithConfig(context.Background(), wazero.NewRuntimeConfigInterpreter())
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// lenient are the refusals of ours that wazero 1.12 does not share, by a part of
// their sentence: it reads the number behind 0xFD as one byte, and does not look at
// one of the bits that a number leaves unused.
var lenient = []string{"behind the prefix 0xfd", "a number does not fit into 32 bits"}

// judge compares our verdict on a module with wazero's: what we accept it accepts,
// and what we find invalid it finds invalid, but for the differences listed.
func judge(t testing.TB, r wazero.Runtime, wasm []byte) {
	t.Helper()
	m, ours := module.Decode(wasm, module.Options{})
	if errors.Is(ours, module.ErrLimit) || errors.Is(ours, module.ErrFeature) || errors.Is(ours, module.ErrImport) {
		return // wazero may accept it, and thirty bytes make it allocate 32 GiB of locals
	}
	if ours == nil {
		wasm = stripped(m)
	}
	compiled, theirs := r.CompileModule(context.Background(), wasm)
	if theirs == nil {
		if err := compiled.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	switch {
	case ours == nil && theirs == nil:
		walk(t, m)
	case ours == nil:
		t.Errorf("we accept what wazero refuses: %v\n%x", theirs, wasm)
	case theirs == nil:
		if !slices.ContainsFunc(lenient, func(s string) bool { return strings.Contains(ours.Error(), s) }) {
			t.Errorf("wazero accepts what we refuse: %v\n%x", ours, wasm)
		}
	}
}

// stripped is a module without its custom sections, which wazero parses and the
// meter drops.
func stripped(m *module.Module) []byte {
	out := wattest.Header()
	for _, s := range m.Sections {
		if s.ID != module.SectionCustom {
			out = append(out, m.Bytes[s.Start:s.End]...)
		}
	}
	return out
}

// walk reads all instructions again.
func walk(t testing.TB, m *module.Module) {
	t.Helper()
	for i, f := range m.Funcs {
		at := f.Code
		var in module.Instr
		for s := m.Scan(i); s.Next(&in); at = in.End {
			if in.Pos != at {
				t.Fatalf("function %d: an instruction begins at %d, not at %d", i, in.Pos, at)
			}
		}
		if at != f.End || in.Op != module.OpEnd {
			t.Errorf("function %d ends at %d with %s, not at %d", i, at, in.Op, f.End)
		}
	}
}

// mutate changes some bytes behind the header.
func mutate(c wattest.Choice, wasm []byte) []byte {
	b := slices.Clone(wasm)
	for range 1 + c(2) {
		i := 8 + c(len(b)-8)
		switch c(6) {
		case 0:
			b[i] = byte(c(256))
		case 1:
			b[i] ^= 1 << c(8)
		case 2:
			b[i] = b[8+c(len(b)-8)]
		case 3:
			b[i]++
		case 4:
			b = slices.Delete(b, i, i+1)
		default:
			b = slices.Insert(b, i, byte(c(256)))
		}
	}
	return b
}

func TestRandomModulesAreValid(t *testing.T) {
	r := interpreter(t)
	for seed := range uint64(100) {
		wasm := wattest.Random(chance(seed)).Bytes()
		if _, err := module.Decode(wasm, module.Options{}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		judge(t, r, wasm)
	}
}

func TestVerdictsAreWazeros(t *testing.T) {
	r := interpreter(t)
	for seed := range uint64(80) {
		c := chance(seed)
		wasm := wattest.Random(c).Bytes()
		for range 10 {
			judge(t, r, mutate(c, wasm))
		}
	}
	for _, h := range wattest.Corpus() {
		if len(h.Wasm) < 1<<20 {
			judge(t, r, h.Wasm)
		}
	}
}

func FuzzVerdicts(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(wattest.Random(chance(seed)).Bytes())
	}
	for _, h := range wattest.Corpus() {
		if len(h.Wasm) < 4<<10 {
			f.Add(h.Wasm)
		}
	}
	r := interpreter(f)
	f.Fuzz(func(t *testing.T, wasm []byte) {
		// Of what we refuse wazero may make gigabytes before it finds the fault.
		if _, err := module.Decode(wasm, module.Options{}); err == nil {
			judge(t, r, wasm)
		}
	})
}
