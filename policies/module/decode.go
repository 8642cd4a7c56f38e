package module

import (
	"bytes"
	"fmt"
	"strings"
)

// Options say what a module may have and take.
type Options struct {
	Limits  Limits
	Imports []Import // what the host offers
}

// Decode reads and validates a module. It keeps b and returns views of it. An
// error is an [*Error], unless the limits themselves are wrong.
func Decode(b []byte, o Options) (*Module, error) {
	if err := o.Limits.Validate(); err != nil {
		return nil, err
	}
	d := decoder{
		reader: reader{b: b, end: len(b), fn: -1, what: "module"},
		l:      o.Limits.filled(), offered: o.Imports, m: &Module{Bytes: b}, code: -1,
	}
	d.module()
	if d.err != nil {
		return nil, d.err
	}
	return d.m, nil
}

// decoder fills a module section by section.
type decoder struct {
	reader
	l       Limits
	offered []Import
	m       *Module

	types      []uint32 // of the functions with a body, before their bodies come
	dataCount  int      // -1 if not announced
	code       int      // bodies read, or -1
	customSize int
	check      checker
}

var (
	magic     = []byte{0, 'a', 's', 'm'}
	version   = []byte{1, 0, 0, 0}
	component = []byte{0x0d, 0, 1, 0}
)

// order is where a section stands among the others.
var order = [13]uint8{
	SectionType: 1, SectionImport: 2, SectionFunction: 3, SectionTable: 4, SectionMemory: 5, SectionGlobal: 6, SectionExport: 7,
	SectionStart: 8, SectionElement: 9, SectionDataCount: 10, SectionCode: 11, SectionData: 12,
}

var sectionNames = [13]string{
	"custom section", "type section", "import section", "function section", "table section", "memory section", "global section",
	"export section", "start section", "element section", "code section", "data section", "data count section",
}

func (d *decoder) module() {
	if d.end > d.l.Size {
		d.failf(ErrLimit, 0, "the module has %d bytes; at most %d are allowed", d.end, d.l.Size)
		return
	}
	d.header()
	d.dataCount = -1
	var last uint8
	for d.err == nil && d.pos < d.end {
		last = d.section(last)
	}
	d.complete()
}

func (d *decoder) header() {
	if !bytes.HasPrefix(d.b, magic) {
		d.fail(ErrMalformed, 0, `the upload does not begin with "\0asm": it is no WebAssembly binary (text must be assembled first)`)
		return
	}
	d.pos = len(magic)
	v := d.bytes(len(version))
	switch {
	case bytes.Equal(v, version) || d.err != nil:
	case bytes.Equal(v, component):
		d.foreign(len(magic), "components")
	default:
		d.failf(ErrMalformed, len(magic), "the module has binary version %x; %x is the only one", v, version)
	}
}

// section reads one section and returns its place in the order.
func (d *decoder) section(last uint8) uint8 {
	s := Section{Start: d.pos}
	s.ID = d.byte()
	size := int(d.u32())
	s.Body, s.End = d.pos, d.pos+size
	switch {
	case d.err != nil:
		return last
	case s.ID == 13:
		d.foreign(s.Start, "exceptions")
		return last
	case int(s.ID) >= len(order):
		d.failf(ErrMalformed, s.Start, "there is no section %d", s.ID)
		return last
	case size > d.left():
		d.failf(ErrMalformed, s.Start, "the %s is said to have %d bytes, but only %d are left; the upload may be cut off", sectionNames[s.ID], size, d.left())
		return last
	}
	if s.ID != SectionCustom {
		switch place := order[s.ID]; {
		case place == last:
			d.failf(ErrMalformed, s.Start, "there is a second %s", sectionNames[s.ID])
			return last
		case place < last:
			d.failf(ErrMalformed, s.Start, "the %s comes too late, or twice", sectionNames[s.ID])
			return last
		default:
			last = place
		}
	}
	d.m.Sections = append(d.m.Sections, s)
	whole := d.end
	d.end, d.what = s.End, sectionNames[s.ID]
	d.content(s)
	if d.err == nil && d.pos != d.end {
		d.failf(ErrMalformed, d.pos, "%d bytes are left over at the end of the %s", d.left(), d.what)
	}
	d.end, d.what = whole, "module"
	return last
}

