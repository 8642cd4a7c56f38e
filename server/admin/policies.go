package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/rollout"
)

// Policies is the life of policies as operators see and change it, from any node of
// the cluster. Errors are those of [Cluster], of package rollout, [ErrUnfit] and
// [ErrBusy].
type Policies interface {
	// Table is what the cluster has agreed on, as this node knows it.
	Table() *rollout.Table
	// Catch waits until Table has all that was agreed before the call.
	Catch(ctx context.Context) error
	// Push checks an upload with its detached signature, which may be nil, has a
	// majority of the planners keep its bytes, and makes it known. The report of the
	// checks, in JSON, is there also for one that is refused (ErrUnfit).
	Push(ctx context.Context, module, signature []byte) (v rollout.Version, report json.RawMessage, err error)
	// Module is the bytes of a version as they were uploaded.
	Module(ctx context.Context, d rollout.Digest) ([]byte, error)
	// Manifest is what the module says of itself, in JSON.
	Manifest(ctx context.Context, d rollout.Digest) (json.RawMessage, error)
	Delete(ctx context.Context, d rollout.Digest) error
	// Change carries out a verb and returns once it is in force on this node.
	Change(ctx context.Context, c rollout.Change) error
	// Here is what this node makes of the table.
	Here() PoliciesHere
}

// ErrUnfit means that an upload may not run; the report says why. Code unfit,
// status 422.
var ErrUnfit = errors.New("policy refused")

// PoliciesHere is how far a node is.
type PoliciesHere struct {
	Node string `json:"node"`
	// Index is that of the newest change that decides here.
	Index uint64 `json:"index"`
	// Behind is what it does not decide by, and why; empty if it follows everything.
	Behind string `json:"behind,omitempty"`
	// NotReady is why a version that should be at hand is not, by digest. While it
	// lasts the node goes on with what decided before.
	NotReady map[string]string `json:"not_ready,omitempty"`
	// Configured is what decides here where nothing is bound, by kind.
	Configured map[string]string `json:"configured,omitempty"`
	// Late are the bindings that this node does not follow yet.
	Late []PolicyLate `json:"late,omitempty"`
	// Refusing are the bindings by which this node refuses every request.
	Refusing []PolicyRefusing `json:"refusing,omitempty"`
}

// PolicyRefusing is a binding whose policy is out of service, or not there yet, and
// fails closed.
type PolicyRefusing struct {
	Kind   string `json:"kind"`
	Model  string `json:"model,omitempty"` // empty: all models
	Policy string `json:"policy"`
}

// PolicyLate is a binding that a node does not follow.
type PolicyLate struct {
	Kind    string `json:"kind"`
	Model   string `json:"model,omitempty"` // empty: all models
	Wanted  uint64 `json:"wanted"`          // log index of the binding
	Serving uint64 `json:"serving"`         // of what decides here meanwhile; 0: what is configured
	Why     string `json:"why"`
}

// PolicyList is all that the cluster knows of policies.
type PolicyList struct {
	Index    uint64          `json:"index"` // of the last change
	Versions []PolicyVersion `json:"versions"`
	Bindings []PolicyBinding `json:"bindings"`
	Here     PoliciesHere    `json:"here"`
}

// PolicyVersion is one uploaded module.
type PolicyVersion struct {
	Policy  string `json:"policy"`
	Release string `json:"version"`
	Kind    string `json:"kind"`
	Digest  string `json:"digest"`
	Bytes   int64  `json:"bytes"`
	// Signer is the trusted key that signed it; empty is unsigned.
	Signer      string   `json:"signer,omitempty"`
	UploadedMS  int64    `json:"uploaded_ms"` // Unix time
	Index       uint64   `json:"index"`
	Quarantined string   `json:"quarantined,omitempty"` // why it was taken out of service
	Bound       []string `json:"bound,omitempty"`       // active, shadow or canary, and for which model
}

// PolicyBinding is what decides for a kind, and for a model or all.
type PolicyBinding struct {
	Kind        string         `json:"kind"`
	Model       string         `json:"model,omitempty"` // empty: all models
	Active      []PolicyPart   `json:"active"`
	Shadow      []PolicyPart   `json:"shadow,omitempty"`
	Canary      []PolicyPart   `json:"canary,omitempty"`
	CanaryShare float64        `json:"canary_share,omitempty"`
	Previous    [][]PolicyPart `json:"previous,omitempty"` // newest first
	Pinned      bool           `json:"pinned,omitempty"`
	Index       uint64         `json:"index"`
	// Configured is what decides on the node that was asked while Active is empty, and
	// where Previous is.
	Configured string `json:"configured,omitempty"`
	// Late is why the node that was asked does not follow yet.
	Late string `json:"late,omitempty"`
	// Refuses is the policy for which the node that was asked refuses every request: see
	// [PolicyRefusing].
	Refuses string `json:"refuses,omitempty"`
}

// PolicyPart is one policy of those that decide together.
type PolicyPart struct {
	// Policy is name@version or, for a policy of the binary, its name.
	Policy string             `json:"policy"`
	Digest string             `json:"digest,omitempty"` // empty: of the binary
	Weight float64            `json:"weight"`
	Params map[string]float64 `json:"params,omitempty"`
}

// PolicyShown is all that is known of one version.
type PolicyShown struct {
	PolicyVersion
	Manifest json.RawMessage `json:"manifest,omitempty"`
	Report   json.RawMessage `json:"report,omitempty"`
	// StateKeys is how many keys its policy has in the replicated state.
	StateKeys int `json:"state_keys"`
}

// PolicyPushed is the answer to an upload, an accepted or a refused one.
type PolicyPushed struct {
	PolicyVersion
	Report json.RawMessage `json:"report,omitempty"`
}

