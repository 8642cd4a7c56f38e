package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tetratelabs/wazero"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/meter"
	"github.com/yardmaster/yardmaster/policies/module"
)

// Services are what the host offers to guests. Calls come from the goroutine that
// runs the guest and must not wait.
type Services interface {
	// Log takes a line; level 0 is debug, 3 is error. The line is not kept by the
	// caller, nor may it be kept.
	Log(policy string, level int, line []byte)
	// Count adds to the manifest's counter of that place, and Observe counts a value in
	// its histogram.
	Count(policy string, counter int, n int64)
	Observe(policy string, histogram int, v float64)
	// NowMillis is Unix time in milliseconds.
	NowMillis() int64
	// Get copies the value of a key into buf, as far as it fits, and returns its whole
	// length, or -1. Set stores one and Add adds to a number; both say whether they
	// did. replicated is the cluster's state, otherwise the node's.
	Get(policy string, replicated bool, key, buf []byte) int
	Set(policy string, replicated bool, key, value []byte) bool
	Add(policy string, replicated bool, key []byte, delta int64) (sum int64, ok bool)
}

// pauseAbove is the budget from which calls pause, and pauseEvery how often, in
// units of fuel. At the worst 20 ns a unit a call without a pause is over in 20 ms,
// and a pause comes each millisecond.
const (
	pauseAbove = 1_000_000
	pauseEvery = 50_000
)

// initFuel is the budget of a guest's _initialize, and pauseAbove what it has then
// to show its layout and take its params. Go's runtime needs half of it. Since it is
// above pauseAbove, guests that have one pause in all their calls; those that have
// nothing to initialise are faster without.
const initFuel = 20_000_000

// Host is the runtime of all policies. Its methods may be called from several
// goroutines.
type Host struct {
	runtime  wazero.Runtime
	services Services
}

// New starts a runtime. The caller closes it, after the policies.
func New(ctx context.Context, services Services) (*Host, error) {
	// Memory that grows in place keeps its address, so that columns are found once.
	config := wazero.NewRuntimeConfig().WithMemoryLimitPages(abi.MostPages).WithMemoryCapacityFromMax(true)
	h := &Host{runtime: wazero.NewRuntimeWithConfig(ctx, config), services: services}
	if err := h.offer(ctx); err != nil {
		return nil, errors.Join(err, h.runtime.Close(ctx))
	}
	return h, nil
}

// Close frees the runtime and all that was compiled.
func (h *Host) Close(ctx context.Context) error { return h.runtime.Close(ctx) }

// Load makes a policy with a number of instances of a module. params has a value for
// each of the manifest's parameters; nil stands for the defaults.
func (h *Host) Load(ctx context.Context, wasm []byte, instances int, params []float64) (*Policy, error) {
	m, err := module.Decode(wasm, module.Options{Imports: abi.Imports()})
	if err != nil {
		return nil, err
	}
	manifest, err := abi.Check(m)
	if err != nil {
		return nil, err
	}
	values, err := settle(manifest, params)
	if err != nil {
		return nil, err
	}
	options := meter.Options{Pages: manifest.Pages}
	if _, initialises := m.Export(abi.ExportInitialize); initialises || manifest.Fuel > pauseAbove {
		options.Slice = pauseEvery
	}
	metered, err := meter.Rewrite(m, options)
	if err != nil {
		return nil, err
	}
	compiled, err := h.runtime.CompileModule(ctx, metered)
	if err != nil {
		return nil, fmt.Errorf("host: compile %s: %w", manifest.Name, err)
	}
	p := &Policy{host: h, manifest: manifest, params: values, slice: options.Slice, compiled: compiled, export: answer(m, manifest.Kind), unknowns: unknowns(manifest)}
	if err := p.fill(ctx, max(instances, 1)); err != nil {
		return nil, errors.Join(err, compiled.Close(ctx))
	}
	return p, nil
}

// answer is the call by which a policy that has been checked answers.
func answer(m *module.Module, k abi.Kind) string {
	switch k {
	case abi.Router:
		if _, ok := m.Export(abi.ExportRoute); ok {
			return abi.ExportRoute
		}
		return abi.ExportScore
	case abi.Admission:
		return abi.ExportAdmit
	case abi.Autoscaler:
		return abi.ExportTick
	case abi.Observer:
		return abi.ExportObserve
	}
	return ""
}

// unknowns is what stands for unknown in each of the manifest's columns. One that
// the host has never heard of is taken for numbers.
func unknowns(m *abi.Manifest) []uint32 {
	out := make([]uint32, len(m.Columns))
	known := m.Kind.Columns()
	for i, use := range m.Columns {
		out[i] = math.Float32bits(float32(math.NaN()))
		if at := slices.IndexFunc(known, func(c abi.Column) bool { return c.Name == use.Name }); at >= 0 && known[at].Type == abi.U32 {
			out[i] = abi.UnknownU32
		}
	}
	return out
}

// settle checks parameters, or takes the defaults.
func settle(m *abi.Manifest, params []float64) ([]float64, error) {
	values := make([]float64, len(m.Params))
	for i, p := range m.Params {
		values[i] = p.Default
	}
	if params == nil {
		return values, nil
	}
	if len(params) != len(values) {
		return nil, fmt.Errorf("host: %d params for %s, which has %d", len(params), m.Name, len(values))
	}
	for i, p := range m.Params {
		if err := p.Accepts(params[i]); err != nil {
			return nil, fmt.Errorf("host: %s: %w", m.Name, err)
		}
		values[i] = params[i]
	}
	return values, nil
}
