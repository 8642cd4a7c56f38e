package abi

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrLayout says that a guest's header does not describe buffers that the host
// could use.
var ErrLayout = errors.New("bad layout")

// magic is the first word of the header: "YML1".
const magic = 0x314c_4d59

// The header's words, all u32, little-endian, at a multiple of 4. The pointers of
// the input columns, in the manifest's order, and of the output columns follow.
const (
	wordMagic = iota
	wordABI   // major << 16 | minor
	wordWords // words of the header, pointers included
	wordRows
	wordRequest
	wordRequestSize
	wordParams
	wordParamsSize
	wordInputs  // number of input columns
	wordOutputs // number of output columns
	headerWords
)

// The bounds of a layout.
const (
	MostRows = 65_536
	// columnAlign lets a guest read columns by vectors.
	columnAlign = 16
	blockAlign  = 8
)

// Layout says where in a guest's memory its buffers are. It has been checked: all
// are within the memory, aligned, and apart from one another.
type Layout struct {
	Rows    int // capacity of every column, in values of 4 bytes
	Inputs  []uint32
	Outputs []uint32
	// Request and Params are the blocks for a call and for the parameters.
	Request, Params Span
}

// Span is a piece of the guest's memory, in bytes.
type Span struct{ At, Size uint32 }

// extent is a buffer by its name.
type extent struct {
	name     string
	from, to uint64
}

// ReadLayout reads the header at ptr of a guest's memory and checks it against the
// manifest. Errors wrap [ErrLayout] and name every problem. The result is a copy:
// what the guest writes there later changes nothing.
func ReadLayout(memory []byte, ptr uint32, m *Manifest) (*Layout, error) {
	var p problems
	l := readLayout(memory, ptr, m, &p)
	if len(p) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrLayout, errors.Join(p...))
	}
	return l, nil
}

func readLayout(memory []byte, ptr uint32, m *Manifest, p *problems) *Layout {
	outputs := m.Kind.Outputs()
	words := uint64(headerWords + len(m.Columns) + len(outputs))
	if ptr%4 != 0 || uint64(ptr)+4*words > uint64(len(memory)) {
		p.addf("the header of %d words at %#x is not in the memory of %d bytes, at a multiple of 4", words, ptr, len(memory))
		return nil
	}
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(memory[int(ptr)+4*i:]) }
	switch {
	case word(wordMagic) != magic:
		p.addf("the header at %#x begins with %#x; it must begin with %#x", ptr, word(wordMagic), magic)
	case word(wordABI)>>16 != Major || word(wordABI)&0xffff > Minor:
		p.addf("the header is of version %d.%d; the host's is %d.%d", word(wordABI)>>16, word(wordABI)&0xffff, Major, Minor)
	case int64(word(wordInputs)) != int64(len(m.Columns)):
		p.addf("the header has %d input columns; the manifest lists %d", word(wordInputs), len(m.Columns))
	case int64(word(wordOutputs)) != int64(len(outputs)):
		p.addf("the header has %d output columns; kind %s has %d", word(wordOutputs), m.Kind, len(outputs))
	case uint64(word(wordWords)) != words:
		p.addf("the header says that it has %d words; with its pointers it has %d", word(wordWords), words)
	}
	if len(*p) > 0 {
		return nil
	}
	l := &Layout{
		Rows:    int(word(wordRows)),
		Request: Span{word(wordRequest), word(wordRequestSize)},
		Params:  Span{word(wordParams), word(wordParamsSize)},
	}
	for i := range m.Columns {
		l.Inputs = append(l.Inputs, word(headerWords+i))
	}
	for i := range outputs {
		l.Outputs = append(l.Outputs, word(headerWords+len(m.Columns)+i))
	}
	l.check(extent{"header", uint64(ptr), uint64(ptr) + 4*words}, uint64(len(memory)), m, p)
	return l
}

// check finds what is out of bounds, misaligned, too small, or over another.
func (l *Layout) check(header extent, size uint64, m *Manifest, p *problems) {
	if l.Rows < 1 || l.Rows > MostRows {
		p.addf("the columns have %d rows; there may be from 1 to %d", l.Rows, MostRows)
		return
	}
	if need := m.Kind.RequestSize(); l.Request.Size < need {
		p.addf("the request block has %d bytes; kind %s needs %d", l.Request.Size, m.Kind, need)
	}
	if need := uint32(8 * len(m.Params)); l.Params.Size < need {
		p.addf("the parameter block has %d bytes; the manifest's %d params need %d", l.Params.Size, len(m.Params), need)
	}
	all := []extent{header}
	add := func(name string, at uint32, bytes, align uint64) {
		e := extent{name, uint64(at), uint64(at) + bytes}
		switch {
		case bytes == 0:
			return
		case uint64(at)%align != 0:
			p.addf("the %s at %#x is not at a multiple of %d", name, at, align)
		case at == 0:
			p.addf("the %s is at 0, which is no address", name)
		case e.to > size:
			p.addf("the %s at %#x with %d bytes is not in the memory of %d", name, at, bytes, size)
		default:
			all = append(all, e)
		}
	}
	add("request block", l.Request.At, uint64(l.Request.Size), blockAlign)
	add("parameter block", l.Params.At, uint64(l.Params.Size), blockAlign)
	for i, at := range l.Inputs {
		add("column "+m.Columns[i].Name, at, 4*uint64(l.Rows), columnAlign)
	}
	for i, at := range l.Outputs {
		add("output "+m.Kind.Outputs()[i].Name, at, 4*uint64(l.Rows), columnAlign)
	}
	slices.SortFunc(all, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.to > b.from {
			p.addf("the %s at %#x overlaps the %s at %#x", a.name, a.from, b.name, b.from)
		}
	}
}
