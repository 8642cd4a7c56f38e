package abi

import (
	"slices"

	"github.com/yardmaster/yardmaster/policies/module"
)

// Major and Minor are the version that the host speaks.
const (
	Major = 1
	Minor = 0
)

// Kind is what a policy decides.
type Kind string

// The kinds of policies.
const (
	Router     Kind = "router"     // which worker serves a request
	Admission  Kind = "admission"  // whether a request is served, and how urgently
	Autoscaler Kind = "autoscaler" // how many replicas each pool should have
	Observer   Kind = "observer"   // learns from outcomes, for the others
)

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{Router, Admission, Autoscaler, Observer} }

// The exports of a policy.
const (
	ExportMemory     = "memory"
	ExportGuard      = "ym_abi_1"    // () -> (): says which major version the guest speaks
	ExportLayout     = "ym_layout"   // () -> i32: where the header is
	ExportInitialize = "_initialize" // () -> (), optional: called once, first
	ExportConfigure  = "ym_configure"
	ExportScore      = "ym_score"
	ExportRoute      = "ym_route"
	ExportAdmit      = "ym_admit"
	ExportTick       = "ym_tick"
	ExportObserve    = "ym_observe"
)

// budgets are what a call may use: what is granted unless the manifest asks for
// less or more, and the most.
type budget struct{ standard, most int64 }

var budgets = map[Kind]budget{
	Router:     {1_000_000, 4_000_000},
	Admission:  {200_000, 1_000_000},
	Autoscaler: {5_000_000, 20_000_000},
	Observer:   {5_000_000, 20_000_000},
}

// MostFuel is the most that a policy of a kind may ask for a call.
func MostFuel(k Kind) int64 { return budgets[k].most }

// The pages of 64 KiB that a guest gets, unless its manifest asks for fewer or more.
const (
	StandardPages = 64
	MostPages     = 256
)

// entry is an export that a kind must have.
type entry struct {
	name string
	typ  module.FuncType
}

func functype(params, results string) module.FuncType {
	return module.FuncType{Params: valTypes(params), Results: valTypes(results)}
}

// valTypes reads types from letters: i for i32, I for i64, F for f64.
func valTypes(letters string) []module.ValType {
	var out []module.ValType
	for _, c := range letters {
		switch c {
		case 'i':
			out = append(out, module.I32)
		case 'I':
			out = append(out, module.I64)
		case 'F':
			out = append(out, module.F64)
		}
	}
	return out
}

// entries are the calls of which a policy of the kind has exactly one.
func (k Kind) entries() []entry {
	switch k {
	case Router:
		return []entry{{ExportScore, functype("i", "i")}, {ExportRoute, functype("i", "I")}}
	case Admission:
		return []entry{{ExportAdmit, functype("", "I")}}
	case Autoscaler:
		return []entry{{ExportTick, functype("i", "i")}}
	case Observer:
		return []entry{{ExportObserve, functype("i", "i")}}
	}
	return nil
}

// Outputs are the columns that a policy of the kind writes.
func (k Kind) Outputs() []Column {
	switch k {
	case Router:
		return []Column{{Name: "score", Type: F32, Help: "cost in seconds; the lowest wins, NaN is out"}}
	case Autoscaler:
		return []Column{
			{Name: "desired", Type: U32, Help: "replicas that the pool should have"},
			{Name: "reason", Type: U32, Help: "a number of the policy's own, shown beside the plan"},
		}
	default:
		return nil
	}
}

func (k Kind) known() bool { return slices.Contains(Kinds(), k) }
