package errs

import (
	"errors"
	"fmt"
	"testing"
)

func TestKindOf(t *testing.T) {
	busy := &Error{Kind: Saturated, Client: "busy", Cause: errors.New("7 of 7 vetoed")}
	tests := []struct {
		name string
		err  error
		want Kind
	}{
		{"plain", errors.New("x"), Internal},
		{"direct", busy, Saturated},
		{"wrapped", fmt.Errorf("route: %w", busy), Saturated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := KindOf(tt.err); got != tt.want {
				t.Errorf("KindOf = %v, want %v", got, tt.want)
			}
			if got := As(tt.err).Kind; got != tt.want {
				t.Errorf("As.Kind = %v, want %v", got, tt.want)
			}
		})
	}
	if got := As(errors.New("dial 10.0.0.7: refused")).Client; got != "internal error" {
		t.Errorf("an unknown cause reached the client: %q", got)
	}
}

func TestEveryKindHasAName(t *testing.T) {
	if len(kindNames) != int(Canceled)+1 {
		t.Fatalf("%d names for %d kinds", len(kindNames), Canceled+1)
	}
}
