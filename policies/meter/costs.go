package meter

import (
	"strings"

	"github.com/yardmaster/yardmaster/policies/module"
)

// The costs in units of fuel. One is about the time of one simple instruction,
// a tenth of a nanosecond to one. What takes longer costs more, so that no code
// makes its fuel last; BenchmarkUnit measures it.
const (
	costEntry  = 10 // a function's entry, beside its slots and its instructions
	costLoop   = 3  // a loop's header, beside its instructions
	costLoad   = 12 // the memory may be slow
	costCall   = 4
	costTable  = 2  // a br_table
	costDrop   = 4  // of a segment
	costTrunc  = 12 // a conversion that checks its range
	costLanes  = 4  // lanes that are chosen by lanes
	costMul    = 8  // a product of vectors of i64, for which there is no instruction
	costDiv    = 12 // and roots
	costBytes  = 24 // a call of the engine's for many bytes, beside their number
	costShift  = 24 // an arithmetic shift of vectors of i64, likewise
	costEngine = 64 // what leaves the compiled code: growth of the memory

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

// costNamed tells slow instructions by their names, most by the verb, which is the
// same for scalars and vectors.
func costNamed(name string) uint8 {
	_, verb, _ := strings.Cut(name, ".")
	switch name {
	case "local.get", "i32.const", "i64.const", "drop", "nop":
		// Compiled, they are operands of others. A write of a local is not: where a loop
		// begins again, each that has changed is moved.
		return 0
	case "memory.grow":
		return costEngine
	case "memory.fill", "memory.copy", "memory.init", "table.init":
		return costBytes
	case "data.drop", "elem.drop":
		return costDrop
	case "i64x2.mul":
		return costMul
	case "i64x2.shr_s":
		return costShift
	case "i8x16.swizzle", "i8x16.shuffle", "i8x16.popcnt":
		return costLanes
	}
	switch {
	case strings.HasPrefix(verb, "div"), strings.HasPrefix(verb, "rem"), verb == "sqrt":
		return costDiv
	case strings.HasPrefix(verb, "load"):
		return costLoad
	case strings.HasPrefix(verb, "trunc_"):
		return costTrunc
	default:
		return 1
	}
}
