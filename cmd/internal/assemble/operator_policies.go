package assemble

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/live"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/vet"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
)

// policyOperator is a store's policies as the admin API sees them.
type policyOperator struct {
	store  func() *raftstore.Store
	checks *vet.Pipeline
	node   *live.Node
	// unbound is what decides on this node where nothing is bound, by kind; nil where
	// node is.
	unbound func() map[string]string
	clock   clock.Clock
	// planners judge signatures, and not checks.
	planners bool
}

// followTime is how long the answer to a change waits for this node to follow it.
const followTime = 2 * time.Second

// Table implements admin.Policies.
func (o policyOperator) Table() *rollout.Table { return o.store().State().Rollout() }

// Catch implements admin.Policies.
func (o policyOperator) Catch(ctx context.Context) error {
	_, err := o.store().Read(ctx, raftstore.Linearizable())
	return tell(err)
}

// Push implements admin.Policies.
func (o policyOperator) Push(ctx context.Context, wasm, signature []byte) (rollout.Version, json.RawMessage, error) {
	report, err := o.checks.Check(ctx, wasm, signature)
	text, encoded := json.Marshal(report)
	if encoded != nil {
		return rollout.Version{}, nil, encoded
	}
	if errors.Is(err, vet.ErrRefused) {
		return rollout.Version{}, text, fmt.Errorf("%w %s", admin.ErrUnfit, Plain(strings.TrimPrefix(err.Error(), vet.ErrRefused.Error()+" ")))
	}
	if errors.Is(err, vet.ErrChild) {
		return rollout.Version{}, text, &told{err, admin.ErrBusy}
	}
	if err != nil {
		return rollout.Version{}, text, err
	}
	v := rollout.Version{
		Policy: report.Name, Release: report.Version, Kind: rollout.Kind(report.Kind), Digest: rollout.DigestOf(wasm),
		Size: int64(len(wasm)), Created: o.clock.Now().UnixMilli(),
		FailClosed: report.Manifest != nil && report.Manifest.Fail == "closed",
	}
	// A try on this node's table has the better sentence, and spares the others the
	// bytes of what could not be put.
	if _, err := o.Table().Put(v, o.Table().Index()+1); err != nil {
		return v, text, err
	}
	_, signer, err := o.store().PutSigned(ctx, wasm, signature)
	switch untrusted := errors.Is(err, raftstore.ErrUntrusted); {
	case err != nil && !untrusted:
		return v, text, tell(err)
	case o.planners:
		report.Judged(signer, err)
	}
	text, encoded = json.Marshal(report)
	switch {
	case encoded != nil:
		return v, nil, encoded
	case err != nil:
		return v, text, fmt.Errorf("%w at step %s: %s", admin.ErrUnfit, vet.StepSignature, Plain(err.Error()))
	}
	v.Signer, v.Report = report.Signer, short(&report)
	if err := o.propose(ctx, planner.PutPolicy{Version: v}); err != nil {
		return v, text, err
	}
	known, _ := o.Table().Version(v.Digest)
	return known, text, nil
}

// short is the report without what the module itself says, for the cluster to keep.
func short(r *vet.Report) string {
	less := *r
	less.Manifest = nil
	text, err := json.Marshal(less)
	if err != nil {
		return ""
	}
	return string(text)
}

// propose brings a command into force and waits until this node has applied it.
func (o policyOperator) propose(ctx context.Context, cmd planner.Command) error {
	res, err := o.store().Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		return tell(err)
	}
	if _, err := o.store().Read(ctx, raftstore.Stale(0, res.Index)); err != nil {
		return tell(err)
	}
	return nil
}

// Module implements admin.Policies.
func (o policyOperator) Module(ctx context.Context, d rollout.Digest) ([]byte, error) {
	b, err := o.store().Blob(ctx, d)
	return b, tell(err)
}

// Manifest implements admin.Policies.
func (o policyOperator) Manifest(ctx context.Context, d rollout.Digest) (json.RawMessage, error) {
	wasm, err := o.Module(ctx, d)
	if err != nil {
		return nil, err
	}
	m, err := module.Decode(wasm, module.Options{Imports: abi.Imports()})
	if err != nil {
		return nil, err
	}
	for _, c := range m.Custom {
		if c.Name == abi.Section {
			return json.RawMessage(c.Data), nil
		}
	}
	return nil, fmt.Errorf("%w: the module has no manifest", rollout.ErrUnknown)
}

// Delete implements admin.Policies.
func (o policyOperator) Delete(ctx context.Context, d rollout.Digest) error {
	if _, err := o.Table().Delete(d, o.Table().Index()+1); err != nil {
		return err
	}
	return o.propose(ctx, planner.DeletePolicy{Digest: d})
}

// Change implements admin.Policies.
func (o policyOperator) Change(ctx context.Context, c rollout.Change) error {
	if err := o.checkParams(ctx, c.Stage.Parts); err != nil {
		return err
	}
	// What would be refused is refused with a sentence, of which an entry has none.
	if _, err := o.Table().Change(c, o.Table().Index()+1); err != nil {
		return err
	}
	if err := o.propose(ctx, planner.ChangeBinding{Change: c}); err != nil {
		return err
	}
	if o.node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	// A node that does not get ready says so by itself: the change is made.
	_ = o.node.Await(ctx, o.Table().Index())
	return nil
}

// checkParams refuses parameters that a policy does not have: bound with them, no node
// could get it ready.
func (o policyOperator) checkParams(ctx context.Context, parts []rollout.Part) error {
	for _, part := range parts {
		if len(part.Params) == 0 || part.Native() { // whose are checked by their names
			continue
		}
		text, err := o.Manifest(ctx, part.Version)
		if err != nil {
			return err
		}
		m, err := abi.ParseManifest(text)
		if err != nil {
			return err
		}
		if err := live.CheckParams(m, part.Params); err != nil {
			return fmt.Errorf("%w: %s", admin.ErrInvalid, Plain(err.Error()))
		}
	}
	return nil
}

// Here implements admin.Policies.
func (o policyOperator) Here() admin.PoliciesHere {
	here := admin.PoliciesHere{Node: o.store().NodeID()}
	if o.node == nil {
		return here
	}
	s := o.node.Status()
	here.Index, here.Behind, here.Configured = decidedAt(s), o.node.News(), o.unbound()
	for _, b := range s.Bindings {
		if b.Why != "" {
			here.Late = append(here.Late, admin.PolicyLate{
				Kind: string(b.Kind), Model: b.Model, Wanted: b.Wanted, Serving: b.Serving, Why: b.Why,
			})
		}
		if b.Refuses != "" {
			here.Refusing = append(here.Refusing, admin.PolicyRefusing{Kind: string(b.Kind), Model: b.Model, Policy: b.Refuses})
		}
	}
	for _, v := range s.Versions {
		why := v.Why
		switch {
		case v.Failing:
			why = "out of service here for its faults"
		case why == "" && !v.Prepared:
			why = "being prepared"
		}
		if why == "" {
			continue
		}
		if here.NotReady == nil {
			here.NotReady = map[string]string{}
		}
		here.NotReady[v.Digest.String()] = why
	}
	return here
}

// decidedAt is the index of the newest change that a node decides by.
func decidedAt(s *live.Status) uint64 {
	newest, all := uint64(0), true
	for i := range s.Bindings {
		b := &s.Bindings[i]
		newest, all = max(newest, b.Serving), all && b.Serving == b.Wanted
	}
	if all {
		return s.Index
	}
	return newest
}
