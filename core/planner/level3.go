package planner

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Bounds of a plan, which belong to its entry; scale.Plan.Validate may get
// stricter.
const (
	maxPools    = 1024
	maxReplicas = 16384
	maxPlanText = 512
)

// PutPolicy makes an uploaded version known, from when on it can be bound. Its
// bytes have to be on a quorum of voters already. Index, Quarantined and Reason
// are ignored. See [rollout.Table.Put].
type PutPolicy struct{ rollout.Version }

// DeletePolicy removes a version that is bound nowhere; see
// [rollout.Table.Delete].
type DeletePolicy struct{ Digest rollout.Digest }

// ChangeBinding carries out a verb on a binding; see [rollout.Table.Change].
// Result.Version is the binding's index, 0 where there is none.
type ChangeBinding struct{ rollout.Change }

// QuarantinePolicy takes a version out of all bindings for its faults; see
// [rollout.Table.Quarantine].
type QuarantinePolicy struct {
	Digest rollout.Digest
	Reason string
}

// WritePolicyState writes to a policy's state, all or nothing; see
// [rollout.Table.WriteState].
type WritePolicyState struct {
	Policy string
	Writes []rollout.Write
}

// SetScalePlan replaces the plan of how many workers each pool is to have.
// Result.Version is its index. The same plan again changes nothing.
type SetScalePlan struct {
	Plan scale.Plan
	// IfIndex makes it a compare-and-swap: the command gets [Conflict] unless the
	// plan in force has that index, 0 meaning that there is none.
	IfIndex *uint64
}

// Kinds of feature level 3.
const (
	kindPutPolicy        kind = 16
	kindDeletePolicy     kind = 17
	kindChangeBinding    kind = 18
	kindQuarantinePolicy kind = 19
	kindWritePolicyState kind = 20
	kindSetScalePlan     kind = 21
)

func (PutPolicy) kind() kind        { return kindPutPolicy }
func (DeletePolicy) kind() kind     { return kindDeletePolicy }
func (ChangeBinding) kind() kind    { return kindChangeBinding }
func (QuarantinePolicy) kind() kind { return kindQuarantinePolicy }
func (WritePolicyState) kind() kind { return kindWritePolicyState }
func (SetScalePlan) kind() kind     { return kindSetScalePlan }

func (c PutPolicy) body() proto.Message {
	v := c.Version
	v.Index, v.Quarantined, v.Reason = 0, 0, ""
	return fromVersion(&v)
}

func (c DeletePolicy) body() proto.Message { return &control.DeletePolicyBody{Digest: c.Digest[:]} }

func (c ChangeBinding) body() proto.Message {
	return &control.ChangeBindingBody{
		Kind: string(c.Kind), Model: c.Model, Verb: uint32(c.Verb), Stage: fromStage(c.Stage), Share: c.Share, IfIndex: c.IfIndex,
	}
}

func (c QuarantinePolicy) body() proto.Message {
	return &control.QuarantinePolicyBody{Digest: c.Digest[:], Reason: c.Reason}
}

func (c WritePolicyState) body() proto.Message {
	m := &control.WritePolicyStateBody{Policy: c.Policy}
	for _, w := range c.Writes {
		m.Writes = append(m.Writes, &control.PolicyStateWrite{Op: uint32(w.Op), Key: []byte(w.Key), Value: w.Value, Delta: w.Delta})
	}
	return m
}

func (c SetScalePlan) body() proto.Message {
	return &control.SetScalePlanBody{Plan: fromPlan(&c.Plan), IfIndex: c.IfIndex}
}

// The rules of package rollout belong to the entries of level 3, so that
// proposers know no others.

func (c PutPolicy) validate() error     { return c.Validate() }
func (c ChangeBinding) validate() error { return c.Validate() }

func (c DeletePolicy) validate() error { return validateDigest(c.Digest) }

