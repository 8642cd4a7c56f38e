package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/yardmaster/yardmaster/policies/abi"
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

// Options shape a host. The zero value compiles at each Load and keeps nothing.
type Options struct {
	// Cache is a directory for compiled code, so that what vet's child has compiled
	// loads in milliseconds. It must be this user's alone, since its files are machine
	// code that is executed; it is made if it is not there. Empty is none.
	Cache string
	// Workers is how many threads compile a module; 0 is one.
	Workers int
	// Interpreter runs guests without compiling them, a hundred times slower: for
	// comparison only.
	Interpreter bool
}

// Host is the runtime of all policies. Its methods may be called from several
// goroutines.
type Host struct {
	runtime  wazero.Runtime
	cache    *codeCache // nil without a directory
	services Services
	workers  int
	open     atomic.Int64 // policies
}

// ErrOpen says that a host still has policies that were not closed.
var ErrOpen = errors.New("policies are still open")

// New starts a runtime. The caller closes it, after the policies. Errors wrap
// [ErrCache] when the directory for compiled code cannot be used.
func New(ctx context.Context, services Services, o Options) (*Host, error) {
	config := wazero.NewRuntimeConfig()
	if o.Interpreter {
		config = wazero.NewRuntimeConfigInterpreter()
	}
	// Memory that grows in place keeps its address, so that columns are found once.
	config = config.WithMemoryLimitPages(abi.MostPages).WithMemoryCapacityFromMax(true)
	h := &Host{services: services, workers: o.Workers}
	if o.Cache != "" && !o.Interpreter {
		cache, err := openCache(o.Cache)
		if err != nil {
			return nil, err
		}
		h.cache, config = cache, config.WithCompilationCache(cache.runtime)
	}
	h.runtime = wazero.NewRuntimeWithConfig(ctx, config)
	if err := h.offer(ctx); err != nil {
		return nil, errors.Join(err, h.Close(ctx))
	}
	return h, nil
}

// Close frees the runtime and all that was compiled. While a policy is open it does
// nothing but return [ErrOpen]: a guest may be running.
func (h *Host) Close(ctx context.Context) error {
	if n := h.open.Load(); n > 0 {
		return fmt.Errorf("host: %d %w", n, ErrOpen)
	}
	return errors.Join(h.runtime.Close(ctx), h.cache.Close(ctx))
}

// Load makes a policy with a number of instances of a module. params has a value for
// each of the manifest's parameters; nil stands for the defaults.
func (h *Host) Load(ctx context.Context, wasm []byte, instances int, params []float64) (*Policy, error) {
	m, err := Prepare(wasm)
	if err != nil {
		return nil, err
	}
	code, err := h.Compile(ctx, m)
	if err != nil {
		return nil, err
	}
	p, err := code.Start(ctx, instances, params)
	if err != nil {
		return nil, errors.Join(err, code.Close(ctx))
	}
	p.release = code.Close
	return p, nil
}

// Code is a compiled policy without instances.
type Code struct {
	host     *Host
	metered  *Metered
	compiled wazero.CompiledModule
}

// ErrCompile says that a module could not be compiled.
var ErrCompile = errors.New("policy does not compile")

// Compile compiles a module, or takes its code from the cache. Errors wrap
// [ErrCompile].
func (h *Host) Compile(ctx context.Context, m *Metered) (*Code, error) {
	compiled, err := h.cache.compile(experimental.WithCompilationWorkers(ctx, h.workers), h.runtime, m.Wasm)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCompile, m.Manifest.Name, err)
	}
	return &Code{h, m, compiled}, nil
}

// Start makes a policy with a number of instances, and with params as in
// [Host.Load]. Policies of one code may have different params. They are closed before
// the code is.
func (c *Code) Start(ctx context.Context, instances int, params []float64) (*Policy, error) {
	return c.StartWith(ctx, c.host.services, instances, params)
}

// StartWith is Start with services of the policy's own, in place of the host's: of two
// versions of a policy each has counters of its own.
func (c *Code) StartWith(ctx context.Context, services Services, instances int, params []float64) (*Policy, error) {
	m := c.metered
	values, err := settle(m.Manifest, params)
	if err != nil {
		return nil, err
	}
	p := &Policy{host: c.host, services: services, manifest: m.Manifest, params: values, slice: m.slice, compiled: c.compiled, export: m.export, unknowns: unknowns(m.Manifest)}
	if err := p.fill(ctx, max(instances, 1)); err != nil {
		return nil, err
	}
	c.host.open.Add(1)
	return p, nil
}

// Close frees the code.
func (c *Code) Close(ctx context.Context) error { return c.compiled.Close(ctx) }

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
