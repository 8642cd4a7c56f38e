package host

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/meter"
)

// The reasons for which a call has no answer. After the first two the instance is
// replaced.
var (
	// ErrFuel says that the budget was used up.
	ErrFuel = errors.New("policy out of fuel")
	// ErrTrap says that the guest trapped.
	ErrTrap = errors.New("policy trapped")
	// ErrRefused says that the guest answered that it cannot say.
	ErrRefused = errors.New("policy has no answer")
	// ErrRows says that there are more rows than the guest has room for.
	ErrRows = errors.New("too many rows for the policy")
)

// Instance is one copy of a guest, lent to one caller at a time.
type Instance struct {
	policy *Policy
	guest  api.Module
	layout *abi.Layout
	// ctx is how host functions find the instance that calls them: wazero hands it
	// through, and making one for each call would allocate.
	ctx context.Context

	inputs, outputs [][]uint32 // columns in the guest's memory
	request         []byte
	header          uint32 // where the guest said that its header is
	budget          int64  // of the present call
	started         int64  // fuel that it took to get here
	fuel, reserve   api.MutableGlobal
	call            api.Function
	stack           [1]uint64
	seed            uint64 // state of the random numbers
	known           uint64 // a bit for each input column that is filled; the others say unknown
	now             int64  // Unix time in milliseconds, the same throughout a call; 0 until it is asked for
	ops             int    // reads and writes of state in this call
	lines           int    // lines logged in this call
	failed          bool
}

type instanceKey struct{}

// instantiate makes an instance that is ready to be called.
func (p *Policy) instantiate(ctx context.Context) (*Instance, error) {
	in := &Instance{policy: p}
	in.ctx = context.WithValue(context.WithoutCancel(ctx), instanceKey{}, in)
	guest, err := p.host.runtime.InstantiateModule(experimental.WithMemoryAllocator(ctx, memories{}), p.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return nil, fmt.Errorf("host: instantiate %s: %w", p.manifest.Name, err)
	}
	in.guest = guest
	if err := in.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("host: prepare %s: %w", p.manifest.Name, err), guest.Close(ctx))
	}
	return in, nil
}

// prepare initialises the guest, finds its buffers and hands it its parameters.
func (in *Instance) prepare() error {
	var ok bool
	if in.fuel, ok = in.guest.ExportedGlobal(meter.Export).(api.MutableGlobal); !ok {
		return fmt.Errorf("%w: not metered", ErrTrap)
	}
	in.reserve, _ = in.guest.ExportedGlobal(meter.ExportReserve).(api.MutableGlobal)
	if f := in.guest.ExportedFunction(abi.ExportInitialize); f != nil {
		in.begin(initFuel)
		if err := in.run(f, abi.ExportInitialize); err != nil {
			return err
		}
		in.started = initFuel - in.left()
	}
	setup := in.setupFuel()
	in.begin(setup)
	if err := in.run(in.guest.ExportedFunction(abi.ExportLayout), abi.ExportLayout); err != nil {
		return err
	}
	in.header = uint32(in.stack[0])
	whole := in.whole()
	layout, err := abi.ReadLayout(whole, in.header, in.policy.manifest)
	if err != nil {
		return err
	}
	in.layout = layout
	in.view(whole)
	in.call = in.guest.ExportedFunction(in.policy.export)
	if err := in.configure(whole); err != nil {
		return err
	}
	in.started += setup - in.left()
	return nil
}

// setupFuel is what ym_layout and ym_configure may use together.
func (in *Instance) setupFuel() int64 {
	if in.policy.slice > 0 {
		return setupFuel
	}
	return PauseAbove
}

// whole is all of the guest's memory.
func (in *Instance) whole() []byte {
	memory := in.guest.ExportedMemory(abi.ExportMemory)
	b, _ := memory.Read(0, memory.Size())
	return b
}

// Stable asks the guest for its layout again and says whether it is still what it was
// in the beginning. Errors wrap [abi.ErrLayout], [ErrFuel] or [ErrTrap].
func (in *Instance) Stable() error {
	in.begin(in.setupFuel())
	if err := in.run(in.guest.ExportedFunction(abi.ExportLayout), abi.ExportLayout); err != nil {
		return err
	}
	if at := uint32(in.stack[0]); at != in.header {
		return fmt.Errorf("%w: the header was at %#x and is at %#x now", abi.ErrLayout, in.header, at)
	}
	now, err := abi.ReadLayout(in.whole(), in.header, in.policy.manifest)
	switch {
	case err != nil:
		return err
	case !reflect.DeepEqual(now, in.layout):
		return fmt.Errorf("%w: the header at %#x says something else than in the beginning", abi.ErrLayout, in.header)
	}
	return nil
}

// StartFuel is what the guest used before its first call: to initialise, to show its
// layout, and to take its params.
func (in *Instance) StartFuel() int64 { return in.started }

// MemoryBytes is the size of the guest's memory.
func (in *Instance) MemoryBytes() int64 {
	return int64(in.guest.ExportedMemory(abi.ExportMemory).Size())
}

// view finds the buffers. The memory keeps its address for as long as the guest
// lives, for the runtime has reserved its maximum.
func (in *Instance) view(whole []byte) {
	column := func(at uint32) []uint32 {
		return unsafe.Slice((*uint32)(unsafe.Pointer(&whole[at])), in.layout.Rows)
	}
	for _, at := range in.layout.Inputs {
		in.inputs = append(in.inputs, column(at))
	}
	for _, at := range in.layout.Outputs {
		in.outputs = append(in.outputs, column(at))
	}
	for i := range in.inputs {
		in.forget(i)
	}
	r := in.layout.Request
	in.request = whole[r.At : r.At+r.Size : r.At+r.Size]
}

