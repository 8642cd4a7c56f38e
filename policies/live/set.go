package live

import (
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
)

// set is all that decides at one time. It is immutable but for its count of users,
// of which the node is one while the set is the present one.
type set struct {
	index   uint64
	all     *decider                           // of models without a binding of their own; nil for none
	models  map[string]*decider                // nil for none
	others  map[rollout.Kind]map[string]*bound // of the other kinds, by model
	courts  map[uint64]*court                  // of admission, by the hash of the model; 0 is all
	members []*member                          // which it keeps open

	users atomic.Int64
	idle  chan struct{} // closed when nobody uses it any more
}

// decider routes for one model.
type decider struct {
	resolved       rollout.Resolved
	active, canary *lane // nil for the configured policy
}

// lane is one stage that decides.
type lane struct {
	choice   *route.Choice
	shadowed *route.Choice // with the shadow; nil without one
	shadow   *shadow
}

// held is what a choice is held by.
type held struct {
	set       *set
	decisions measure.Counter
}

// use counts a user, and reports false if the set is closed already.
func (s *set) use() bool {
	for {
		n := s.users.Load()
		if n == 0 {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *set) release() {
	if s.users.Add(-1) == 0 {
		close(s.idle)
	}
}

// decider is the one for a model.
func (s *set) decider(model string) *decider {
	if s.models != nil {
		if d, ok := s.models[model]; ok {
			return d
		}
	}
	return s.all
}

// acquire takes the present set; the caller releases it.
func (n *Node) acquire() *set {
	for {
		if s := n.set.Load(); s.use() {
			return s
		}
	}
}

// Choose names the policy for a decision; see [route.Chooser].
func (n *Node) Choose(q *route.Query) *route.Choice {
	if s := n.set.Load(); s.all == nil && s.models == nil {
		return nil // nothing of it is used, so that it need not be counted
	}
	s := n.acquire()
	l := s.lane(q)
	if l == nil {
		s.release()
		return nil
	}
	if l.shadowed == nil {
		return l.choice
	}
	if !n.budget.affords(q.Now) {
		l.shadow.skipped.Inc()
		return l.choice
	}
	return l.shadowed
}

// lane is the stage that decides q; nil is the configured policy.
func (s *set) lane(q *route.Query) *lane {
	d := s.decider(q.Model)
	if d == nil {
		return nil
	}
	if d.canary != nil {
		session := q.Session
		if session == 0 {
			session = q.Draw
		}
		if d.resolved.Canaried(session) {
			return d.canary
		}
	}
	return d.active
}

// Done ends the use of a choice.
func (n *Node) Done(c *route.Choice) {
	h := c.Held.(*held)
	h.decisions.Inc()
	h.set.release()
}
