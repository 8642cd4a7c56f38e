package host_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

// BenchmarkGoPolicy is the decision of BenchmarkDecision by a policy in Go.
func BenchmarkGoPolicy(b *testing.B) {
	dir := b.TempDir()
	source, err := os.ReadFile("testdata/gopolicy/main.go.txt")
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
	wasm = slices.Concat(wasm, wattest.Custom(abi.Section, `{"abi":"1.0","kind":"router","name":"go","version":"1",
		"columns":[{"name":"queued_tokens"},{"name":"prefill_seconds_per_token"}]}`))
	p := load(b, newHost(b, &services{now: 1}), wasm, 2)
	b.Run("4096", func(b *testing.B) {
		b.ReportAllocs()
		used := int64(0)
		for b.Loop() {
			in := p.Take()
			in.F32(0)[3], in.F32(1)[3] = 7, 2
			cost, err := in.Score(rows)
			if err != nil {
				b.Fatal(err)
			}
			if cost[3] != 14 {
				b.Fatalf("score %v", cost[3])
			}
			used = in.Used()
			p.Put(in)
		}
		b.ReportMetric(float64(used), "fuel")
	})
}