func (in *Instance) configure(whole []byte) error {
	at := in.layout.Params
	abi.PutParams(whole[at.At:at.At+at.Size], in.policy.manifest.Params, in.policy.params)
	in.stack[0] = uint64(8 * len(in.policy.params))
	if err := in.run(in.guest.ExportedFunction(abi.ExportConfigure), abi.ExportConfigure); err != nil {
		return err
	}
	if code := int32(in.stack[0]); code != 0 {
		return fmt.Errorf("%w: %s returned %d for its params", ErrRefused, abi.ExportConfigure, code)
	}
	return nil
}

// refuel sets the budget.
func (in *Instance) refuel(budget int64) {
	if in.reserve != nil {
		first := min(budget, in.policy.slice)
		in.reserve.Set(uint64(budget - first))
		budget = first
	}
	in.fuel.Set(uint64(budget))
}

// run calls a function with what is on the stack.
func (in *Instance) run(f api.Function, name string) error {
	err := f.CallWithStack(in.ctx, in.stack[:])
	if err == nil {
		return nil
	}
	in.failed = true
	if int64(in.fuel.Get()) >= 0 {
		return fmt.Errorf("%w: %s: %w", ErrTrap, name, err)
	}
	if most := abi.MostFuel(in.policy.manifest.Kind); name == in.policy.export && in.budget < most {
		return fmt.Errorf("%w: %s used all %d units; \"fuel\" in the manifest may ask for up to %d", ErrFuel, name, in.budget, most)
	}
	return fmt.Errorf("%w: %s used all %d units", ErrFuel, name, in.budget)
}

// Rows is how many rows the columns have room for.
func (in *Instance) Rows() int { return in.layout.Rows }

// F32 is the manifest's input column of that place in the guest's memory, with Rows
// values. It may be written until the call, and not be kept after Put.
func (in *Instance) F32(column int) []float32 { return floats(in.inputs[column]) }

// U32 is F32 for columns of that type.
func (in *Instance) U32(column int) []uint32 { return in.inputs[column] }

func floats(words []uint32) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(words))), len(words))
}

// Request is the request block, of the kind's size at least.
func (in *Instance) Request() []byte { return in.request }

// Seed sets where the guest's random numbers begin.
func (in *Instance) Seed(seed uint64) { in.seed = seed }

// invoke makes the call with an argument and returns its result.
func (in *Instance) invoke(export string, arg int) (uint64, error) {
	switch {
	case export != in.policy.export:
		return 0, fmt.Errorf("%w: it answers by %s, not by %s", ErrRefused, in.policy.export, export)
	case arg > in.layout.Rows:
		return 0, fmt.Errorf("%w: %d of %d", ErrRows, arg, in.layout.Rows)
	}
	in.begin(in.policy.manifest.Fuel)
	in.stack[0] = uint64(arg)
	if err := in.run(in.call, in.policy.export); err != nil {
		return 0, err
	}
	return in.stack[0], nil
}

// begin sets what a call may use.
func (in *Instance) begin(budget int64) {
	in.refuel(budget)
	in.budget = budget
	in.ops, in.lines, in.now = 0, 0, 0
}

// Score calls a router over n rows and returns its scores, a view of the guest's
// memory that is valid until Put. Errors wrap [ErrFuel], [ErrTrap], [ErrRefused] or
// [ErrRows], as everywhere.
func (in *Instance) Score(n int) ([]float32, error) {
	if err := in.done(in.invoke(abi.ExportScore, n)); err != nil {
		return nil, err
	}
	return floats(in.outputs[0])[:n], nil
}

// done makes an error of a result that is not zero.
func (in *Instance) done(code uint64, err error) error {
	if err == nil && int32(code) != 0 {
		err = fmt.Errorf("%w: %s returned %d", ErrRefused, in.policy.export, int32(code))
	}
	return err
}

// Route calls a router that picks one of n rows itself. That it has no opinion is an
// error that wraps [ErrRefused].
func (in *Instance) Route(n int) (int, error) {
	row, err := in.invoke(abi.ExportRoute, n)
	switch {
	case err != nil:
		return 0, err
	case int64(row) == -1:
		return 0, fmt.Errorf("%w: %w", ErrRefused, errAbstains)
	case row >= uint64(n):
		return 0, fmt.Errorf("%w: it picked row %d of %d", ErrRefused, int64(row), n)
	}
	return int(row), nil
}

// Admit calls an admission policy on the request block.
func (in *Instance) Admit() (abi.Verdict, error) {
	v, err := in.invoke(abi.ExportAdmit, 0)
	if err != nil {
		return abi.Verdict{}, err
	}
	return abi.ReadVerdict(v)
}

// Tick calls an autoscaler and returns, for each pool, how many replicas it wants
// and why. The columns have a row for each sample of each pool.
func (in *Instance) Tick(pools int) (desired, reason []uint32, err error) {
	if err := in.done(in.invoke(abi.ExportTick, pools)); err != nil {
		return nil, nil, err
	}
	return in.outputs[0][:pools], in.outputs[1][:pools], nil
}

// Observe shows an observer n outcomes.
func (in *Instance) Observe(n int) error { return in.done(in.invoke(abi.ExportObserve, n)) }

// Used is the fuel that the last call used.
func (in *Instance) Used() int64 { return in.budget - in.left() }

func (in *Instance) left() int64 {
	left := int64(in.fuel.Get())
	if in.reserve != nil {
		left += int64(in.reserve.Get())
	}
	return left
}
