package abi

import "github.com/yardmaster/yardmaster/policies/module"

// ImportModule is the module under which the host offers its functions, and
// ImportWASI that of the stubs that Go's runtime and C's library link.
const (
	ImportModule = "ym1"
	ImportWASI   = "wasi_snapshot_preview1"
)

// Capability is what a policy must ask for in its manifest before it may import
// the functions that belong to it.
type Capability string

// The capabilities.
const (
	CapabilityState   Capability = "state"   // kv_get, kv_set, kv_add
	CapabilityLog     Capability = "log"     // log
	CapabilityMetrics Capability = "metrics" // counter_add, hist_observe
	CapabilityTime    Capability = "time"    // now_ms
	CapabilityRandom  Capability = "random"  // rand_u64
)

// Capabilities are all capabilities.
func Capabilities() []Capability {
	return []Capability{CapabilityState, CapabilityLog, CapabilityMetrics, CapabilityTime, CapabilityRandom}
}

type hostFunc struct {
	module.Import
	capability Capability // empty for what needs none
}

func host(c Capability, name, params, results string) hostFunc {
	return hostFunc{module.Import{Module: ImportModule, Name: name, Type: functype(params, results)}, c}
}

func wasi(name, params, results string) hostFunc {
	return hostFunc{module.Import{Module: ImportWASI, Name: name, Type: functype(params, results)}, ""}
}

// hostFuncs are the functions that the host offers. Pointers and lengths are i32.
//
//	log(level, ptr, len): a line of at most 1 KiB
//	now_ms() -> i64: Unix time in milliseconds, the same throughout a call
//	rand_u64() -> i64: the next of a sequence that follows from the request's id
//	counter_add(id, n): adds to the manifest's counter of that place
//	hist_observe(id, v): counts a value in the manifest's histogram of that place
//	kv_get(scope, key, keyLen, buf, bufLen) -> i32: the value's length, or -1; it is
//	copied if it fits
//	kv_set(scope, key, keyLen, value, valueLen) -> i32: 0, or -1 if refused
//	kv_add(scope, key, keyLen, delta) -> i64: the sum, or the least i64 if refused; a
//	number is 8 bytes, and any other value counts as 0
//
// Scope 0 is the node's own state, which may be lost; 1 is the cluster's.
func hostFuncs() []hostFunc {
	return []hostFunc{
		host(CapabilityLog, "log", "iii", ""),
		host(CapabilityTime, "now_ms", "", "I"),
		host(CapabilityRandom, "rand_u64", "", "I"),
		host(CapabilityMetrics, "counter_add", "iI", ""),
		host(CapabilityMetrics, "hist_observe", "iF", ""),
		host(CapabilityState, "kv_get", "iiiii", "i"),
		host(CapabilityState, "kv_set", "iiiii", "i"),
		host(CapabilityState, "kv_add", "iiiI", "I"),
		wasi("args_get", "ii", "i"),
		wasi("args_sizes_get", "ii", "i"),
		wasi("clock_time_get", "iIi", "i"),
		wasi("environ_get", "ii", "i"),
		wasi("environ_sizes_get", "ii", "i"),
		wasi("fd_write", "iiii", "i"),
		wasi("poll_oneoff", "iiii", "i"),
		wasi("proc_exit", "i", ""),
		wasi("random_get", "ii", "i"),
		wasi("sched_yield", "", "i"),
	}
}

// Imports are the functions that the host offers, for [module.Options].
func Imports() []module.Import {
	funcs := hostFuncs()
	out := make([]module.Import, len(funcs))
	for i, f := range funcs {
		out[i] = f.Import
	}
	return out
}

// capabilityOf is what an import needs.
func capabilityOf(i module.Import) Capability {
	for _, f := range hostFuncs() {
		if f.Module == i.Module && f.Name == i.Name {
			return f.capability
		}
	}
	return ""
}