// PolicyChange is a verb on a binding.
type PolicyChange struct {
	Verb string `json:"verb"` // shadow, canary, promote, rollback, pin, unpin, clear
	// Kind may be left out where parts are named, or where the verb fits one binding.
	Kind  string           `json:"kind,omitempty"`
	Model string           `json:"model,omitempty"`
	Parts []PolicyPartWant `json:"parts,omitempty"`
	Share float64          `json:"share,omitempty"` // of canary, 0 to 1
	// IfIndex makes it fail unless the binding has that index, 0 meaning that there
	// is none.
	IfIndex *uint64 `json:"if_index,omitempty"`
}

// PolicyPartWant names a policy: name@version, name for its newest, digits of its
// digest, or the name of a policy of the binary, which "native:" before it insists on.
type PolicyPartWant struct {
	Policy string             `json:"policy"`
	Weight float64            `json:"weight,omitempty"` // 0 means 1
	Params map[string]float64 `json:"params,omitempty"`
}

// insisting is what a reference to a policy of the binary may begin with.
const insisting = "native:"

// change reads what a client wants as a change of the table.
func (c *PolicyChange) change(t *rollout.Table) (rollout.Change, error) {
	verb, err := rollout.ParseVerb(c.Verb)
	if err != nil {
		return rollout.Change{}, err
	}
	out := rollout.Change{Kind: rollout.Kind(c.Kind), Model: c.Model, Verb: verb, Share: c.Share, IfIndex: c.IfIndex}
	for _, want := range c.Parts {
		part, kind, err := want.part(t, out.Kind)
		if err != nil {
			return out, err
		}
		if out.Kind == "" {
			out.Kind = kind
		}
		if kind != out.Kind {
			return out, fmt.Errorf("%w: %s is of kind %s, not %s", ErrInvalid, want.Policy, kind, out.Kind)
		}
		out.Stage.Parts = append(out.Stage.Parts, part)
	}
	if out.Kind == "" {
		out.Kind, err = meant(t, verb, c.Model, c.Share)
	}
	return out, err
}

func (w *PolicyPartWant) part(t *rollout.Table, kind rollout.Kind) (rollout.Part, rollout.Kind, error) {
	weight := w.Weight
	if weight == 0 {
		weight = 1
	}
	var params []rollout.Param
	for name, v := range w.Params {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return rollout.Part{}, "", fmt.Errorf("%w: parameter %s is not a number", ErrInvalid, name)
		}
		params = append(params, rollout.Param{Name: name, Value: v})
	}
	name, insists := strings.CutPrefix(w.Policy, insisting)
	unknown := fmt.Errorf("%w: no policy of the binary is called %.80q", rollout.ErrUnknown, name)
	known := natives(kind)
	if !insists {
		v, err := t.Find(name)
		if err == nil {
			return rollout.NewPart(v.Policy, v.Digest, weight, params...), v.Kind, nil
		}
		unknown, known = err, append(uploaded(t, kind), known...)
	}
	k := nativeKind(name, kind)
	if k == nil {
		return rollout.Part{}, "", hinted(unknown, name, known)
	}
	if _, err := k.with(name, w.Params); err != nil {
		return rollout.Part{}, "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return rollout.NewPart(name, rollout.Digest{}, weight, params...), k.kind, nil
}

// list is the whole table.
func list(t *rollout.Table, here PoliciesHere) PolicyList {
	out := PolicyList{Index: t.Index(), Versions: []PolicyVersion{}, Bindings: []PolicyBinding{}, Here: here}
	for _, v := range t.Versions() {
		out.Versions = append(out.Versions, versionOf(t, &v))
	}
	for _, b := range t.Bindings() {
		out.Bindings = append(out.Bindings, here.of(bindingOf(t, &b)))
	}
	return out
}

func versionOf(t *rollout.Table, v *rollout.Version) PolicyVersion {
	out := PolicyVersion{
		Policy: v.Policy, Release: v.Release, Kind: string(v.Kind), Digest: v.Digest.String(), Bytes: v.Size,
		Signer: v.Signer, UploadedMS: v.Created, Index: v.Index, Quarantined: v.Reason,
	}
	for _, b := range t.Bindings() {
		where := ""
		if b.Model != "" {
			where = " for " + b.Model
		}
		for _, stage := range []struct {
			name string
			of   rollout.Stage
		}{{"active", b.Active}, {"canary", b.Canary}, {"shadow", b.Shadow}} {
			if stage.of.Uses(v.Digest) {
				out.Bound = append(out.Bound, stage.name+where)
			}
		}
	}
	return out
}

func bindingOf(t *rollout.Table, b *rollout.Binding) PolicyBinding {
	out := PolicyBinding{
		Kind: string(b.Kind), Model: b.Model, Active: stageOf(t, b.Active), Shadow: stageOf(t, b.Shadow),
		Canary: stageOf(t, b.Canary), CanaryShare: b.CanaryShare, Pinned: b.Pinned, Index: b.Index,
	}
	for _, stage := range b.Previous {
		out.Previous = append(out.Previous, stageOf(t, stage))
	}
	return out
}

func stageOf(t *rollout.Table, s rollout.Stage) []PolicyPart {
	out := []PolicyPart{}
	for _, p := range s.Parts {
		part := PolicyPart{Policy: p.Policy, Weight: p.Weight, Params: p.ParamsByName()}
		if v, ok := t.Version(p.Version); ok {
			part.Policy, part.Digest = v.Ref(), v.Digest.String()
		}
		out = append(out, part)
	}
	return slices.Clip(out)
}
