package policy

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/policies/abi/abitest"
)

var update = flag.Bool("update", false, "write scorer.wasm anew")

// build makes the scorer: kv-cost, four candidates a turn.
//
//	cost = 8·max(0, (queued + n − hit)/b) + active + (n − hit)/b
//
// Locals: 0 the number of rows, then their bytes; 1 the offset; 2 n, 3 1/b and 4 8 in
// all lanes; 5 (n − hit)/b.
func build() []byte {
	four := func(at string) string {
		return strings.ReplaceAll(`local.get 1
			local.get 2 local.get 1 v128.load @1+ f32x4.sub local.get 3 f32x4.mul local.tee 5
			local.get 1 v128.load @0+ local.get 3 f32x4.mul f32x4.add
			f32.const 0 f32x4.splat f32x4.pmax local.get 4 f32x4.mul
			local.get 1 v128.load @2+ f32x4.add local.get 5 f32x4.add
			v128.store @out+ `, "+ ", at+" ")
	}
	code := `
		f32.const 1 i32.const @request i32.load 48 i32.const 16 i32.const @request i32.load 48 select f32.convert_i32_u f32.div f32x4.splat local.set 3
		i32.const @request i32.load 40 f32.convert_i32_u f32x4.splat local.set 2
		f32.const 8 f32x4.splat local.set 4
		local.get 0 i32.const 2 i32.shl local.set 0
		block local.get 0 i32.eqz br_if 0 loop ` + four("") + ` local.get 1 i32.const 16 i32.add local.tee 1 local.get 0 i32.lt_u br_if 0 end end
		i32.const 0`
	return abitest.Policy{
		Name: "kv-cost", Columns: []string{"queued_tokens", "hit_tokens", "active_blocks"}, Locals: "i32 v128 v128 v128 v128", Code: code, Fuel: 100_000,
	}.Build()
}

func TestScorerIsWhatItSays(t *testing.T) {
	if *update {
		if err := os.WriteFile("scorer.wasm", build(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(scorer, build()) {
		t.Error("scorer.wasm is not what its text says; run the test with -update")
	}
}

func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Options{Counts: []int{1, 16, 100, 4096}, Go: build(), Rounds: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []map[string]float64{r.WasmUS, r.NativeUS, r.UsualUS, r.GoUS} {
		if len(m) != 4 || m["4096"] <= 0 || m["16"] <= 0 {
			t.Errorf("%v", m)
		}
	}
	if r.Allocs != 0 || r.Fuel["4096"] < 4096 || r.Policy != "kv-cost@1" {
		t.Errorf("%+v", r)
	}
}

func TestOtherPoliciesAreNotReported(t *testing.T) {
	p := abitest.Policy{Columns: []string{"queued_tokens"}, Locals: "i32", Code: abitest.Loop("local.get 1 local.get 1 f32.load @0 f32.neg f32.store @out")}
	if _, err := Run(t.Context(), Options{Module: p.Build(), Rounds: 1}); !errors.Is(err, ErrOther) {
		t.Errorf("got %v", err)
	}
	trap := abitest.Policy{Code: "unreachable"}
	if _, err := Run(t.Context(), Options{Module: trap.Build(), Rounds: 1}); err == nil {
		t.Error("a policy that traps was measured")
	}
}
