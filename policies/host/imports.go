package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/module"
)

// The bounds of what a guest may hand to the host.
const (
	mostLine  = 1 << 10
	mostLines = 16 // of one call; the rest are dropped
	mostKey   = 128
	mostValue = 4 << 10
	mostOps   = 8 // reads and writes of state in one call
)

// What WASI functions return.
const (
	wasiOK     = 0
	wasiFault  = 21
	wasiNotSup = 52
)

var errExit = errors.New("guest exited")

// function is a host function: it reads its arguments from the stack and leaves its
// result there.
type function func(in *Instance, stack []uint64)

// hostCost is what a call of the host costs in fuel, beside a unit for 8 bytes.
const hostCost = 100

// offer instantiates the modules that guests import from. Every function of the
// contract is there, or New fails.
func (h *Host) offer(ctx context.Context) error {
	builders := map[string]wazero.HostModuleBuilder{}
	for _, i := range abi.Imports() {
		f, ok := functions()[i.Name]
		if !ok {
			return fmt.Errorf("host: the contract has %s.%s, and there is no function for it", i.Module, i.Name)
		}
		b := builders[i.Module]
		if b == nil {
			b = h.runtime.NewHostModuleBuilder(i.Module)
			builders[i.Module] = b
		}
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, _ api.Module, stack []uint64) {
			in := ctx.Value(instanceKey{}).(*Instance)
			in.charge(hostCost)
			f(in, stack)
		}), apiTypes(i.Type.Params), apiTypes(i.Type.Results)).Export(i.Name)
	}
	for name, b := range builders {
		if _, err := b.Instantiate(ctx); err != nil {
			return fmt.Errorf("host: module %s: %w", name, err)
		}
	}
	return nil
}

func apiTypes(types []module.ValType) []api.ValueType {
	out := make([]api.ValueType, len(types))
	for i, t := range types {
		out[i] = api.ValueType(t)
	}
	return out
}

// charge takes fuel for what the host does; the guest stops at its next check.
func (in *Instance) charge(units int) {
	in.fuel.Set(in.fuel.Get() - uint64(units))
}

// bytes is a piece of the guest's memory of at most limit bytes, or nil.
func (in *Instance) bytes(ptr, size uint64, limit int) []byte {
	if uint64(uint32(size)) > uint64(limit) {
		return nil
	}
	b, ok := in.guest.Memory().Read(uint32(ptr), uint32(size))
	if !ok {
		return nil
	}
	in.charge(len(b) / 8)
	return b
}

// random is the next of the numbers that follow from the seed (SplitMix64).
func (in *Instance) random() uint64 {
	in.seed += 0x9e37_79b9_7f4a_7c15
	z := in.seed
	z = (z ^ z>>30) * 0xbf58_476d_1ce4_e5b9
	z = (z ^ z>>27) * 0x94d0_49bb_1331_11eb
	return z ^ z>>31
}

// millis reads the clock when a call first asks for it, for that takes as long as all
// the rest of a small call.
func (in *Instance) millis() int64 {
	if in.now == 0 {
		in.now = in.services().NowMillis()
	}
	return in.now
}

func (in *Instance) services() Services { return in.policy.services }

// functions are the implementations by name.
func functions() map[string]function {
	return map[string]function{
		"log":          logLine,
		"now_ms":       func(in *Instance, s []uint64) { s[0] = uint64(in.millis()) },
		"rand_u64":     func(in *Instance, s []uint64) { s[0] = in.random() },
		"counter_add":  counterAdd,
		"hist_observe": histObserve,
		"kv_get":       kvGet,
		"kv_set":       kvSet,
		"kv_add":       kvAdd,

		"args_get":          func(_ *Instance, s []uint64) { s[0] = wasiOK },
		"args_sizes_get":    wasiNone,
		"environ_get":       func(_ *Instance, s []uint64) { s[0] = wasiOK },
		"environ_sizes_get": wasiNone,
		"clock_time_get":    wasiClock,
		"fd_write":          wasiWrite,
		"poll_oneoff":       func(_ *Instance, s []uint64) { s[0] = wasiNotSup },
		"proc_exit":         func(_ *Instance, s []uint64) { panic(fmt.Errorf("%w with status %d", errExit, uint32(s[0]))) },
		"random_get":        wasiRandom,
		"sched_yield":       func(_ *Instance, s []uint64) { s[0] = wasiOK },
	}
}

