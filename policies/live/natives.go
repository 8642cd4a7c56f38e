package live

import (
	"fmt"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
)

// post names a native policy at a place. Such a policy knows something, token buckets
// for example, that a change of the binding around it must not make it forget. A shadow
// is another one: what it only tries takes nothing from what decides.
type post struct {
	place
	policy string
	shadow bool
}

// builtIn finds a native policy, the same one for as long as it is bound there.
func (n *Node) builtIn(at place, p *piece, shadow bool) error {
	if len(p.part.Params) > 0 {
		return fmt.Errorf("%w: %s is built in and takes none", errParam, p.part.Policy)
	}
	key := post{at, p.part.Policy, shadow}
	kept, known := n.natives[key]
	if !known {
		var err error
		if kept, err = newNative(at.kind, p.part.Policy); err != nil {
			return err
		}
		n.natives[key] = kept
	}
	p.native = kept
	return nil
}

func newNative(k rollout.Kind, name string) (p native, err error) {
	switch k {
	case rollout.Router:
		p.router, err = route.PolicyNamed(name)
	case rollout.Admission:
		p.admission, err = admit.PolicyNamed(name)
	case rollout.Autoscaler:
		p.autoscaler, err = scale.PolicyNamed(name)
	case rollout.Observer:
		err = fmt.Errorf("%w: no observer is built in", rollout.ErrUnknown)
	}
	return p, err
}

// dismiss forgets the native policies that are bound nowhere any more.
func (n *Node) dismiss() {
	if len(n.natives) == 0 {
		return
	}
	wanted := map[post]bool{}
	for at, w := range n.wanted {
		for i, s := range []rollout.Stage{w.resolved.Shadow, w.resolved.Active, w.resolved.Canary} {
			for _, p := range s.Parts {
				wanted[post{at, p.Policy, i == 0}] = p.Native() || wanted[post{at, p.Policy, i == 0}]
			}
		}
	}
	for key := range n.natives {
		if !wanted[key] {
			delete(n.natives, key)
		}
	}
}