func (c QuarantinePolicy) validate() error {
	if c.Reason == "" || len(c.Reason) > rollout.MaxReason {
		return fmt.Errorf("a quarantine needs a reason of up to %d bytes", rollout.MaxReason)
	}
	return validateDigest(c.Digest)
}

func (c WritePolicyState) validate() error { return rollout.ValidateWrites(c.Writes) }

func (c SetScalePlan) validate() error {
	if !soundPlan(&c.Plan) {
		return fmt.Errorf("a plan has up to %d pools, by model and role, each once, and %d replicas in all: %w", maxPools, maxReplicas, orUnsound(c.Plan.Validate()))
	}
	return c.Plan.Validate()
}

func orUnsound(err error) error {
	if err == nil {
		return fmt.Errorf("%w plan", ErrInvalid)
	}
	return err
}

func validateDigest(d rollout.Digest) error {
	if d.IsZero() {
		return errors.New("no digest is named")
	}
	return nil
}

// soundPlan is the rule of the entry: what Apply takes.
func soundPlan(p *scale.Plan) bool {
	if len(p.Pools) > maxPools || len(p.Policy) > maxPlanText || p.At < 0 {
		return false
	}
	var sum uint64
	for i := range p.Pools {
		pool := &p.Pools[i]
		inOrder := i == 0 || p.Pools[i-1].Compare(pool.Key) < 0
		if pool.Model == "" || len(pool.Model) > maxPlanText || len(pool.Reason) > maxPlanText || !inOrder {
			return false
		}
		sum += uint64(pool.Desired)
	}
	return sum <= maxReplicas
}

// decodeBody3 reads the body of a kind of feature level 3.
func decodeBody3(k kind, body []byte) (Command, error) {
	switch k {
	case kindPutPolicy:
		return decodePutPolicy(body)
	case kindChangeBinding:
		return decodeChange(body)
	case kindWritePolicyState:
		return decodeWrites(body)
	case kindSetScalePlan:
		return decodePlan(body)
	default:
		return decodeDigest(k, body)
	}
}

func decodePutPolicy(body []byte) (Command, error) {
	var m control.PolicyVersion
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	v, err := toVersion(&m)
	v.Index, v.Quarantined, v.Reason = 0, 0, ""
	return PutPolicy{v}, err
}

// decodeDigest reads the body of a kind that names a version.
func decodeDigest(k kind, body []byte) (Command, error) {
	var m control.QuarantinePolicyBody // the other's is the beginning of it
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	d, err := toDigest(m.GetDigest())
	if k == kindDeletePolicy {
		return DeletePolicy{d}, err
	}
	return QuarantinePolicy{d, m.GetReason()}, err
}

func decodeChange(body []byte) (Command, error) {
	var m control.ChangeBindingBody
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	stage, err := toStage(m.GetStage())
	if err != nil {
		return nil, err
	}
	if m.GetVerb() > uint32(^rollout.Verb(0)) {
		return nil, fmt.Errorf("%w: verb %d", ErrMalformed, m.GetVerb())
	}
	return ChangeBinding{rollout.Change{
		Kind: rollout.Kind(m.GetKind()), Model: m.GetModel(), Verb: rollout.Verb(m.GetVerb()), Stage: stage, Share: m.GetShare(), IfIndex: m.IfIndex,
	}}, nil
}

func decodeWrites(body []byte) (Command, error) {
	var m control.WritePolicyStateBody
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	c := WritePolicyState{Policy: m.GetPolicy()}
	for _, w := range m.GetWrites() {
		if w.GetOp() > uint32(^rollout.WriteOp(0)) {
			return nil, fmt.Errorf("%w: write operation %d", ErrMalformed, w.GetOp())
		}
		c.Writes = append(c.Writes, rollout.Write{Op: rollout.WriteOp(w.GetOp()), Key: string(w.GetKey()), Value: w.GetValue(), Delta: w.GetDelta()})
	}
	return c, nil
}

