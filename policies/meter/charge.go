package meter

import "github.com/yardmaster/yardmaster/policies/module"

// edit is code to write in front of the instruction at a place of the module.
type edit struct {
	at   int
	cost uint64    // what is charged for the entry or the loop that begins here
	op   module.Op // the operation on many bytes that follows, or 0
}

// function rewrites the i-th body.
func (w *writer) function(i int) {
	f := &w.m.Funcs[i]
	counted := w.survey(i)
	paid := f.Locals // the scratch local
	w.locals(f, counted)
	at := f.Code
	for _, e := range w.edits {
		w.body = append(w.body, w.m.Bytes[at:e.at]...)
		at = e.at
		if e.op != 0 {
			w.chargeCount(e.op, paid)
			continue
		}
		b := index(w.body, opGlobalGet, w.fuel)
		w.body = signed(append(b, opI64Const), int64(e.cost))
		w.charge(paid)
	}
	w.body = append(w.body, w.m.Bytes[at:f.End]...)
}

// survey finds where a function is to be charged, and how much. It says whether it
// has an operation whose cost depends on a count.
//
// A region is a function or a loop without the loops in it. Control gets back to
// an instruction only by way of a loop's header, so that each instruction of a
// region runs once at most for each time that the region is entered.
func (w *writer) survey(i int) (counted bool) {
	f := &w.m.Funcs[i]
	w.edits = append(w.edits[:0], edit{at: f.Code, cost: costEntry + uint64(f.Slots)})
	w.regions = append(w.regions[:0], 0)
	var in module.Instr
	for s := w.m.Scan(i); s.Next(&in); {
		region := w.regions[len(w.regions)-1]
		w.edits[region].cost += uint64(w.costs[in.Op])
		switch in.Op {
		case module.OpLoop:
			w.regions = append(w.regions, len(w.edits))
			w.edits = append(w.edits, edit{at: in.End, cost: costLoop})
		case module.OpBlock, module.OpIf:
			w.regions = append(w.regions, region)
		case module.OpEnd:
			w.regions = w.regions[:len(w.regions)-1]
		case module.OpMemoryCopy, module.OpMemoryFill, module.OpMemoryInit, module.OpTableInit, module.OpMemoryGrow:
			w.edits = append(w.edits, edit{at: in.Pos, op: in.Op})
			counted = true
		default:
		}
	}
	return counted
}

// locals begins the body with its declarations of locals and the meter's own: an
// i64, and an i32 if something is counted.
func (w *writer) locals(f *module.Func, counted bool) {
	declared := w.m.Bytes[f.Start:f.Code]
	groups := afterCount(declared)
	n := 0
	for i, c := range declared[:len(declared)-len(groups)] {
		n |= int(c&0x7f) << (7 * i)
	}
	n++
	if counted {
		n++
	}
	w.body = append(unsigned(w.body[:0], n), groups...)
	w.body = append(w.body, 1, typeI64)
	if counted {
		w.body = append(w.body, 1, typeI32)
	}
}

// charge writes code that sets the fuel to the difference of the two i64 on the
// stack and stops, or pauses, if that is
// below zero.
func (w *writer) charge(paid int) {
	b := index(append(w.body, opI64Sub), opLocalTee, paid)
	b = index(b, opGlobalSet, w.fuel)
	b = index(b, opLocalGet, paid)
	b = append(b, opI64Const, 0, opI64LtS, opIf, noResult)
	if w.pauses() {
		b = index(b, opCall, w.refill)
	} else {
		b = append(b, opUnreachable)
	}
	b = append(b, opEnd)
	w.body = b
}

// chargeCount writes code that charges for the count on the stack and leaves it
// there.
func (w *writer) chargeCount(op module.Op, paid int) {
	count := paid + 1
	b := index(w.body, opLocalTee, count)
	b = append(b, opI64ExtendU)
	switch op {
	case module.OpMemoryGrow:
		// What is more than can be had fails at no cost.
		b = append(b, opI64Const, pageShift, opI64Shl, opI64Const, 0)
		b = index(b, opLocalGet, count)
		b = signed(append(b, opI32Const), int64(w.o.Pages))
		b = append(b, opI32LeU, opSelect)
	case module.OpTableInit: // one unit an entry
	default:
		b = append(b, opI64Const, bytesShift, opI64ShrU)
	}
	b = index(b, opLocalSet, paid)
	b = index(b, opGlobalGet, w.fuel)
	w.body = index(b, opLocalGet, paid)
	w.charge(paid)
	w.body = index(w.body, opLocalGet, count)
}