func (d *decoder) content(s Section) {
	switch s.ID {
	case SectionCustom:
		d.custom(s)
	case SectionType:
		d.typeSection()
	case SectionImport:
		d.importSection()
	case SectionFunction:
		d.functionSection()
	case SectionTable:
		d.tableSection()
	case SectionMemory:
		d.memorySection()
	case SectionGlobal:
		d.globalSection()
	case SectionExport:
		d.exportSection()
	case SectionStart:
		d.fail(ErrFeature, s.Start, "the module has a start function; a policy begins in its export _initialize, which the host calls with a budget")
	case SectionElement:
		d.elementSection()
	case SectionDataCount:
		// No segment takes less than a byte, but the count stands in front of them,
		// in another section; it is compared with them later and allocates nothing.
		d.dataCount = int(d.u32())
	case SectionCode:
		d.codeSection()
	case SectionData:
		d.dataSection()
	}
}

// complete checks what only the whole module can show.
func (d *decoder) complete() {
	if d.err != nil {
		return
	}
	if d.code < 0 && len(d.types) > 0 {
		d.failf(ErrMalformed, d.pos, "%d functions are declared, but there is no code section", len(d.types))
	}
	if d.dataCount >= 0 && d.dataCount != d.m.data {
		d.failf(ErrMalformed, d.pos, "%d data segments are announced, but there are %d", d.dataCount, d.m.data)
	}
}

func (d *decoder) custom(s Section) {
	d.customSize += s.End - s.Body
	switch {
	case len(d.m.Custom) >= d.l.CustomCount:
		d.failf(ErrLimit, s.Start, "there are more than %d custom sections; strip the module", d.l.CustomCount)
	case d.customSize > d.l.Custom:
		d.failf(ErrLimit, s.Start, "the custom sections have more than %d bytes together; strip the module's debugging data", d.l.Custom)
	default:
		name := d.name("name of a custom section", d.l.Name)
		d.m.Custom = append(d.m.Custom, Custom{Name: name, Data: d.bytes(d.left())})
	}
}

func (d *decoder) typeSection() {
	d.m.Types = make([]FuncType, d.count("types", d.l.Types, 2))
	for i := range d.m.Types {
		at := d.pos
		switch c := d.byte(); c {
		case 0x60:
		case 0x4e, 0x4f, 0x50, 0x5e, 0x5f:
			d.foreign(at, "garbage-collected types")
		default:
			d.failf(ErrMalformed, at, "type %d begins with %#x; only functions (0x60) are types", i, c)
		}
		d.m.Types[i] = FuncType{Params: d.reader.types("parameters", d.l.Params), Results: d.reader.types("results", d.l.Params)}
		if d.err != nil {
			return
		}
	}
}

func (d *decoder) typeIndex() int {
	at := d.pos
	i := int(d.u32())
	if i >= len(d.m.Types) {
		d.failf(ErrInvalid, at, "there is no type %d; the module has %d", i, len(d.m.Types))
		return 0
	}
	return i
}

var importKinds = [...]string{"function", "table", "memory", "global"}

func (d *decoder) importSection() {
	n := d.count("imports", d.l.Imports, 4)
	for range n {
		at := d.pos
		i := Import{Module: d.name("module of an import", d.l.Name), Name: d.name("name of an import", d.l.Name)}
		kind := d.byte()
		switch {
		case d.err != nil:
			return
		case kind == 4:
			d.foreign(at, "exceptions")
			return
		case int(kind) >= len(importKinds):
			d.failf(ErrMalformed, at, "%q.%q is an import of the unknown kind %d", i.Module, i.Name, kind)
			return
		case kind != 0:
			d.failf(ErrImport, at, "the module imports the %s %q.%q; a policy may import functions only and must define its own %s", importKinds[kind], i.Module, i.Name, importKinds[kind])
			return
		}
		index := d.typeIndex()
		if d.err != nil {
			return
		}
		i.Type = d.m.Types[index]
		d.offers(at, i)
		d.m.Imports = append(d.m.Imports, i)
	}
}

// offers refuses an import that the host does not have, by name and by type.
func (d *decoder) offers(at int, i Import) {
	var names []string
	for _, o := range d.offered {
		if o.Module != i.Module {
			continue
		}
		if o.Name != i.Name {
			names = append(names, o.Name)
			continue
		}
		if !o.Type.Equal(i.Type) {
			d.failf(ErrImport, at, "%q.%q is imported as %s; the host's is %s", i.Module, i.Name, i.Type, o.Type)
		}
		return
	}
	if len(names) == 0 {
		d.failf(ErrImport, at, "the import %q.%q is not offered, nor is anything of %q", i.Module, i.Name, i.Module)
		return
	}
	d.failf(ErrImport, at, "the import %q.%q is not offered; %q has %s", i.Module, i.Name, i.Module, strings.Join(names, ", "))
}

