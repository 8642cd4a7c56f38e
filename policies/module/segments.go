package module

// constant reads a constant expression of one instruction, the only kind that
// core 2.0 has, and its end.
func (d *decoder) constant(want ValType, of string) {
	at := d.pos
	var in Instr
	info := d.instr(&in, 0)
	var got ValType
	switch {
	case d.err != nil:
		return
	case in.Op == opRefNull:
		got = in.typ
	case in.Op == opRefFunc:
		if int(in.X) >= d.funcs() {
			d.failf(ErrInvalid, at, "%s names function %d of %d", of, in.X, d.funcs())
			return
		}
		got = FuncRef
	case in.Op == opGlobalGet:
		d.failf(ErrInvalid, at, "%s reads global %d; a constant may read imported globals only, and a policy has none", of, in.X)
		return
	case info.imm >= immI32 && info.imm <= imm128:
		got = signatures[info.sig].push
	default:
		d.failf(ErrInvalid, at, "%s is computed by %s; it must be one constant", of, in.Op)
		return
	}
	if got != want {
		d.failf(ErrInvalid, at, "%s is of type %s; %s is needed", of, got, want)
		return
	}
	if at = d.pos; Op(d.byte()) != OpEnd {
		d.failf(ErrInvalid, at, "%s goes on after its constant; only one constant is allowed", of)
	}
}

// elementSection reads the element segments, of eight shapes: bit 0 says passive
// or declarative, bit 1 says that a table or that it is declarative, bit 2 that
// expressions follow in place of functions' indices.
func (d *decoder) elementSection() {
	n := d.count("element segments", d.l.Segments, 2)
	d.m.elements = make([]ValType, 0, n)
	for range n {
		at := d.pos
		flags := d.u32()
		if flags > 7 {
			d.failf(ErrMalformed, at, "an element segment is of the unknown shape %d", flags)
		}
		t, table := FuncRef, 0
		active, expressions := flags&1 == 0, flags&4 != 0
		if active {
			if flags&2 != 0 {
				table = int(d.u32())
			}
			if table >= len(d.m.Tables) && d.err == nil {
				d.failf(ErrInvalid, at, "an element segment fills table %d; the module has %d", table, len(d.m.Tables))
			}
			d.constant(I32, "the offset of an element segment")
		}
		if flags&3 != 0 {
			t = d.elementType(expressions)
		}
		if d.err == nil && active && d.m.Tables[table].Type != t {
			d.failf(ErrInvalid, at, "an element segment of %s fills a table of %s", t, d.m.Tables[table].Type)
		}
		d.elements(t, expressions)
		if d.err != nil {
			return
		}
		d.m.elements = append(d.m.elements, t)
	}
}

func (d *decoder) elementType(expressions bool) ValType {
	if expressions {
		return d.refType()
	}
	at := d.pos
	if c := d.byte(); c != 0 {
		d.failf(ErrMalformed, at, "an element segment is of the unknown kind %d", c)
	}
	return FuncRef
}

func (d *decoder) elements(t ValType, expressions bool) {
	n := d.count("entries of an element segment", d.l.Elements, 1)
	for range n {
		if expressions {
			d.constant(t, "an entry of an element segment")
		} else {
			at := d.pos
			f := int(d.u32())
			if f >= d.funcs() {
				d.failf(ErrInvalid, at, "an element segment names function %d of %d", f, d.funcs())
			}
		}
		if d.err != nil {
			return
		}
	}
}

func (d *decoder) dataSection() {
	d.m.data = d.count("data segments", d.l.Segments, 2)
	for range d.m.data {
		at := d.pos
		flags := d.u32()
		switch flags {
		case 0, 1:
		case 2:
			d.zero()
		default:
			d.failf(ErrMalformed, at, "a data segment is of the unknown shape %d", flags)
		}
		if flags != 1 {
			if d.m.Memory == nil && d.err == nil {
				d.fail(ErrInvalid, at, "a data segment fills a memory, but the module has none")
			}
			d.constant(I32, "the offset of a data segment")
		}
		d.bytes(int(d.u32()))
		if d.err != nil {
			return
		}
	}
}
