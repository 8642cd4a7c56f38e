package scale

// ByHand is the Policy of a plan that an operator made, or holds: no leader changes it
// until it is released.
const ByHand = "operator"

// Released is the Policy of a plan that an operator has given back to the policies.
const Released = "released"

// Held reports whether an operator holds the plan.
func (p *Plan) Held() bool { return p != nil && p.Policy == ByHand }
