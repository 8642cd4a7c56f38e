package assemble

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
)

// Whatever a command may get has a name at the admin API: a race that was lost, or a
// tenant without a quota, is no fault of the server's.
func TestEveryRefusalIsTold(t *testing.T) {
	named := []error{
		admin.ErrConflict, admin.ErrRefused, admin.ErrUnknownTenant, admin.ErrInvalid, rollout.ErrUnknown, rollout.ErrExists,
		rollout.ErrBound, rollout.ErrPinned, rollout.ErrQuarantined, rollout.ErrNothing,
	}
	for code := planner.Code(0); ; code++ {
		if code.String() == "unknown" {
			break
		}
		err := tell(planner.Result{Code: code}.Err())
		if err == nil && (code == planner.OK || code == planner.Ignored) {
			continue
		}
		known := false
		for _, name := range named {
			known = known || errors.Is(err, name)
		}
		if !known {
			t.Errorf("%v is told as %v", code, err)
		}
	}
	if err := tell(planner.Result{Code: planner.Conflict}.Err()); !errors.Is(err, admin.ErrConflict) || !strings.Contains(err.Error(), "changed by another") {
		t.Errorf("a lost race: %v", err)
	}
	for _, passing := range []error{raftstore.ErrBusy, raftstore.ErrTooFewHold, raftstore.ErrNoBlob} {
		if err := tell(fmt.Errorf("asked: %w", passing)); !errors.Is(err, admin.ErrBusy) {
			t.Errorf("%v", err)
		}
	}
}
