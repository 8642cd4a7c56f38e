package rollout

import (
	"encoding/binary"

	"github.com/yardmaster/yardmaster/core/mix"
)

// Resolved is what decides for one model: its binding, completed by the one for
// all models.
type Resolved struct {
	Active, Shadow, Canary Stage // each may be empty
	CanaryShare            float64
	Index                  uint64 // the later of the changes that made it so; 0: nothing is bound

	// From CanaryShare: sessions whose mixed hash is below are in.
	below uint64
	salt  uint64
}

// Resolve says what is bound for a model. A model's own binding comes first; what
// it leaves empty is that of all models. The canary of all models counts only
// beside the active stage of all models.
func (t *Table) Resolve(k Kind, model string) Resolved {
	all, _ := t.Binding(k, "")
	own := all
	if model != "" {
		if b, ok := t.Binding(k, model); ok {
			own = merged(b, all)
		}
	}
	r := Resolved{Active: own.Active, Shadow: own.Shadow, Canary: own.Canary, CanaryShare: own.CanaryShare, Index: own.Index}
	if !r.Canary.Empty() {
		r.below = uint64(min(r.CanaryShare, 1) * (1 << 63) * 2 * (1 - 1.0/(1<<53)))
		r.salt = binary.LittleEndian.Uint64(r.Canary.Parts[0].Version[:])
	}
	return r
}

func merged(own, all Binding) Binding {
	inherits := own.Active.Empty()
	if inherits {
		own.Active = all.Active
	}
	if inherits && own.Canary.Empty() {
		own.Canary, own.CanaryShare = all.Canary, all.CanaryShare
	}
	if own.Shadow.Empty() && inherits {
		own.Shadow = all.Shadow
	}
	if inherits {
		own.Index = max(own.Index, all.Index)
	}
	return own
}

// Canaried reports whether the canary decides for a session, named by any hash of
// it. Who is in stays in while the share grows, and another version's canary is
// given to other sessions.
func (r *Resolved) Canaried(session uint64) bool {
	return !r.Canary.Empty() && (r.CanaryShare >= 1 || mix.Bits(session^r.salt) < r.below)
}