func (d *decoder) functionSection() {
	d.types = make([]uint32, d.count("functions", d.l.Funcs, 1))
	for i := range d.types {
		d.types[i] = uint32(d.typeIndex())
		if d.err != nil {
			return
		}
	}
}

// funcs is the number of functions, imports counted.
func (d *decoder) funcs() int { return len(d.m.Imports) + len(d.types) }

// span reads the limits of a memory or a table.
func (d *decoder) span(of string) (low, high uint32, bounded bool) {
	at := d.pos
	switch flags := d.byte(); flags {
	case 0:
		return d.u32(), 0, false
	case 1:
		low, high = d.u32(), d.u32()
		if high < low {
			d.failf(ErrInvalid, at, "the %s has a maximum of %d, below its minimum of %d", of, high, low)
		}
		return low, high, true
	case 2, 3:
		d.foreign(at, "threads and shared memories")
	case 4, 5, 6, 7:
		d.foreign(at, "64-bit memories")
	default:
		d.failf(ErrMalformed, at, "%#x does not describe the limits of a %s", flags, of)
	}
	return 0, 0, false
}

func (d *decoder) tableSection() {
	d.m.Tables = make([]Table, d.count("tables", d.l.Tables, 3))
	entries := 0
	for i := range d.m.Tables {
		at := d.pos
		t := d.refType()
		low, _, _ := d.span("table")
		entries += int(low)
		if entries > d.l.Elements {
			d.failf(ErrLimit, at, "the tables have %d entries; at most %d are allowed", entries, d.l.Elements)
		}
		if d.err != nil {
			return
		}
		d.m.Tables[i] = Table{Type: t, Min: low}
	}
}

func (d *decoder) memorySection() {
	at := d.pos
	n := d.u32()
	if n > 1 {
		d.foreign(at, "several memories")
		return
	}
	if n == 0 {
		return
	}
	const most = 65_536
	low, high, bounded := d.span("memory")
	if !bounded {
		high = most
	}
	switch {
	case d.err != nil:
	case low > most || high > most:
		d.failf(ErrInvalid, at, "the memory has from %d to %d pages; 65,536 is the most there can be", low, high)
	case int(low) > d.l.Pages:
		d.failf(ErrLimit, at, "the memory begins with %d pages of 64 KiB; at most %d are allowed", low, d.l.Pages)
	default:
		d.m.Memory = &Memory{Min: low, Max: high}
	}
}

func (d *decoder) globalSection() {
	d.m.Globals = make([]Global, d.count("globals", d.l.Globals, 4))
	for i := range d.m.Globals {
		g := Global{Type: d.valType()}
		at := d.pos
		switch c := d.byte(); c {
		case 0, 1:
			g.Mutable = c == 1
		default:
			d.failf(ErrMalformed, at, "global %d is marked %#x; 0 is constant and 1 variable", i, c)
		}
		d.constant(g.Type, "the initial value of a global")
		if d.err != nil {
			return
		}
		d.m.Globals[i] = g
	}
}

func (d *decoder) exportSection() {
	n := d.count("exports", d.l.Exports, 3)
	seen := make(map[string]struct{}, n)
	for range n {
		at := d.pos
		e := Export{Name: d.name("name of an export", d.l.Name)}
		kind := d.byte()
		e.Kind, e.Index = Kind(kind), int(d.u32())
		_, twice := seen[e.Name]
		switch {
		case d.err != nil:
			return
		case kind == 4:
			d.foreign(at, "exceptions")
		case kind > 4:
			d.failf(ErrMalformed, at, "%q is an export of the unknown kind %d", e.Name, kind)
		case twice:
			d.failf(ErrInvalid, at, "two exports are named %q", e.Name)
		case strings.HasPrefix(e.Name, Reserved):
			d.failf(ErrFeature, at, "the export %q begins with %s, which is reserved for the host; rename it", e.Name, Reserved)
		case e.Index >= d.exportable(e.Kind):
			d.failf(ErrInvalid, at, "%q exports %s %d, which the module does not have", e.Name, e.Kind, e.Index)
		}
		if d.err != nil {
			return
		}
		seen[e.Name] = struct{}{}
		d.m.Exports = append(d.m.Exports, e)
	}
}

// exportable is how many of a kind there are.
func (d *decoder) exportable(k Kind) int {
	switch k {
	case KindFunc:
		return d.funcs()
	case KindTable:
		return len(d.m.Tables)
	case KindMemory:
		if d.m.Memory != nil {
			return 1
		}
		return 0
	case KindGlobal:
		return len(d.m.Globals)
	default:
		panic(fmt.Sprintf("module: kind %d of an export", k))
	}
}
