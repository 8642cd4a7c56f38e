package live

import (
	"fmt"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
)

// post names a native policy with its parameters at a place. Such a policy knows something, token buckets
// for example, that a change of the binding around it must not make it forget. A shadow
// is another one: what it only tries takes nothing from what decides.
type post struct {
	place
	policy, params string
	shadow         bool
}

func postOf(at place, p *rollout.Part, shadow bool) post {
	return post{at, p.Policy, fmt.Sprint(p.Params), shadow}
}

// builtIn finds a native policy, the same one for as long as it is bound there.
func (n *Node) builtIn(at place, p *piece, shadow bool) error {
	key := postOf(at, p.part, shadow)
	kept, known := n.natives[key]
	if !known {
		var err error
		if kept, err = newNative(at.kind, p.part); err != nil {
			return err
		}
		n.natives[key] = kept
	}
	p.native = kept
	return nil
}

func newNative(k rollout.Kind, part *rollout.Part) (p native, err error) {
	switch params := part.ParamsByName(); k {
	case rollout.Router:
		p.router, err = route.PolicyWith(part.Policy, params)
	case rollout.Admission:
		p.admission, err = admit.PolicyWith(part.Policy, params)
	case rollout.Autoscaler:
		p.autoscaler, err = scale.PolicyWith(part.Policy, params)
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
			for k := range s.Parts {
				if p := &s.Parts[k]; p.Native() {
					wanted[postOf(at, p, i == 0)] = true
				}
			}
		}
	}
	for key := range n.natives {
		if !wanted[key] {
			delete(n.natives, key)
		}
	}
}
