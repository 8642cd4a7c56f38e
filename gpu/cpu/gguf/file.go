package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"slices"
)

// Tensor describes one tensor. Its data stays in the file.
type Tensor struct {
	Name string
	Type Type
	// Shape is in the file's order: Shape[0] is the number of elements of a row,
	// contiguous in memory. It has one to four entries, none of them zero.
	Shape  []int
	Offset int64 // of the first byte, from the start of the file
	Size   int64 // in bytes
}

// Elements is the number of elements.
func (t *Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Rows is the number of rows of Shape[0] elements.
func (t *Tensor) Rows() int { return t.Elements() / t.Shape[0] }

// File is an open GGUF file. It is safe for concurrent use.
type File struct {
	r       io.ReaderAt
	size    int64
	closer  io.Closer
	head    []byte // the file from its start to the end of the tensor table
	version uint32
	keys    []string
	values  map[string]value
	tensors []Tensor
	byName  map[string]int
}

// Open opens and checks the file at path. The caller closes it.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	file, err := readFile(f)
	if err != nil {
		return nil, fmt.Errorf("gguf: %s: %w", path, errors.Join(err, f.Close()))
	}
	file.closer = f
	return file, nil
}

func readFile(f *os.File) (*File, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return Read(f, st.Size())
}

// Read checks the GGUF file of size bytes behind r. The File reads tensors
// from r for as long as it is used.
func Read(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: size, values: map[string]value{}, byName: map[string]int{}}
	if err := f.parse(); err != nil {
		return nil, err
	}
	return f, nil
}

// Close closes the file if Open opened it.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Version is the format's version, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Size is the size of the file in bytes.
func (f *File) Size() int64 { return f.size }

// Header is the encoded header: everything before the tensors' data. The
// caller does not change it.
func (f *File) Header() []byte { return f.head }

// Keys are the metadata keys in the file's order.
func (f *File) Keys() iter.Seq[string] { return slices.Values(f.keys) }

// Tensors are the tensors in the file's order. The caller does not change them.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (*Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return nil, false
	}
	return &f.tensors[i], true
}

// ReadTensor fills p with the tensor's bytes from offset from. A file that has
// shrunk since it was opened gives an error.
func (f *File) ReadTensor(t *Tensor, p []byte, from int64) error {
	if from < 0 || from+int64(len(p)) > t.Size {
		return &Error{Offset: t.Offset, Problem: fmt.Sprintf("read of [%d, %d) outside tensor %q of %d bytes", from, from+int64(len(p)), t.Name, t.Size)}
	}
	if n, err := f.r.ReadAt(p, t.Offset+from); n < len(p) {
		return fmt.Errorf("gguf: tensor %q at offset %d: %w", t.Name, t.Offset+from+int64(n), err)
	}
	return nil
}

// Has reports whether key is present with any type.
func (f *File) Has(key string) bool {
	_, ok := f.values[key]
	return ok
}

// String is the string at key. ok is false if there is none.
func (f *File) String(key string) (s string, ok bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindString {
		return "", false
	}
	return string(f.head[v.at:v.end]), true
}

// Bool is the boolean at key. ok is false if there is none.
func (f *File) Bool(key string) (b, ok bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindBool {
		return false, false
	}
	return f.head[v.at] == 1, true
}

// Int is the integer, of any width, at key. ok is false if there is none or if
// it does not fit.
func (f *File) Int(key string) (n int64, ok bool) {
	v, ok := f.values[key]
	if !ok {
		return 0, false
	}
	return integer(v.kind, f.head[v.at:v.end])
}

// Float is the number at key, whatever its type. ok is false if there is none.
func (f *File) Float(key string) (x float64, ok bool) {
	v, ok := f.values[key]
	if !ok {
		return 0, false
	}
	return number(v.kind, f.head[v.at:v.end])
}

// Strings is the array of strings at key, a fresh slice. ok is false if there
// is none, or if it would take more memory than the whole file.
func (f *File) Strings(key string) (list []string, ok bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindArray || v.elem != kindString || int64(v.count) > f.size/stringHeader {
		return nil, false
	}
	text := string(f.head[v.at:v.end]) // one allocation under all elements
	list = make([]string, v.count)
	at := 0
	for i := range list {
		n := int(binary.LittleEndian.Uint64(f.head[v.at+at:]))
		list[i] = text[at+8 : at+8+n]
		at += 8 + n
	}
	return list, true
}

// stringHeader is the memory of a string beside its bytes.
const stringHeader = 16

// Ints is the array of integers at key, a fresh slice. ok is false if there is
// none, if one of them does not fit, or if all would take more memory than the
// whole file.
func (f *File) Ints(key string) (list []int64, ok bool) { return array(f, key, integer) }

// Floats is the array of numbers at key, a fresh slice. ok is false if there is
// none, or if it would take more memory than the whole file.
func (f *File) Floats(key string) (list []float64, ok bool) { return array(f, key, number) }

func array[T any](f *File, key string, decode func(kind, []byte) (T, bool)) ([]T, bool) {
	v, ok := f.values[key]
	if !ok || v.kind != kindArray || v.elem.width() == 0 || int64(v.count) > f.size/8 {
		return nil, false
	}
	width := v.elem.width()
	list := make([]T, v.count)
	for i := range list {
		at := v.at + i*width
		if list[i], ok = decode(v.elem, f.head[at:at+width]); !ok {
			return nil, false
		}
	}
	return list, true
}

func integer(k kind, b []byte) (int64, bool) {
	le := binary.LittleEndian
	switch k {
	case kindUint8:
		return int64(b[0]), true
	case kindInt8:
		return int64(int8(b[0])), true
	case kindUint16:
		return int64(le.Uint16(b)), true
	case kindInt16:
		return int64(int16(le.Uint16(b))), true
	case kindUint32:
		return int64(le.Uint32(b)), true
	case kindInt32:
		return int64(int32(le.Uint32(b))), true
	case kindInt64:
		return int64(le.Uint64(b)), true
	case kindUint64:
		n := le.Uint64(b)
		return int64(n), n <= math.MaxInt64
	case kindFloat32, kindFloat64, kindBool, kindString, kindArray:
	}
	return 0, false
}

func number(k kind, b []byte) (float64, bool) {
	if k == kindFloat32 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	}
	if k == kindFloat64 {
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
	}
	if k == kindUint64 { // also those too large for an int64
		return float64(binary.LittleEndian.Uint64(b)), true
	}
	n, ok := integer(k, b)
	return float64(n), ok
}
