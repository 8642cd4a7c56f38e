package module

import "slices"

// unknown is the type of a value that code which is never reached takes off the
// stack; it fits everywhere.
const unknown ValType = 0

// A frame is a block that is open.
type frame struct {
	op        Op
	params    []ValType
	results   []ValType
	height    int  // of the operand stack at its beginning
	unreached bool // what follows in the block is never executed
}

// label is what a branch to the frame takes.
func (f *frame) label() []ValType {
	if f.op == OpLoop {
		return f.params
	}
	return f.results
}

// checker follows the types of one function: the algorithm of the appendix
// "Validation Algorithm" of the core specification. Its memory serves one function
// after the other.
type checker struct {
	d      *decoder
	locals []ValType
	stack  []ValType
	frames []frame
	height int  // the most that was on the stack
	wide   bool // some value is a v128
	one    [256][1]ValType
}

// begin forgets the last function.
func (c *checker) begin(t FuncType) {
	c.locals = append(c.locals[:0], t.Params...)
	c.stack, c.frames = c.stack[:0], c.frames[:0]
	c.height, c.wide = 0, slices.Contains(t.Params, V128) || slices.Contains(t.Results, V128)
	c.frames = append(c.frames, frame{op: OpBlock, results: t.Results})
}

// fail refuses the instruction.
func (c *checker) fail(in *Instr, format string, args ...any) {
	c.d.failf(ErrInvalid, in.Pos, in.Op.String()+" "+format, args...)
}

func (c *checker) top() *frame { return &c.frames[len(c.frames)-1] }

func (c *checker) push(t ValType) {
	c.stack = append(c.stack, t)
	c.height = max(c.height, len(c.stack))
	if t == V128 {
		c.wide = true
	}
}

func (c *checker) pushAll(types []ValType) {
	for _, t := range types {
		c.push(t)
	}
}

// pop takes a value of the type off the stack, or of any type if it is unknown,
// and returns its type.
func (c *checker) pop(in *Instr, want ValType) ValType {
	f := c.top()
	if len(c.stack) == f.height {
		if !f.unreached {
			c.fail(in, "needs %s on the stack, which is empty in this block", article(want))
		}
		return want
	}
	got := c.stack[len(c.stack)-1]
	c.stack = c.stack[:len(c.stack)-1]
	if got == unknown {
		return want
	}
	if got != want && want != unknown {
		c.fail(in, "needs %s and finds %s", article(want), article(got))
	}
	return got
}

func article(t ValType) string {
	switch t {
	case I32, I64:
		return "an " + t.String()
	case F32:
		return "an f32"
	case F64:
		return "an f64"
	case ExternRef:
		return "an externref"
	case unknown:
		return "a value"
	default:
		return "a " + t.String()
	}
}

func (c *checker) popAll(in *Instr, types []ValType) {
	for _, t := range slices.Backward(types) {
		c.pop(in, t)
	}
}

// unreachable says that what follows in this block is never executed.
func (c *checker) unreachable() {
	f := c.top()
	c.stack = c.stack[:f.height]
	f.unreached = true
}

// step checks one instruction.
func (c *checker) step(in *Instr, info *opInfo) {
	if info.imm == immMem || info.imm == immMemLane || info.imm == immZero || info.imm == immTwoZero || info.imm == immIndexZero {
		if c.d.m.Memory == nil {
			c.fail(in, "needs a memory, and the module has none")
			return
		}
	}
	if info.sig != sigNone {
		s := &signatures[info.sig]
		for i := int(s.n) - 1; i >= 0; i-- {
			c.pop(in, s.pops[i])
		}
		if s.push != 0 {
			c.push(s.push)
		}
		c.special(in)
		return
	}
	switch {
	case in.Op <= OpCallIndirect:
		c.control(in)
	case in.Op <= opSelectType:
		c.parametric(in)
	case in.Op <= opGlobalSet:
		c.variable(in)
	default:
		c.reference(in)
	}
}

// special checks what instructions of a fixed type need beside it.
func (c *checker) special(in *Instr) {
	switch in.Op {
	case OpMemoryGrow:
		c.d.m.Grows = true
	case OpMemoryInit:
		c.dataIndex(in)
	default:
	}
}

func (c *checker) dataIndex(in *Instr) {
	switch {
	case c.d.dataCount < 0:
		c.fail(in, "needs a data count section in front of the code")
	case int(in.X) >= c.d.dataCount:
		c.fail(in, "names data segment %d of %d", in.X, c.d.dataCount)
	}
}

