package assemble

import (
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
)

// Who mistypes a pool is told which there are.
func TestInsteadOfAPool(t *testing.T) {
	of := func(model string) scale.Key { return scale.Key{Model: model, Role: fleet.RoleDecode} }
	many := make([]scale.Key, 0, 10)
	for _, c := range "jihgfedcba" {
		many = append(many, of(string(c)))
	}
	for _, tt := range []struct {
		key   scale.Key
		known []scale.Key
		want  string
	}{
		{of("scriptde"), []scale.Key{of("scripted"), of("llama"), of("llama")}, "did you mean scripted/decode? there are llama/decode, scripted/decode"},
		{of("quite-another"), []scale.Key{of("llama")}, "there are llama/decode"},
		{of("m"), nil, "there are none yet"},
		{of("quite-another"), many, "there are a/decode, b/decode, c/decode, d/decode, e/decode, f/decode, g/decode, h/decode and 2 more"},
	} {
		if got := instead(tt.key, tt.known); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.key, got, tt.want)
		}
	}
}