func decodePlan(body []byte) (Command, error) {
	var m control.SetScalePlanBody
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	p, err := toPlan(m.GetPlan())
	return SetScalePlan{Plan: p, IfIndex: m.IfIndex}, err
}

func fromVersion(v *rollout.Version) *control.PolicyVersion {
	return &control.PolicyVersion{
		Policy: v.Policy, Release: v.Release, Kind: string(v.Kind), Digest: v.Digest[:], Size: v.Size, Signer: v.Signer,
		Report: v.Report, Created: v.Created, Index: v.Index, Quarantined: v.Quarantined, Reason: v.Reason,
		FailClosed: v.FailClosed,
	}
}

func toVersion(m *control.PolicyVersion) (rollout.Version, error) {
	d, err := toDigest(m.GetDigest())
	return rollout.Version{
		Policy: m.GetPolicy(), Release: m.GetRelease(), Kind: rollout.Kind(m.GetKind()), Digest: d, Size: m.GetSize(), Signer: m.GetSigner(),
		Report: m.GetReport(), Created: m.GetCreated(), Index: m.GetIndex(), Quarantined: m.GetQuarantined(), Reason: m.GetReason(),
		FailClosed: m.GetFailClosed(),
	}, err
}

// toDigest reads a digest; none is the zero digest.
func toDigest(b []byte) (d rollout.Digest, err error) {
	if len(b) != 0 && len(b) != len(d) {
		return d, fmt.Errorf("%w: digest of %d bytes", ErrMalformed, len(b))
	}
	copy(d[:], b)
	return d, nil
}

func fromStage(s rollout.Stage) *control.PolicyStage {
	if s.Empty() {
		return nil
	}
	m := &control.PolicyStage{}
	for _, p := range s.Parts {
		part := &control.PolicyPart{Policy: p.Policy, Weight: p.Weight}
		if !p.Native() {
			part.Digest = p.Version[:]
		}
		for _, q := range p.Params {
			part.Params = append(part.Params, &control.PolicyParam{Name: q.Name, Value: q.Value})
		}
		m.Parts = append(m.Parts, part)
	}
	return m
}

func toStage(m *control.PolicyStage) (rollout.Stage, error) {
	var s rollout.Stage
	for _, pb := range m.GetParts() {
		d, err := toDigest(pb.GetDigest())
		if err != nil {
			return s, err
		}
		p := rollout.Part{Policy: pb.GetPolicy(), Version: d, Weight: pb.GetWeight()}
		for _, q := range pb.GetParams() {
			p.Params = append(p.Params, rollout.Param{Name: q.GetName(), Value: q.GetValue()})
		}
		s.Parts = append(s.Parts, p)
	}
	return s, nil
}

func fromPlan(p *scale.Plan) *control.ScalePlan {
	m := &control.ScalePlan{Budget: p.Budget, Policy: p.Policy, At: p.At}
	for _, pool := range p.Pools {
		m.Pools = append(m.Pools, &control.ScalePool{Model: pool.Model, Role: uint32(pool.Role), Desired: pool.Desired, Reason: pool.Reason})
	}
	return m
}

func toPlan(m *control.ScalePlan) (scale.Plan, error) {
	p := scale.Plan{Budget: m.GetBudget(), Policy: m.GetPolicy(), At: m.GetAt()}
	for _, pool := range m.GetPools() {
		if pool.GetRole() > uint32(^fleet.Role(0)) {
			return p, fmt.Errorf("%w: role %d of a pool", ErrMalformed, pool.GetRole())
		}
		p.Pools = append(p.Pools, scale.PoolPlan{
			Key: scale.Key{Model: pool.GetModel(), Role: fleet.Role(pool.GetRole())}, Desired: pool.GetDesired(), Reason: pool.GetReason(),
		})
	}
	return p, nil
}

func equalPlans(p, q *scale.Plan) bool {
	return p.Budget == q.Budget && p.Policy == q.Policy && p.At == q.At && slices.Equal(p.Pools, q.Pools)
}
