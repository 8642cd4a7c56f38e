package meter

import (
	"strings"

	"github.com/yardmaster/yardmaster/policies/module"
)

// The costs in units of fuel. One is about the time of one simple instruction,
// from a tenth of a nanosecond to half of one.
const (
	costEntry = 10 // a function's entry, beside its slots and its instructions
	costLoop  = 1  // a loop's header, beside its instructions
	costCall  = 4
	costTable = 2 // a br_table
	costDiv   = 12
	costSqrt  = 6
	costTrunc = 3 // a conversion that checks its range

	// bytesShift makes units of bytes: one for eight.
	bytesShift = 3
	// pageShift makes units of pages: what clearing one costs.
	pageShift = 13
)

// costs are the costs of all opcodes.
type costs [0x300]uint8

// price lists the costs of all opcodes.
func price() *costs {
	var c costs
	for op := range c {
		c[op] = costOf(module.Op(op))
	}
	return &c
}

func costOf(op module.Op) uint8 {
	switch op {
	case module.OpBlock, module.OpElse, module.OpEnd, module.OpUnreachable:
		return 0
	case module.OpLoop:
		return 0 // its header is charged where it is
	case module.OpCall, module.OpCallIndirect:
		return costCall
	case module.OpBrTable:
		return costTable
	default:
		return costNamed(op.String())
	}
}

// costNamed tells slow instructions by the ends of their names, which are the same
// for scalars and vectors.
func costNamed(name string) uint8 {
	_, verb, _ := strings.Cut(name, ".")
	switch {
	case strings.HasPrefix(verb, "div"), strings.HasPrefix(verb, "rem"):
		return costDiv
	case verb == "sqrt":
		return costSqrt
	case strings.HasPrefix(verb, "trunc_"):
		return costTrunc
	case strings.HasPrefix(name, "memory.") && verb != "size", strings.HasPrefix(name, "table."):
		return costCall
	default:
		return 1
	}
}
