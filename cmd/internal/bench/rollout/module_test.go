package rollout

import (
	"bytes"
	"errors"
	"testing"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/policy"
	"github.com/yardmaster/yardmaster/policies/host"
)

// A renamed module is a policy still, of its own code.
func TestRenamed(t *testing.T) {
	var before []byte
	for _, number := range []int{1, 2, 40_000} {
		wasm, err := renamed(policy.Scorer(), "other", number, 4096)
		if err != nil || len(wasm) < 4000 || len(wasm) > 4096 {
			t.Fatalf("%d bytes, %v", len(wasm), err)
		}
		m, err := host.Prepare(wasm)
		if err != nil || m.Manifest.Name != "other" || len(m.Manifest.Columns) != 3 {
			t.Fatalf("%+v, %v", m, err)
		}
		if bytes.Equal(m.Wasm, before) {
			t.Error("two versions have the same code")
		}
		before = m.Wasm
	}
	for _, bad := range [][]byte{nil, policy.Scorer()[:8], policy.Scorer()[:40], []byte("\x00asm\x01\x00\x00\x00\x00\xff")} {
		if _, err := renamed(bad, "x", 1, 0); !errors.Is(err, ErrModule) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
