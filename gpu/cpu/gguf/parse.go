package gguf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

var (
	// ErrFormat says that a file is not GGUF, is damaged, or lies about itself.
	ErrFormat = errors.New("not a valid GGUF file")
	// ErrUnsupported says that a file is GGUF of a kind this package does not read.
	ErrUnsupported = errors.New("unsupported GGUF file")
)

// Error is a refusal. It unwraps to [ErrFormat] or [ErrUnsupported].
type Error struct {
	Offset  int64 // of the byte at which the problem stands
	Problem string
	kind    error
}

// Error gives the problem and its offset.
func (e *Error) Error() string {
	return fmt.Sprintf("%v: %s (at byte offset %d)", e.Unwrap(), e.Problem, e.Offset)
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error {
	if e.kind == nil {
		return ErrFormat
	}
	return e.kind
}

// Bounds on what a header may hold. Real models stay far below them.
const (
	maxKeys      = 1 << 16
	maxTensors   = 1 << 16
	maxDims      = 4
	maxName      = 1 << 12
	maxAlignment = 1 << 20
)

// kind is the type of a metadata value, with its number in the file.
type kind uint32

const (
	kindUint8 kind = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

// width is the bytes of a value of fixed size, else 0.
func (k kind) width() int {
	switch k {
	case kindUint8, kindInt8, kindBool:
		return 1
	case kindUint16, kindInt16:
		return 2
	case kindUint32, kindInt32, kindFloat32:
		return 4
	case kindUint64, kindInt64, kindFloat64:
		return 8
	case kindString, kindArray:
	}
	return 0
}

// value is where an encoded metadata value lies in the header.
type value struct {
	kind, elem kind
	count      int // elements of an array
	at, end    int
}

// cursor walks the header, reading it in as it goes.
type cursor struct {
	r    io.ReaderAt
	size int64
	buf  []byte // the file's first len(buf) bytes
	at   int
}

const firstRead = 64 << 10

// take returns the next n bytes. It reads ahead, doubling, never past the end
// of the file; n is compared with the file before anything is allocated.
func (c *cursor) take(n uint64, what string) ([]byte, error) {
	if n > uint64(c.size-int64(c.at)) {
		return nil, c.errorf("%s of %d bytes, but the file ends after %d", what, n, c.size-int64(c.at))
	}
	end := c.at + int(n)
	if end > len(c.buf) {
		if err := c.readTo(end); err != nil {
			return nil, err
		}
	}
	b := c.buf[c.at:end]
	c.at = end
	return b, nil
}

func (c *cursor) readTo(end int) error {
	want := min(max(2*len(c.buf), end, firstRead), int(c.size))
	grown := make([]byte, want)
	have := copy(grown, c.buf)
	if n, err := c.r.ReadAt(grown[have:], int64(have)); n < want-have {
		return fmt.Errorf("gguf: reading at offset %d: %w", have+n, err)
	}
	c.buf = grown
	return nil
}

func (c *cursor) errorf(format string, args ...any) error {
	return &Error{Offset: int64(c.at), Problem: fmt.Sprintf(format, args...)}
}

func (c *cursor) unsupported(format string, args ...any) error {
	return &Error{Offset: int64(c.at), Problem: fmt.Sprintf(format, args...), kind: ErrUnsupported}
}

func (c *cursor) uint32(what string) (uint32, error) {
	b, err := c.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) uint64(what string) (uint64, error) {
	b, err := c.take(8, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

func (c *cursor) name(what string) (string, error) {
	n, err := c.uint64("length of " + what)
	if err != nil {
		return "", err
	}
	if n > maxName {
		c.at -= 8
		return "", c.errorf("%s of %d bytes; the limit is %d", what, n, maxName)
	}
	b, err := c.take(n, what)
	return string(b), err
}

func (f *File) parse() error {
	c := &cursor{r: f.r, size: f.size}
	tensors, keys, err := f.parsePreamble(c)
	if err != nil {
		return err
	}
	for range keys {
		if err := f.parseKey(c); err != nil {
			return err
		}
	}
	for range tensors {
		if err := f.parseTensor(c); err != nil {
			return err
		}
	}
	f.head = bytes.Clone(c.buf[:c.at]) // without what was read ahead
	return f.placeTensors(c)
}

func (f *File) parsePreamble(c *cursor) (tensors, keys uint64, err error) {
	magic, err := c.take(4, "magic number")
	if err != nil {
		return 0, 0, err
	}
	if string(magic) != "GGUF" {
		c.at = 0
		return 0, 0, c.errorf("magic number %q, want \"GGUF\"", magic)
	}
	if f.version, err = c.uint32("version"); err != nil {
		return 0, 0, err
	}
	if f.version != 2 && f.version != 3 {
		c.at -= 4
		if f.version&0xffff == 0 {
			return 0, 0, c.unsupported("big-endian file")
		}
		return 0, 0, c.unsupported("version %d; versions 2 and 3 are read", f.version)
	}
	if tensors, err = f.parseCount(c, "tensors", maxTensors); err != nil {
		return 0, 0, err
	}
	keys, err = f.parseCount(c, "metadata keys", maxKeys)
	return tensors, keys, err
}

func (f *File) parseCount(c *cursor, what string, limit uint64) (uint64, error) {
	n, err := c.uint64("number of " + what)
	if err == nil && n > limit {
		c.at -= 8
		return 0, c.errorf("%d %s; the limit is %d", n, what, limit)
	}
	return n, err
}

func (f *File) parseKey(c *cursor) error {
	start := c.at
	key, err := c.name("metadata key")
	if err != nil {
		return err
	}
	if f.Has(key) {
		c.at = start
		return c.errorf("metadata key %q stands twice", key)
	}
	k, err := c.uint32("type of " + key)
	if err != nil {
		return err
	}
	v := value{kind: kind(k), at: c.at}
	switch {
	case v.kind == kindArray:
		v, err = parseArray(c, key)
	case v.kind == kindString:
		v.at += 8
		err = skipString(c, key)
	case v.kind.width() > 0:
		err = skipScalars(c, v.kind, 1, key)
	default:
		c.at -= 4
		err = c.errorf("metadata key %q has unknown type %d", key, k)
	}
	if err != nil {
		return err
	}
	v.end = c.at
	f.keys = append(f.keys, key)
	f.values[key] = v
	return nil
}

func parseArray(c *cursor, key string) (value, error) {
	elem, err := c.uint32("element type of " + key)
	if err != nil {
		return value{}, err
	}
	n, err := c.uint64("length of " + key)
	if err != nil {
		return value{}, err
	}
	v := value{kind: kindArray, elem: kind(elem), at: c.at}
	least := uint64(v.elem.width()) // bytes of the shortest element
	switch {
	case v.elem == kindString:
		least = 8
	case v.elem == kindArray:
		c.at -= 12
		return value{}, c.unsupported("metadata key %q is an array of arrays", key)
	case least == 0:
		c.at -= 12
		return value{}, c.errorf("metadata key %q has unknown element type %d", key, elem)
	}
	if n > uint64(c.size-int64(c.at))/least {
		c.at -= 8
		return value{}, c.errorf("metadata key %q has %d elements, more than the file can hold", key, n)
	}
	v.count = int(n)
	if v.elem != kindString {
		return v, skipScalars(c, v.elem, n, key)
	}
	for range n {
		if err := skipString(c, key); err != nil {
			return value{}, err
		}
	}
	return v, nil
}

func skipString(c *cursor, key string) error {
	n, err := c.uint64("length of a string of " + key)
	if err != nil {
		return err
	}
	_, err = c.take(n, "string of "+key)
	return err
}

// skipScalars passes over n values of kind k. n*width has been compared with
// the file's size by the caller, or n is 1.
func skipScalars(c *cursor, k kind, n uint64, key string) error {
	start := c.at
	b, err := c.take(n*uint64(k.width()), "value of "+key)
	if err != nil || k != kindBool {
		return err
	}
	for i, x := range b {
		if x > 1 {
			c.at = start + i
			return c.errorf("metadata key %q has boolean %d", key, x)
		}
	}
	return nil
}

func (f *File) parseTensor(c *cursor) error {
	start := c.at
	name, err := c.name("tensor name")
	if err != nil {
		return err
	}
	if _, twice := f.byName[name]; twice {
		c.at = start
		return c.errorf("tensor %q stands twice", name)
	}
	shape, elements, err := parseShape(c, name)
	if err != nil {
		return err
	}
	typ, err := c.uint32("type of tensor " + name)
	if err != nil {
		return err
	}
	t := Tensor{Name: name, Type: Type(typ), Shape: shape}
	per, size := t.Type.Block()
	if per == 0 {
		c.at -= 4
		return c.unsupported("tensor %q has type %v, which is not supported", name, t.Type)
	}
	if shape[0]%per != 0 {
		c.at -= 4
		return c.errorf("tensor %q has rows of %d elements; %v comes in blocks of %d", name, shape[0], t.Type, per)
	}
	t.Size = elements / int64(per) * int64(size) // cannot overflow: size <= 7*per and elements <= maxElements
	offset, err := c.uint64("offset of tensor " + name)
	if err != nil {
		return err
	}
	if offset > uint64(f.size) || t.Size > f.size {
		c.at -= 8
		return c.errorf("tensor %q takes %d bytes at %d, but the file has %d", name, t.Size, offset, f.size)
	}
	t.Offset = int64(offset) // relative until placeTensors
	f.byName[name] = len(f.tensors)
	f.tensors = append(f.tensors, t)
	return nil
}

const maxElements = math.MaxInt64 / 8

func parseShape(c *cursor, name string) (shape []int, elements int64, err error) {
	dims, err := c.uint32("dimensions of tensor " + name)
	if err != nil {
		return nil, 0, err
	}
	if dims == 0 || dims > maxDims {
		c.at -= 4
		return nil, 0, c.errorf("tensor %q has %d dimensions, want 1 to %d", name, dims, maxDims)
	}
	elements = 1
	for range dims {
		d, err := c.uint64("shape of tensor " + name)
		if err != nil {
			return nil, 0, err
		}
		if d == 0 || d > uint64(maxElements/elements) || d > math.MaxInt {
			c.at -= 8
			return nil, 0, c.errorf("tensor %q has a dimension of %d after %d elements", name, d, elements)
		}
		elements *= int64(d)
		shape = append(shape, int(d))
	}
	return shape, elements, nil
}

// placeTensors makes offsets absolute and checks that no tensor leaves the
// file or lies over another.
func (f *File) placeTensors(c *cursor) error {
	align := int64(32)
	if v, ok := f.values["general.alignment"]; ok {
		n, ok := f.Int("general.alignment")
		if !ok || n <= 0 || n > maxAlignment || n&(n-1) != 0 {
			c.at = v.at
			return c.errorf("general.alignment is not a power of two up to %d", maxAlignment)
		}
		align = n
	}
	start := (int64(len(f.head)) + align - 1) &^ (align - 1)
	order := make([]*Tensor, len(f.tensors))
	for i := range f.tensors {
		t := &f.tensors[i]
		order[i] = t
		relative := t.Offset
		t.Offset += start
		if relative%align != 0 {
			return &Error{Offset: t.Offset, Problem: fmt.Sprintf("tensor %q starts at %d, not a multiple of the alignment %d", t.Name, relative, align)}
		}
		if t.Offset > f.size-t.Size {
			return &Error{Offset: t.Offset, Problem: fmt.Sprintf("tensor %q of %d bytes runs past the end of the file at %d", t.Name, t.Size, f.size)}
		}
	}
	slices.SortStableFunc(order, func(a, b *Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := 1; i < len(order); i++ {
		a, b := order[i-1], order[i]
		if a.Offset+a.Size > b.Offset {
			return &Error{Offset: b.Offset, Problem: fmt.Sprintf("tensors %q and %q overlap", a.Name, b.Name)}
		}
	}
	return nil
}
