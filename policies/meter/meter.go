package meter

import (
	"errors"
	"fmt"

	"github.com/yardmaster/yardmaster/policies/module"
)

// The names under which a metered module exports its mutable globals, of i64.
const (
	// Export is the fuel. The host sets it before each call; below zero afterwards it
	// was used up.
	Export = module.Reserved + "fuel"
	// ExportReserve is what is left beside the fuel, if [Options.Slice] is set. The
	// budget is the sum of both; the host gives Slice of it to the fuel and the rest
	// to the reserve.
	ExportReserve = module.Reserved + "reserve"
)

// ErrGrowth says that a function, or the memory, is larger than allowed once it is
// metered.
var ErrGrowth = errors.New("metered module over a limit")

// maxBody is the most bytes that a metered body may have. A function's entry takes
// about twenty bytes and so does each loop, so that only one made of empty loops
// comes near. Bodies of this size compile in about a second.
const maxBody = 128 << 10

// Options say what is granted.
type Options struct {
	Pages uint32 // the most pages of 64 KiB that the memory may have
	// Slice, if positive, is how many units may go by without the host getting a
	// moment. Compiled code cannot be interrupted: while it runs, a garbage collection
	// of the whole process waits. A unit can take a hundred nanoseconds where memory is
	// slow, so that large budgets need this. It makes memory-bound code slower by up to
	// a third, so that small budgets are better without; a module without a memory
	// never pauses.
	Slice int64
}

// Rewrite returns the bytes of a module that does what m does and counts. Errors
// wrap [ErrGrowth].
func Rewrite(m *module.Module, o Options) ([]byte, error) {
	if m.Memory != nil && m.Memory.Min > o.Pages {
		return nil, fmt.Errorf("%w: the memory begins with %d pages of 64 KiB, and %d are granted", ErrGrowth, m.Memory.Min, o.Pages)
	}
	w := writer{m: m, o: o, costs: price(), fuel: len(m.Globals), reserve: len(m.Globals) + 1, refill: len(m.Imports) + len(m.Funcs), out: make([]byte, 0, len(m.Bytes)+len(m.Bytes)/8+64)}
	w.out = append(w.out, m.Bytes[:8]...)
	for _, s := range m.Sections {
		if s.ID == module.SectionCustom {
			continue
		}
		w.between(s.ID)
		if err := w.section(s); err != nil {
			return nil, err
		}
	}
	w.between(module.SectionData)
	return w.out, nil
}

// writer writes one module.
type writer struct {
	m             *module.Module
	o             Options
	costs         *costs
	fuel, reserve int // the globals' indices
	refill        int // the function's index, where the module pauses
	out           []byte

	global, export bool // these sections have been written

	edits   []edit
	regions []int  // of the blocks that are open: the edits that pay for them
	content []byte // of the section that is being written
	body    []byte // of the function that is being written
}

// between writes the sections that the meter needs, that the module lacks, and
// that belong in front of the section of the given number.
func (w *writer) between(id byte) {
	if !w.global && id > module.SectionGlobal {
		w.emit(module.SectionGlobal, w.globals(nil, 0))
	}
	if !w.export && id > module.SectionExport {
		w.emit(module.SectionExport, w.exports(nil, 0))
	}
}

func (w *writer) section(s module.Section) error {
	rest := w.m.Bytes[s.Body:s.End]
	switch s.ID {
	case module.SectionType:
		w.emit(s.ID, w.types(afterCount(rest)))
	case module.SectionFunction:
		w.emit(s.ID, w.functions(afterCount(rest)))
	case module.SectionMemory:
		w.emit(s.ID, w.memory())
	case module.SectionGlobal:
		w.emit(s.ID, w.globals(afterCount(rest), len(w.m.Globals)))
	case module.SectionExport:
		w.emit(s.ID, w.exports(afterCount(rest), len(w.m.Exports)))
	case module.SectionCode:
		if err := w.code(); err != nil {
			return err
		}
		w.emit(s.ID, w.content)
	default:
		w.emit(s.ID, rest)
	}
	return nil
}

// emit writes a section. The content is not kept.
func (w *writer) emit(id byte, content []byte) {
	w.out = unsigned(append(w.out, id), len(content))
	w.out = append(w.out, content...)
	w.global = w.global || id == module.SectionGlobal
	w.export = w.export || id == module.SectionExport
}

// afterCount skips a LEB128 number.
func afterCount(b []byte) []byte {
	for i, c := range b {
		if c < 0x80 {
			return b[i+1:]
		}
	}
	return nil
}

// memory is the memory section with its maximum lowered to what is granted, or to
// its size if no code of the guest grows it: hosts reserve the maximum.
func (w *writer) memory() []byte {
	mem := w.m.Memory
	if mem == nil {
		return []byte{0}
	}
	b := unsigned([]byte{1, 1}, int(mem.Min))
	if !w.m.Grows {
		return unsigned(b, int(mem.Min))
	}
	return unsigned(b, int(min(mem.Max, w.o.Pages)))
}

// added is how many globals the meter adds, and exports of them.
func (w *writer) added() int {
	if w.pauses() {
		return 2
	}
	return 1
}

// globals is the global section with the fuel behind the n that are there.
func (w *writer) globals(there []byte, n int) []byte {
	b := append(unsigned(nil, n+w.added()), there...)
	b = append(b, typeI64, 1, opI64Const, 0, opEnd)
	if w.pauses() {
		b = append(b, typeI64, 1, opI64Const, 0, opEnd)
	}
	return b
}

// exports is the export section with the fuel behind the n that are there.
func (w *writer) exports(there []byte, n int) []byte {
	b := append(unsigned(nil, n+w.added()), there...)
	b = append(unsigned(b, len(Export)), Export...)
	b = unsigned(append(b, byte(module.KindGlobal)), w.fuel)
	if w.pauses() {
		b = append(unsigned(b, len(ExportReserve)), ExportReserve...)
		b = unsigned(append(b, byte(module.KindGlobal)), w.reserve)
	}
	return b
}

// code makes the code section's content.
func (w *writer) code() error {
	n := len(w.m.Funcs)
	if w.pauses() {
		n++
	}
	w.content = unsigned(w.content[:0], n)
	for i := range w.m.Funcs {
		w.function(i)
		if len(w.body) > maxBody {
			return fmt.Errorf("%w: function %d has %d bytes once its loops are metered; at most %d are allowed: split it", ErrGrowth, len(w.m.Imports)+i, len(w.body), maxBody)
		}
		w.content = unsigned(w.content, len(w.body))
		w.content = append(w.content, w.body...)
	}
	if w.pauses() {
		body := w.refiller()
		w.content = unsigned(w.content, len(body))
		w.content = append(w.content, body...)
	}
	return nil
}
