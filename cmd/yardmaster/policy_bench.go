package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
	"github.com/yardmaster/yardmaster/server/admin"
)

// policyBench runs policies in this process, for commands that try them.
type policyBench struct {
	host   *host.Host
	world  *console
	loaded []*host.Policy
}

func newPolicyBench(ctx context.Context, out io.Writer) (*policyBench, error) {
	world := &console{out: out, state: map[string][]byte{}}
	h, err := host.New(ctx, world, host.Options{})
	if err != nil {
		return nil, err
	}
	return &policyBench{host: h, world: world}, nil
}

// close frees everything; nothing is lent any more.
func (b *policyBench) close(ctx context.Context) {
	for _, p := range b.loaded {
		_ = p.Close(ctx) // nothing is lent, so it cannot fail
	}
	_ = b.host.Close(ctx) // likewise
}

// router is a routing policy, from a file or of the binary.
func (b *policyBench) router(ctx context.Context, what string) (route.Policy, error) {
	if !isFile(what) {
		p, err := route.PolicyNamed(what)
		if err != nil {
			return nil, usage(fmt.Errorf("%w, or the file of a module", err))
		}
		return p, nil
	}
	path, brackets := native.CutParams(what)
	params, err := native.ParseParams(brackets)
	if err != nil {
		return nil, usage(fmt.Errorf("%q: %w", what, err))
	}
	module, err := moduleAt(path)
	if err != nil {
		return nil, err
	}
	return b.wasm(ctx, what, module, params)
}

// wasm makes a router of a module. Params are by name.
func (b *policyBench) wasm(ctx context.Context, name string, module []byte, params map[string]float64) (route.Policy, error) {
	p, err := b.host.Load(ctx, module, 1, nil)
	if err == nil {
		if err := checkParams(p.Manifest(), params); err != nil {
			return nil, usage(errors.Join(fmt.Errorf("%s: %w", name, err), p.Close(ctx)))
		}
	}
	if err == nil && len(params) > 0 {
		values := valuesOf(p.Manifest(), params)
		err = p.Close(ctx)
		if err == nil {
			p, err = b.host.Load(ctx, module, 1, values)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.loaded = append(b.loaded, p)
	fallback, err := route.PolicyNamed(orNative(p.Manifest().Fallback))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	r, err := host.NewRouter(p, fallback)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return virtual{r, b.world}, nil
}

// virtual is a router that lives in the time of what it is asked.
type virtual struct {
	*host.Router
	world *console
}

// Score implements route.Policy.
func (v virtual) Score(q *route.Query, c *route.Columns, cost []float64) {
	v.world.now = q.Now.UnixMilli()
	v.Router.Score(q, c, cost)
}

func orNative(name string) string {
	if name == "" {
		return route.Policies()[0].Name()
	}
	return name
}

// checkParams refuses a parameter that the manifest does not have, or not so.
func checkParams(m *abi.Manifest, params map[string]float64) error {
	for name, v := range params {
		i := slices.IndexFunc(m.Params, func(p abi.Param) bool { return p.Name == name })
		if i < 0 {
			return fmt.Errorf("it has no parameter %q", name)
		}
		if err := m.Params[i].Accepts(v); err != nil {
			return err
		}
	}
	return nil
}

// valuesOf is a value for each of the manifest's parameters.
func valuesOf(m *abi.Manifest, params map[string]float64) []float64 {
	values := make([]float64, len(m.Params))
	for i, p := range m.Params {
		values[i] = p.Default
		if v, ok := params[p.Name]; ok {
			values[i] = v
		}
	}
	return values
}

// part is one policy of what is bound.
func (b *policyBench) part(ctx context.Context, client *adminClient, part *admin.PolicyPart) (route.Policy, error) {
	if part.Digest == "" {
		return route.PolicyWith(part.Policy, part.Params)
	}
	resp, err := client.stream(ctx, http.MethodGet, policyPath(part.Digest)+"/module", http.NoBody)
	if err != nil {
		return nil, err
	}
	module, err := io.ReadAll(io.LimitReader(resp.Body, rollout.MaxModule+1))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	return b.wasm(ctx, part.Policy, module, part.Params)
}

// faultsOf is how often a policy in Wasm had no answer.
func faultsOf(p route.Policy) map[string]uint64 {
	r, ok := p.(virtual)
	if !ok {
		return nil
	}
	out := map[string]uint64{}
	for _, f := range host.Faults() {
		if n := r.Faults(f); n > 0 {
			out[f.String()] = n
		}
	}
	return out
}

// console is what guests are offered by commands that try them: lines go to the
// terminal, numbers nowhere, state is forgotten at the end.
type console struct {
	out   io.Writer
	state map[string][]byte
	lines int
	now   int64 // Unix time in milliseconds
}

const mostLines = 100

// Log implements host.Services.
func (c *console) Log(policy string, level int, line []byte) {
	if c.lines++; c.lines <= mostLines {
		fmt.Fprintf(c.out, "%s: %s\n", policy, line)
	}
}

// Count implements host.Services.
func (*console) Count(string, int, int64) {}

// Observe implements host.Services.
func (*console) Observe(string, int, float64) {}

// NowMillis implements host.Services.
func (c *console) NowMillis() int64 { return c.now }

// Get implements host.Services.
func (c *console) Get(_ string, _ bool, key, buf []byte) int {
	v, ok := c.state[string(key)]
	if !ok {
		return -1
	}
	copy(buf, v)
	return len(v)
}

// Set implements host.Services.
func (c *console) Set(_ string, _ bool, key, value []byte) bool {
	if _, known := c.state[string(key)]; !known && len(c.state) >= rollout.MaxStateKeys {
		return false
	}
	c.state[string(key)] = slices.Clone(value)
	return true
}

// Add implements host.Services.
func (c *console) Add(policy string, replicated bool, key []byte, delta int64) (int64, bool) {
	sum := delta
	if v := c.state[string(key)]; len(v) == 8 { // what is no number counts as 0
		sum += int64(binary.LittleEndian.Uint64(v))
	}
	return sum, c.Set(policy, replicated, key, binary.LittleEndian.AppendUint64(nil, uint64(sum)))
}
