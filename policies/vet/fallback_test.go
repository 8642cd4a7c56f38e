package vet_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// A fallback that is no policy of the binary, of the policy's own kind, is refused at
// the upload: bound, such a policy would never get ready.
func TestFallbacksThatDoNotExist(t *testing.T) {
	for _, s := range []struct {
		kind           abi.Kind
		fallback, says string
	}{
		{abi.Router, "", ""},
		{abi.Router, "sticky", ""},
		{abi.Router, "stickyy", "there are"},
		{abi.Router, "vtc", "there are"},
		{abi.Admission, "vtc", ""},
		{abi.Admission, "sticky", "vtc"},
		{abi.Autoscaler, "sla", ""},
		{abi.Observer, "sticky", "leave fallback out"},
	} {
		err := vet.CheckFallback(&abi.Manifest{Kind: s.kind, Fallback: s.fallback})
		if (err != nil) != (s.says != "") || err != nil && (!errors.Is(err, abi.ErrManifest) || !strings.Contains(err.Error(), s.says)) {
			t.Errorf("%s with fallback %q: %v", s.kind, s.fallback, err)
		}
	}
	r, err := pipeline(t, nil).Check(t.Context(), abitest.Policy{Fallback: "nobody"}.Build(), nil)
	if last := r.Steps[len(r.Steps)-1]; !errors.Is(err, vet.ErrRefused) || last.Name != vet.StepContract || !strings.Contains(last.Text, "sticky") {
		t.Errorf("%v at %+v", err, last)
	}
}

// A node that is told of such a policy by others does not get it ready, and says why.
func TestFallbacksThatCameBefore(t *testing.T) {
	p := pipeline(t, nil)
	if err := p.Warm(t.Context(), abitest.Policy{Fallback: "nobody"}.Build()); !errors.Is(err, vet.ErrRefused) || !strings.Contains(err.Error(), "sticky") {
		t.Errorf("%v", err)
	}
}

// Where others judge signatures the pipeline does not, and says so until they have.
func TestSignaturesAreJudgedElsewhere(t *testing.T) {
	p := pipeline(t, func(c *vet.Config) { c.Elsewhere, c.AllowUnsigned, c.Trusted = true, false, nil })
	r, err := p.Check(t.Context(), product().Build(), []byte("whatever"))
	if err != nil || r.Signer != "" {
		t.Fatalf("%v, signer %q", err, r.Signer)
	}
	if r.Judged("k1", nil); r.Signer != "k1" || !r.Accepted || r.Err() != nil {
		t.Errorf("%+v", r)
	}
	if r.Judged("", vet.ErrSignature); r.Accepted || r.Err() == nil || !strings.Contains(r.Err().Error(), "at step signature") {
		t.Errorf("%+v", r)
	}
}
