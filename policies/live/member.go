package live

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
)

// member is a version with parameters, compiled and with instances.
type member struct {
	key      string
	ref      string // name@version
	digest   rollout.Digest
	kind     rollout.Kind
	code     *host.Code
	policy   *host.Policy
	fallback route.Policy // native, of a router, as the manifest names it; or nil
	faults   *faults
	live     int // instances
	sets     int // that hold it; of the goroutine that follows

	// One of these, by kind.
	router     *router
	admission  *host.Admission
	autoscaler *host.Autoscaler
	observer   *host.Observer
}

// keyOf names a version with its parameters. A shadow's is another one's than what
// decides: it has instances, and services, of its own.
func keyOf(p *rollout.Part, shadow bool) string {
	b := append([]byte(nil), p.Version[:]...)
	if shadow {
		b = append(b, "shadow "...)
	}
	for _, q := range p.Params {
		b = append(append(b, q.Name...), 0)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(q.Value))
	}
	return string(b)
}

var (
	errDigest   = errors.New("the bytes do not have the version's digest")
	errManifest = errors.New("the manifest says something else than the upload")
	errParam    = errors.New("no such parameter")
)

// job is one thing to prepare, beside the traffic.
type job struct {
	version rollout.Version
	part    *rollout.Part // nil to compile only
	shadow  bool          // the part is one of a shadow
	faults  *faults
	warmed  bool // compiled by the child before
}

// result is what came of a job.
type result struct {
	job    job
	warmed bool
	member *member // nil after an error, and where nothing was to be loaded
	err    error
}

// prepare does a job: fetch, compile in the child, and load if asked to.
func (n *Node) prepare(ctx context.Context, j job) result {
	out := result{job: j, warmed: j.warmed}
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	began := n.deps.Clock.Now()
	wasm, err := n.deps.Cluster.Blob(ctx, j.version.Digest)
	switch {
	case err != nil:
		out.err = fmt.Errorf("its bytes cannot be had yet: %w", err)
		return out
	case rollout.DigestOf(wasm) != j.version.Digest:
		out.err = errDigest
		return out
	}
	if !j.warmed && n.deps.Warm != nil {
		if out.err = n.deps.Warm(ctx, wasm); out.err != nil {
			return out
		}
	}
	out.warmed = true
	if j.part != nil {
		out.member, out.err = n.load(ctx, j, wasm)
	}
	if out.err == nil {
		n.prepared.Observe(n.deps.Clock.Now().Sub(began).Seconds())
	}
	return out
}

// load makes a member of a version's bytes.
func (n *Node) load(ctx context.Context, j job, wasm []byte) (*member, error) {
	metered, err := host.Prepare(wasm)
	if err != nil {
		return nil, err
	}
	manifest, v := metered.Manifest, &j.version
	if manifest.Name != v.Policy || manifest.Version != v.Release || string(manifest.Kind) != string(v.Kind) {
		return nil, fmt.Errorf("%w: %s@%s of kind %s was uploaded as %s of kind %s", errManifest, manifest.Name, manifest.Version, manifest.Kind, v.Ref(), v.Kind)
	}
	params, err := paramsOf(manifest, j.part.Params)
	if err != nil {
		return nil, err
	}
	m := &member{key: keyOf(j.part, j.shadow), ref: v.Ref(), digest: v.Digest, kind: v.Kind, faults: j.faults, live: n.instances(v.Kind)}
	if manifest.Fallback != "" && v.Kind == rollout.Router {
		if m.fallback, err = route.PolicyNamed(manifest.Fallback); err != nil {
			return nil, fmt.Errorf("fallback: %w", err)
		}
	}
	if m.code, err = n.host.Compile(ctx, metered); err != nil {
		return nil, err
	}
	if m.policy, err = m.code.StartWith(ctx, n.servicesOf(manifest, j.shadow), m.live, params); err != nil {
		return nil, errors.Join(err, m.code.Close(ctx))
	}
	if err := m.adapt(); err != nil {
		return nil, errors.Join(err, m.close(ctx))
	}
	return m, nil
}

// adapt makes the policy what its kind's package knows.
func (m *member) adapt() (err error) {
	switch m.kind {
	case rollout.Router:
		m.router, err = newRouter(m.policy, m.faults)
	case rollout.Admission:
		m.admission, err = host.NewAdmission(m.policy, nil)
	case rollout.Autoscaler:
		m.autoscaler, err = host.NewAutoscaler(m.policy)
	case rollout.Observer:
		m.observer, err = host.NewObserver(m.policy)
	}
	return err
}

// instances is how many a policy of a kind gets. A node makes one routing decision at
// a time: the second instance is for when the first is being replaced. Admission is
// asked by every request's own goroutine.
func (n *Node) instances(k rollout.Kind) int {
	switch k {
	case rollout.Router:
		return n.cfg.Instances
	case rollout.Admission:
		return min(2*runtime.GOMAXPROCS(0), mostInstances)
	case rollout.Autoscaler, rollout.Observer:
	}
	return 1
}

// CheckParams says what is wrong with the parameters that a binding gives a policy, so
// that it can be refused before every node finds out.
func CheckParams(m *abi.Manifest, given []rollout.Param) error {
	_, err := paramsOf(m, given)
	return err
}

// paramsOf are the values for the manifest's parameters, in its order.
func paramsOf(m *abi.Manifest, given []rollout.Param) ([]float64, error) {
	values := make([]float64, len(m.Params))
	names := make([]string, len(m.Params))
	for i, p := range m.Params {
		values[i], names[i] = p.Default, p.Name
	}
	for _, g := range given {
		i := slices.Index(names, g.Name)
		if i < 0 {
			return nil, fmt.Errorf("%w: %s has no %q; it has %s", errParam, m.Name, g.Name, cmp.Or(strings.Join(names, ", "), "none"))
		}
		if err := m.Params[i].Accepts(g.Value); err != nil {
			return nil, err
		}
		values[i] = g.Value
	}
	return values, nil
}

// close frees a member that nobody uses. After an error it may be called again.
func (m *member) close(ctx context.Context) error {
	if err := m.policy.Close(ctx); err != nil {
		return err
	}
	return m.code.Close(ctx)
}
