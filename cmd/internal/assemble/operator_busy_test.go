package assemble

import (
	"errors"
	"testing"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/vet"
	"github.com/yardmaster/yardmaster/server/admin"
)

// A trial that could not be carried out says nothing about the upload.
func TestPushThatCannotBeTried(t *testing.T) {
	checks, err := vet.New(vet.Config{AllowUnsigned: true, Command: []string{"/nonexistent"}})
	if err != nil {
		t.Fatal(err)
	}
	o := policyOperator{checks: checks, clock: clock.Real{}}
	if _, _, err := o.Push(t.Context(), abitest.Policy{}.Build(), nil); !errors.Is(err, admin.ErrBusy) || !errors.Is(err, vet.ErrChild) {
		t.Errorf("%v", err)
	}
}