// control checks blocks, branches and calls.
func (c *checker) control(in *Instr) {
	switch in.Op {
	case OpUnreachable:
		c.unreachable()
	case OpBlock, OpLoop, OpIf:
		c.open(in)
	case OpElse:
		c.otherwise(in)
	case OpEnd:
		c.end(in)
	case OpBr:
		if f := c.target(in, in.X); f != nil {
			c.popAll(in, f.label())
			c.unreachable()
		}
	case OpBrIf:
		c.pop(in, I32)
		if f := c.target(in, in.X); f != nil {
			c.popAll(in, f.label())
			c.pushAll(f.label())
		}
	case OpBrTable:
		c.table(in)
	case OpReturn:
		c.popAll(in, c.frames[0].results)
		c.unreachable()
	case OpCall:
		if int(in.X) >= c.d.funcs() {
			c.fail(in, "names function %d of %d", in.X, c.d.funcs())
			return
		}
		c.call(in, c.d.funcType(int(in.X)))
	case OpCallIndirect:
		c.callIndirect(in)
	default: // nop
	}
}

// funcType is the type of a function while the bodies are still to come.
func (d *decoder) funcType(index int) FuncType {
	if index < len(d.m.Imports) {
		return d.m.Imports[index].Type
	}
	return d.m.Types[d.types[index-len(d.m.Imports)]]
}

func (c *checker) call(in *Instr, t FuncType) {
	c.popAll(in, t.Params)
	c.pushAll(t.Results)
}

func (c *checker) callIndirect(in *Instr) {
	if !c.hasTable(in, in.Y) {
		return
	}
	if t := c.d.m.Tables[in.Y].Type; t != FuncRef {
		c.fail(in, "calls through table %d, which holds %s", in.Y, t)
		return
	}
	if int(in.X) >= len(c.d.m.Types) {
		c.fail(in, "names type %d of %d", in.X, len(c.d.m.Types))
		return
	}
	c.pop(in, I32)
	c.call(in, c.d.m.Types[in.X])
}

// open begins a block, loop or if.
func (c *checker) open(in *Instr) {
	if in.Op == OpIf {
		c.pop(in, I32)
	}
	f := frame{op: in.Op}
	switch b := in.block; {
	case b.result != 0:
		c.one[b.result][0] = b.result
		f.results = c.one[b.result][:]
	case b.index >= int64(len(c.d.m.Types)):
		c.fail(in, "has type %d of %d", b.index, len(c.d.m.Types))
		return
	case b.index >= 0:
		t := &c.d.m.Types[b.index]
		f.params, f.results = t.Params, t.Results
	}
	if len(c.frames) > c.d.l.Depth {
		c.d.failf(ErrLimit, in.Pos, "blocks are nested more than %d deep", c.d.l.Depth)
		return
	}
	c.popAll(in, f.params)
	f.height = len(c.stack)
	c.frames = append(c.frames, f)
	c.pushAll(f.params)
}

// close ends the innermost block's operands: they are its results.
func (c *checker) close(in *Instr) {
	f := c.top()
	c.popAll(in, f.results)
	if extra := len(c.stack) - f.height; extra > 0 {
		c.fail(in, "finds %d values too many on the stack", extra)
	}
}

func (c *checker) otherwise(in *Instr) {
	f := c.top()
	if f.op != OpIf {
		c.fail(in, "stands outside an if")
		return
	}
	c.close(in)
	f.op, f.unreached = OpElse, false
	c.stack = c.stack[:f.height]
	c.pushAll(f.params)
}

func (c *checker) end(in *Instr) {
	c.close(in)
	if c.d.err != nil {
		return
	}
	f := *c.top()
	if f.op == OpIf && !slices.Equal(f.params, f.results) {
		c.fail(in, "closes an if of type %s that has no else", FuncType{f.params, f.results})
		return
	}
	c.frames = c.frames[:len(c.frames)-1]
	c.pushAll(f.results)
}

// target returns the block that a label names, or nil.
func (c *checker) target(in *Instr, label uint32) *frame {
	if int64(label) >= int64(len(c.frames)) {
		c.fail(in, "names label %d, but only %d blocks are open", label, len(c.frames))
		return nil
	}
	return &c.frames[len(c.frames)-1-int(label)]
}

// table checks a br_table: all its targets take what is on the stack.
func (c *checker) table(in *Instr) {
	c.pop(in, I32)
	labels := reader{b: c.d.b, pos: in.list, end: in.End, fn: c.d.fn, what: "function"}
	var last []ValType
	for i := range in.X + 1 {
		f := c.target(in, labels.u32())
		if f == nil {
			return
		}
		want := f.label()
		switch {
		case i > 0 && len(want) != len(last):
			c.fail(in, "has targets that take %d and %d values", len(last), len(want))
			return
		case i > 0 && (len(want) == 0 || &want[0] == &last[0]):
			// The same types as the target before, as nearly always.
		default:
			c.peekAll(in, want)
			last = want
		}
	}
	c.popAll(in, last)
	c.unreachable()
}

