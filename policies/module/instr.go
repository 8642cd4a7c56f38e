package module

import "fmt"

// Op is an opcode: one byte as it is, those behind the byte 0xFC from 0x100, those
// behind 0xFD (SIMD) from 0x200.
type Op uint16

// The opcodes that readers of instructions need to tell from others.
const (
	OpUnreachable  Op = 0x00
	OpBlock        Op = 0x02
	OpLoop         Op = 0x03
	OpIf           Op = 0x04
	OpElse         Op = 0x05
	OpEnd          Op = 0x0b
	OpBr           Op = 0x0c
	OpBrIf         Op = 0x0d
	OpBrTable      Op = 0x0e
	OpReturn       Op = 0x0f
	OpCall         Op = 0x10
	OpCallIndirect Op = 0x11
	OpMemoryGrow   Op = 0x40
	OpMemoryInit   Op = 0x108
	OpMemoryCopy   Op = 0x10a
	OpMemoryFill   Op = 0x10b
	OpTableInit    Op = 0x10c

	bulk   Op = 0x100 // the first behind 0xFC
	vector Op = 0x200 // the first behind 0xFD
)

const (
	opDrop       Op = 0x1a
	opSelect     Op = 0x1b
	opSelectType Op = 0x1c
	opLocalGet   Op = 0x20
	opLocalSet   Op = 0x21
	opLocalTee   Op = 0x22
	opGlobalGet  Op = 0x23
	opGlobalSet  Op = 0x24
	opTableGet   Op = 0x25
	opTableSet   Op = 0x26
	opRefNull    Op = 0xd0
	opRefIsNull  Op = 0xd1
	opRefFunc    Op = 0xd2
	opDataDrop   Op = 0x109
	opElemDrop   Op = 0x10d
	opTableCopy  Op = 0x10e
	opTableGrow  Op = 0x10f
	opTableSize  Op = 0x110
	opTableFill  Op = 0x111
)

// imm is what follows an opcode.
type imm uint8

const (
	immNone imm = iota
	immIndex
	immTwoIndex
	immIndexZero // an index, then the memory's, which is 0
	immZero      // the memory's index
	immTwoZero
	immMem // alignment and offset
	immMemLane
	immLane
	immI32
	immI64
	immF32
	immF64
	imm128
	immShuffle
	immBlock
	immTypes
	immType
	immTable
)

// opInfo is what is known of an opcode.
type opInfo struct {
	sig   sig
	imm   imm
	align uint8 // log2 of the natural alignment, or the number of lanes
	name  string
}

func (op Op) info() *opInfo {
	switch {
	case op < bulk:
		return &plainOps[op]
	case op < vector:
		if int(op-bulk) < len(bulkOps) {
			return &bulkOps[op-bulk]
		}
	case int(op-vector) < len(vectorOps):
		return &vectorOps[op-vector]
	}
	return &opInfo{}
}

// String is the instruction's name in the text format, or empty if there is none.
func (op Op) String() string { return op.info().name }

// Instr is one instruction of a body.
type Instr struct {
	Op       Op
	Pos, End int    // it takes the bytes [Pos, End) of the module
	X, Y     uint32 // its indices as they stand: label, local, function, type, segment, table
	list     int    // where the labels of a br_table begin
	block    blockType
	typ      ValType // of ref.null, or of a select
}

// blockType is the type of a block: none, one result, or one of the module's.
type blockType struct {
	index  int64 // the module's type, if not negative
	result ValType
}

// instr reads one instruction.
func (r *reader) instr(in *Instr, labels int) *opInfo {
	in.Pos = r.pos
	op := Op(r.byte())
	switch op {
	case 0xfc:
		op = r.prefixed(in.Pos, bulk, "")
	case 0xfd:
		op = r.prefixed(in.Pos, vector, "relaxed SIMD instructions")
	default:
	}
	info := op.info()
	if info.name == "" {
		r.badOp(in.Pos, op)
		return info
	}
	in.Op = op
	r.immediate(in, info, labels)
	in.End = r.pos
	return info
}

// prefixed reads the second part of an opcode; above is what lies beyond 255.
//
// The number must be as short as it can be. wazero takes the first byte behind
// 0xFD for the whole of it, and what follows for an instruction of its own: that
// of 128 and above is 0x01, which happens to be nop. Longer numbers would be one
// instruction to us and others to it, out of the meter's sight.
func (r *reader) prefixed(at int, first Op, above string) Op {
	start := r.pos
	n := r.u32()
	switch {
	case n <= 0xff && (r.pos-start == 1 || r.pos-start == 2 && n >= 0x80):
		return first + Op(n)
	case n <= 0xff:
		r.failf(ErrFeature, at, "the instruction %d behind the prefix %#x takes %d bytes for its number; use the shortest encoding", n, r.b[at], r.pos-start)
	case above != "" && n <= 0x1ff:
		r.foreign(at, above)
	default:
		r.failf(ErrMalformed, at, "there is no instruction %d behind the prefix %#x", n, r.b[at])
	}
	return OpUnreachable
}

// foreignOps are opcodes of proposals, by what asks for them.
var foreignOps = map[Op]string{
	0x06: "exceptions", 0x07: "exceptions", 0x08: "exceptions", 0x09: "exceptions", 0x0a: "exceptions",
	0x18: "exceptions", 0x19: "exceptions", 0x1f: "exceptions",
	0x12: "tail calls", 0x13: "tail calls", 0x15: "tail calls",
	0x14: "typed function references", 0xd4: "typed function references", 0xd5: "typed function references", 0xd6: "typed function references",
	0xd3: "garbage-collected objects", 0xfb: "garbage-collected objects",
	0xfe: "threads and atomic instructions",
}