func (in *Instance) log(level int, line []byte) {
	if in.lines++; in.lines <= mostLines && len(line) > 0 {
		in.services().Log(in.policy.manifest.Name, min(level, 3), line)
	}
}

func logLine(in *Instance, s []uint64) {
	in.log(int(uint32(s[0])), in.bytes(s[1], min(uint64(uint32(s[2])), mostLine), mostLine))
}

func counterAdd(in *Instance, s []uint64) {
	if id := uint32(s[0]); int64(id) < int64(len(in.policy.manifest.Counters)) {
		in.services().Count(in.policy.manifest.Name, int(id), int64(s[1]))
	}
}

func histObserve(in *Instance, s []uint64) {
	if id := uint32(s[0]); int64(id) < int64(len(in.policy.manifest.Histograms)) {
		in.services().Observe(in.policy.manifest.Name, int(id), math.Float64frombits(s[1]))
	}
}

// state reads what all functions of state begin with: the scope and the key. It says
// whether this call may use state once more, and write it if it wants to: replicated
// state is for kinds that run in one place.
func (in *Instance) state(s []uint64, write bool) (replicated bool, key []byte, ok bool) {
	in.ops++
	scope := uint32(s[0])
	key = in.bytes(s[1], s[2], mostKey)
	kind := in.policy.manifest.Kind
	ok = in.ops <= mostOps && scope <= 1 && len(key) > 0
	if write && scope == 1 {
		ok = ok && (kind == abi.Autoscaler || kind == abi.Observer)
	}
	return scope == 1, key, ok
}

func kvGet(in *Instance, s []uint64) {
	replicated, key, ok := in.state(s, false)
	buf := in.bytes(s[3], s[4], mostValue)
	n := -1
	if ok && buf != nil {
		n = in.services().Get(in.policy.manifest.StateOf(), replicated, key, buf)
	}
	s[0] = uint64(uint32(int32(n)))
}

func kvSet(in *Instance, s []uint64) {
	replicated, key, ok := in.state(s, true)
	value := in.bytes(s[3], s[4], mostValue)
	ok = ok && value != nil && in.services().Set(in.policy.manifest.StateOf(), replicated, key, value)
	s[0] = 0
	if !ok {
		s[0] = math.MaxUint32
	}
}

func kvAdd(in *Instance, s []uint64) {
	replicated, key, ok := in.state(s, true)
	sum := int64(math.MinInt64)
	if ok {
		if v, done := in.services().Add(in.policy.manifest.StateOf(), replicated, key, int64(s[3])); done {
			sum = v
		}
	}
	s[0] = uint64(sum)
}

// wasiNone says that there are no arguments and no variables.
func wasiNone(in *Instance, s []uint64) {
	m := in.guest.Memory()
	if m.WriteUint32Le(uint32(s[0]), 0) && m.WriteUint32Le(uint32(s[1]), 0) {
		s[0] = wasiOK
		return
	}
	s[0] = wasiFault
}

// wasiClock is never 0, at which Go's runtime gives up.
func wasiClock(in *Instance, s []uint64) {
	s[0] = wasiResult(in.guest.Memory().WriteUint64Le(uint32(s[2]), uint64(in.millis())*1_000_000+1))
}

func wasiResult(ok bool) uint64 {
	if ok {
		return wasiOK
	}
	return wasiFault
}

// wasiWrite logs the first piece of what is written, whatever the file, and takes
// all of it.
func wasiWrite(in *Instance, s []uint64) {
	const mostPieces = 16
	pieces := in.bytes(s[1], 8*uint64(uint32(s[2])), 8*mostPieces)
	total := uint32(0)
	for i := 0; i+8 <= len(pieces); i += 8 {
		ptr, size := binary.LittleEndian.Uint32(pieces[i:]), binary.LittleEndian.Uint32(pieces[i+4:])
		if i == 0 {
			in.log(1, in.bytes(uint64(ptr), min(uint64(size), mostLine), mostLine))
		}
		total += size
	}
	s[0] = wasiResult(pieces != nil && in.guest.Memory().WriteUint32Le(uint32(s[3]), total))
}

func wasiRandom(in *Instance, s []uint64) {
	b := in.bytes(s[0], s[1], mostValue)
	var word uint64
	for i := range b {
		if i%8 == 0 {
			word = in.random()
		}
		b[i] = byte(word >> (i % 8 * 8))
	}
	s[0] = wasiResult(b != nil)
}
