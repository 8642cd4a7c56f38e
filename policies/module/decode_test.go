package module_test

import (
	"errors"
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
