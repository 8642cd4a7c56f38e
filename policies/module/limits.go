package module

import (
	"errors"
	"fmt"
)

// Limits bound what a module may contain. The zero value of a field is its
// default, given on the right; [Limits.Validate] refuses what is negative or
// above what the decoder is built for.
type Limits struct {
	Size        int // bytes of the module: 4 MiB
	Custom      int // bytes of all custom sections together, names of functions included: 2 MiB
	CustomCount int // custom sections: 64
	Types       int // types of functions: 4,096
	Params      int // parameters, and results, of one type: 64
	Imports     int // imported functions: 128
	Funcs       int // functions with a body: 20,000
	Tables      int // tables: 4
	Elements    int // entries of all tables together at instantiation, and of one element segment: 10,000
	Segments    int // data segments, and element segments: 65,536; Go makes 21,000 for a guest of 1.8 MB
	Globals     int // globals: 1,000
	Exports     int // exports: 256
	Pages       int // pages of 64 KiB that the memory has at instantiation: 256
	Body        int // bytes of one function: 64 KiB
	Locals      int // parameters and locals of one function: 1,000
	Depth       int // nested blocks in one function: 2,048
	Labels      int // targets of one br_table: 8,192
	Name        int // bytes of the name of an import, an export or a section: 256
}

// defaults are the limits that stand in for zeros. They are far above what a
// compiler's output needs and below what makes compiling slow: a body of 64 KiB
// takes a fraction of a second, one of 535 KiB half a minute.
var defaults = Limits{
	Size: 4 << 20, Custom: 2 << 20, CustomCount: 64, Types: 4096, Params: 64, Imports: 128, Funcs: 20_000,
	Tables: 4, Elements: 10_000, Segments: 65_536, Globals: 1000, Exports: 256, Pages: 256,
	Body: 64 << 10, Locals: 1000, Depth: 2048, Labels: 8192, Name: 256,
}

// limitField is one limit with its name and the most it may be set to.
type limitField struct {
	name  string
	value *int
	most  int
}

func (l *Limits) fields() []limitField {
	return []limitField{
		{"Size", &l.Size, 64 << 20},
		{"Custom", &l.Custom, 64 << 20},
		{"CustomCount", &l.CustomCount, 10_000},
		{"Types", &l.Types, 100_000},
		{"Params", &l.Params, 1000},
		{"Imports", &l.Imports, 10_000},
		{"Funcs", &l.Funcs, 1_000_000},
		{"Tables", &l.Tables, 100},
		{"Elements", &l.Elements, 1_000_000},
		{"Segments", &l.Segments, 100_000},
		{"Globals", &l.Globals, 100_000},
		{"Exports", &l.Exports, 100_000},
		{"Pages", &l.Pages, 65_536},
		{"Body", &l.Body, 1 << 20},
		{"Locals", &l.Locals, 50_000},
		{"Depth", &l.Depth, 100_000},
		{"Labels", &l.Labels, 100_000},
		{"Name", &l.Name, 100_000},
	}
}

// Validate reports every limit that is negative or too large.
func (l Limits) Validate() error {
	var all []error
	for _, f := range l.fields() {
		if *f.value < 0 || *f.value > f.most {
			all = append(all, fmt.Errorf("module: limit %s is %d; it must be from 0 (default) to %d", f.name, *f.value, f.most))
		}
	}
	return errors.Join(all...)
}

// filled returns the limits with defaults in place of zeros.
func (l Limits) filled() Limits {
	standard := defaults
	from := standard.fields()
	for i, f := range l.fields() {
		if *f.value == 0 {
			*f.value = *from[i].value
		}
	}
	return l
}