func (r *reader) badOp(at int, op Op) {
	if r.err != nil {
		return
	}
	if feature, ok := foreignOps[op]; ok {
		r.foreign(at, feature)
		return
	}
	if op >= bulk {
		r.failf(ErrMalformed, at, "there is no instruction %d behind the prefix %#x", op&0xff, r.b[at])
		return
	}
	r.failf(ErrMalformed, at, "there is no instruction %#x", uint16(op))
}

// immediate reads what follows the opcode.
func (r *reader) immediate(in *Instr, info *opInfo, labels int) {
	switch info.imm {
	case immNone:
	case immIndex:
		in.X = r.u32()
	case immTwoIndex:
		in.X, in.Y = r.u32(), r.u32()
	case immIndexZero:
		in.X = r.u32()
		r.zero()
	case immZero:
		r.zero()
	case immTwoZero:
		r.zero()
		r.zero()
	case immMem:
		r.memArg(info.name, info.align)
	case immMemLane:
		r.memArg(info.name, info.align)
		r.lane(info.name, 16>>info.align)
	case immLane:
		r.lane(info.name, info.align)
	case immI32:
		r.signed(32)
	case immI64:
		r.signed(64)
	case immF32:
		r.bytes(4)
	case immF64:
		r.bytes(8)
	case imm128:
		r.bytes(16)
	case immShuffle:
		for range 16 {
			r.lane(info.name, 32)
		}
	case immBlock:
		in.block = r.blockType()
	case immTypes:
		r.selectType(in)
	case immType:
		in.typ = r.refType()
	case immTable:
		r.branches(in, labels)
	}
}

// zero reads the byte that names the memory.
func (r *reader) zero() {
	at := r.pos
	if c := r.byte(); c != 0 {
		r.foreign(at, "several memories")
	}
}

func (r *reader) memArg(name string, align uint8) {
	at := r.pos
	switch a := r.u32(); {
	case a&^0x3f == 0x40:
		r.foreign(at, "several memories")
	case a > uint32(align):
		r.failf(ErrInvalid, at, "%s is aligned to 2^%d bytes; its natural alignment 2^%d is the most", name, a, align)
	}
	r.u32()
}

func (r *reader) lane(name string, lanes uint8) {
	at := r.pos
	if l := r.byte(); l >= lanes {
		r.failf(ErrInvalid, at, "%s names lane %d of %d", name, l, lanes)
	}
}

func (r *reader) blockType() blockType {
	at := r.pos
	if r.pos >= r.end {
		r.short()
		return blockType{}
	}
	switch c := r.b[r.pos]; {
	case c == 0x40:
		r.pos++
		return blockType{index: -1}
	case c >= 0x40 && c < 0x80:
		return blockType{index: -1, result: r.valType()}
	}
	n := r.signed(33)
	if n < 0 {
		r.failf(ErrMalformed, at, "%d is no type of a block", n)
	}
	return blockType{index: n}
}

func (r *reader) selectType(in *Instr) {
	at := r.pos
	if n := r.u32(); n != 1 {
		r.failf(ErrInvalid, at, "select names %d types; one is needed", n)
		return
	}
	in.typ = r.valType()
}

func (r *reader) branches(in *Instr, labels int) {
	n := r.count("targets of a br_table", labels, 1)
	in.X, in.list = uint32(n), r.pos
	for range n + 1 {
		r.u32()
	}
}

// Scanner walks the instructions of a function in order.
type Scanner struct {
	r      reader
	labels int
}

// Scan returns a scanner over the i-th function with a body.
func (m *Module) Scan(i int) Scanner {
	f := &m.Funcs[i]
	return Scanner{r: reader{b: m.Bytes, pos: f.Code, end: f.End, what: "function"}, labels: f.End}
}

// Next reads the next instruction into in, the body's last end included, and
// says whether there was one.
func (s *Scanner) Next(in *Instr) bool {
	if s.r.pos >= s.r.end {
		return false
	}
	s.r.instr(in, s.labels)
	if s.r.err != nil {
		// Decode has read these bytes before.
		panic(fmt.Sprintf("module: the bytes of a decoded module have changed: %v", s.r.err))
	}
	return true
}

// OpNamed finds an opcode by its name in the text format.
func OpNamed(name string) (Op, bool) {
	for op := range vector + Op(len(vectorOps)) {
		if name != "" && op.String() == name {
			return op, true
		}
	}
	return 0, false
}

// Type returns the type of an instruction that always has the same one; ok is
// false for the others: control, variables, tables, references.
func (op Op) Type() (t FuncType, ok bool) {
	info := op.info()
	if info.sig == sigNone {
		return FuncType{}, false
	}
	s := &signatures[info.sig]
	t.Params = s.pops[:s.n:s.n]
	if s.push != 0 {
		t.Results = []ValType{s.push}
	}
	return t, true
}

// Align returns the logarithm of the natural alignment of a load or store.
func (op Op) Align() int {
	if i := op.info(); i.imm == immMem || i.imm == immMemLane {
		return int(i.align)
	}
	return 0
}

// Lanes returns how many lanes there are for an instruction that names some, and
// how many it names; zero and zero for the others.
func (op Op) Lanes() (lanes, named int) {
	switch i := op.info(); i.imm {
	case immLane:
		return int(i.align), 1
	case immMemLane:
		return 16 >> i.align, 1
	case immShuffle:
		return 32, 16
	default:
		return 0, 0
	}
}
