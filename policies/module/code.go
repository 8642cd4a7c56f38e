package module

// codeSection reads and checks the functions' bodies.
func (d *decoder) codeSection() {
	at := d.pos
	n := d.count("functions", d.l.Funcs, 3)
	if n != len(d.types) && d.err == nil {
		d.failf(ErrMalformed, at, "%d functions are declared, but %d bodies follow", len(d.types), n)
		return
	}
	d.code = n
	d.m.Funcs = make([]Func, 0, n)
	d.check = checker{d: d}
	section := d.end
	for i := range n {
		d.fn = len(d.m.Imports) + i
		at := d.pos
		size := int(d.u32())
		switch {
		case size > d.l.Body:
			d.failf(ErrLimit, at, "the function has a body of %d bytes; at most %d are allowed, because longer ones take very long to compile: split it, or lower the optimisation that unrolls or inlines it", size, d.l.Body)
			return
		case size > d.left():
			d.failf(ErrMalformed, at, "the function is said to have %d bytes, but only %d are left", size, d.left())
			return
		}
		d.end, d.what = d.pos+size, "function"
		d.body(i)
		if d.err != nil {
			return
		}
		d.end, d.what = section, sectionNames[SectionCode]
	}
	d.fn = -1
}

// body checks one function and adds it to the module.
func (d *decoder) body(i int) {
	f := Func{Type: int(d.types[i]), Start: d.pos, End: d.end}
	t := d.m.Types[f.Type]
	c := &d.check
	c.begin(t)
	d.locals(c)
	f.Code = d.pos
	var in Instr
	for d.err == nil && len(c.frames) > 0 {
		info := d.instr(&in, d.l.Labels)
		if d.err != nil {
			return
		}
		c.step(&in, info)
	}
	if d.err != nil {
		return
	}
	if d.pos != d.end {
		d.failf(ErrMalformed, d.pos, "%d bytes are left over behind the end of the function", d.left())
		return
	}
	f.Locals, f.Slots = len(c.locals), len(c.locals)+c.height
	if c.wide {
		f.Slots *= 2
	}
	d.m.Funcs = append(d.m.Funcs, f)
}

// locals reads the declarations of locals into the checker, behind the parameters.
func (d *decoder) locals(c *checker) {
	groups := d.count("groups of locals", d.l.Body, 2)
	for range groups {
		at := d.pos
		n := int(d.u32())
		t := d.valType()
		if d.err != nil {
			return
		}
		if n > d.l.Locals-len(c.locals) {
			d.failf(ErrLimit, at, "the function has more than %d parameters and locals", d.l.Locals)
			return
		}
		c.wide = c.wide || t == V128
		for range n {
			c.locals = append(c.locals, t)
		}
	}
}
