package fleet_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/fleet"
)

func FuzzCheckNodeID(f *testing.F) {
	rule := regexp.MustCompile(`\A[a-z0-9][a-z0-9.-]{0,62}\z`)
	for _, id := range []string{"", "a", "planner-0", "-a", ".a", "a\n", "A", "a_b", strings.Repeat("a", 63), strings.Repeat("a", 64), "ä"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		err := fleet.CheckNodeID(id)
		if (err == nil) != rule.MatchString(id) || err != nil && !errors.Is(err, fleet.ErrNodeID) {
			t.Errorf("CheckNodeID(%q) = %v", id, err)
		}
	})
}