// peekAll checks that the types are on top of the stack and leaves them there.
func (c *checker) peekAll(in *Instr, types []ValType) {
	f := c.top()
	for i, want := range slices.Backward(types) {
		at := len(c.stack) - len(types) + i
		switch {
		case at < f.height && f.unreached:
		case at < f.height:
			c.fail(in, "needs %s on the stack, which is empty in this block", article(want))
		case c.stack[at] != want && c.stack[at] != unknown:
			c.fail(in, "needs %s and finds %s", article(want), article(c.stack[at]))
		}
	}
}

// parametric checks drop and select.
func (c *checker) parametric(in *Instr) {
	switch in.Op {
	case opDrop:
		c.pop(in, unknown)
	case opSelectType:
		c.pop(in, I32)
		c.pop(in, in.typ)
		c.pop(in, in.typ)
		c.push(in.typ)
	default:
		c.pop(in, I32)
		a, b := c.pop(in, unknown), c.pop(in, unknown)
		if a == unknown {
			a = b
		}
		if b != unknown && a != b {
			c.fail(in, "chooses between %s and %s", article(b), article(a))
		}
		if a.isRef() {
			c.fail(in, "chooses between references; select with a type is needed for them")
		}
		c.push(a)
	}
}

// variable checks reads and writes of locals and globals.
func (c *checker) variable(in *Instr) {
	if in.Op >= opGlobalGet {
		c.global(in)
		return
	}
	if int64(in.X) >= int64(len(c.locals)) {
		c.fail(in, "names local %d of %d", in.X, len(c.locals))
		return
	}
	t := c.locals[in.X]
	if in.Op != opLocalGet {
		c.pop(in, t)
	}
	if in.Op != opLocalSet {
		c.push(t)
	}
}

func (c *checker) global(in *Instr) {
	if int64(in.X) >= int64(len(c.d.m.Globals)) {
		c.fail(in, "names global %d of %d", in.X, len(c.d.m.Globals))
		return
	}
	g := c.d.m.Globals[in.X]
	switch {
	case in.Op == opGlobalGet:
		c.push(g.Type)
	case !g.Mutable:
		c.fail(in, "writes global %d, which is constant", in.X)
	default:
		c.pop(in, g.Type)
	}
}

// hasTable says whether there is a table of that index, and refuses if not.
func (c *checker) hasTable(in *Instr, index uint32) bool {
	if int64(index) < int64(len(c.d.m.Tables)) {
		return true
	}
	c.fail(in, "names table %d of %d", index, len(c.d.m.Tables))
	return false
}

// reference checks references, tables and segments.
func (c *checker) reference(in *Instr) {
	switch in.Op {
	case opRefNull:
		c.push(in.typ)
	case opRefIsNull:
		if t := c.pop(in, unknown); t != unknown && !t.isRef() {
			c.fail(in, "needs a reference and finds %s", article(t))
		}
		c.push(I32)
	case opRefFunc:
		// wazero allocates for each execution and keeps it as long as the instance.
		c.d.fail(ErrFeature, in.Pos, "ref.func is not allowed in functions, because each execution takes memory that the limit does not bound; fill tables by element segments")
	case opTableGet:
		if c.hasTable(in, in.X) {
			c.pop(in, I32)
			c.push(c.d.m.Tables[in.X].Type)
		}
	case opTableSet:
		if c.hasTable(in, in.X) {
			c.pop(in, c.d.m.Tables[in.X].Type)
			c.pop(in, I32)
		}
	case opTableSize:
		if c.hasTable(in, in.X) {
			c.push(I32)
		}
	case opTableGrow, opTableFill, opTableCopy:
		c.d.failf(ErrFeature, in.Pos, "%s is not allowed in a policy, because the memory limit does not bound tables; fill tables by element segments", in.Op)
	case OpTableInit:
		c.tableInit(in)
	case opElemDrop:
		c.hasElement(in)
	case opDataDrop:
		c.dataIndex(in)
	default:
		c.fail(in, "is unknown to the checker")
	}
}

func (c *checker) hasElement(in *Instr) bool {
	if int64(in.X) < int64(len(c.d.m.elements)) {
		return true
	}
	c.fail(in, "names element segment %d of %d", in.X, len(c.d.m.elements))
	return false
}

func (c *checker) tableInit(in *Instr) {
	if !c.hasElement(in) || !c.hasTable(in, in.Y) {
		return
	}
	if have, want := c.d.m.elements[in.X], c.d.m.Tables[in.Y].Type; have != want {
		c.fail(in, "fills a table of %s with %s", want, have)
	}
	for range 3 {
		c.pop(in, I32)
	}
}
