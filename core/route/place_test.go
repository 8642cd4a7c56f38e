package route

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// keeper keeps the columns that it was shown, of those that it asks for.
type keeper struct {
	needs Needs
	seen  Columns
}

func (*keeper) Name() string   { return "keeper" }
func (k *keeper) Needs() Needs { return k.needs }
func (k *keeper) Score(_ *Query, c *Columns, cost []float64) {
	k.seen = *c
	copy(cost, c.Requests)
}

func TestRoleZoneAndAge(t *testing.T) {
	zone := func(name string) []fleet.Label { return []fleet.Label{{Key: LabelZone, Value: name}} }
	y := newYard(fleet.Worker{ID: "a", Labels: zone("x")}, fleet.Worker{ID: "b", Labels: zone("y"), Role: fleet.RoleDecode}, fleet.Worker{ID: "c"}, fleet.Worker{ID: "d", Labels: zone("x")})
	view := y.lined().View
	samples := fleet.NewSamples([]fleet.Sample{{ID: "b", Epoch: view.Workers[1].Epoch, At: start.Add(-2 * time.Second)}})
	k := &keeper{needs: NeedsPlace | NeedsAge}
	r := New(Config{Policy: k, Mode: Never})
	y.decide(t, r, Query{Now: start}, samples)
	z := k.seen.Zone
	if len(z) != 4 || z[0] == 0 || z[0] != z[3] || z[1] == z[0] || z[2] != 0 {
		t.Errorf("zones %v", z)
	}
	if want := []uint32{3, 2, 3, 3}; !slices.Equal(k.seen.Role, want) {
		t.Errorf("roles %v, want %v", k.seen.Role, want)
	}
	if a := k.seen.Age; a[1] != 2 || !math.IsNaN(a[0]) || !math.IsNaN(a[3]) {
		t.Errorf("ages %v", a)
	}
	k.needs = 0
	r = New(Config{Policy: k, Mode: Never})
	y.decide(t, r, Query{Now: start}, samples)
	if k.seen.Age != nil || k.seen.Role != nil || k.seen.Zone != nil {
		t.Error("columns that nobody asked for")
	}
}
