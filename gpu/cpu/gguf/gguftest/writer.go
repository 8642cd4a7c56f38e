package gguftest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/yardmaster/yardmaster/gpu/cpu/f16"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
)

// Writer collects metadata and tensors and encodes them as GGUF version 3. The
// zero value is an empty file.
type Writer struct {
	// Version is the version number written, 3 when zero.
	Version uint32
	keys    []byte
	nKeys   uint64
	tensors []tensor
	// overridden keys are written by the caller of TinyModel.
	overridden map[string]any
}

type tensor struct {
	name  string
	typ   gguf.Type
	shape []int
	data  []byte
}

// Key adds metadata. The Go type of v picks the GGUF type: bool, uint8 to
// uint64, int8 to int64, float32, float64, string, or a slice of one of them.
// It panics on any other type.
func (w *Writer) Key(key string, v any) {
	if _, ok := w.overridden[key]; ok {
		return
	}
	w.keys = appendString(w.keys, key)
	w.keys = appendValue(w.keys, v)
	w.nKeys++
}

// Tensor adds a tensor of encoded data.
func (w *Writer) Tensor(name string, typ gguf.Type, shape []int, data []byte) {
	w.tensors = append(w.tensors, tensor{name, typ, shape, data})
}

// Bytes encodes the file.
func (w *Writer) Bytes() []byte {
	le := binary.LittleEndian
	version := w.Version
	if version == 0 {
		version = 3
	}
	b := le.AppendUint32([]byte("GGUF"), version)
	b = le.AppendUint64(b, uint64(len(w.tensors)))
	b = le.AppendUint64(b, w.nKeys)
	b = append(b, w.keys...)
	offset := 0
	for _, t := range w.tensors {
		b = appendString(b, t.name)
		b = le.AppendUint32(b, uint32(len(t.shape)))
		for _, d := range t.shape {
			b = le.AppendUint64(b, uint64(d))
		}
		b = le.AppendUint32(b, uint32(t.typ))
		b = le.AppendUint64(b, uint64(offset))
		offset = aligned(offset + len(t.data))
	}
	for _, t := range w.tensors {
		b = append(b, make([]byte, aligned(len(b))-len(b))...)
		b = append(b, t.data...)
	}
	return b
}

func aligned(n int) int { return (n + 31) &^ 31 }

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

func appendValue(b []byte, v any) []byte {
	le := binary.LittleEndian
	switch v := v.(type) {
	case []string:
		return appendArray(b, v)
	case []int32:
		return appendArray(b, v)
	case []uint32:
		return appendArray(b, v)
	case []float32:
		return appendArray(b, v)
	case []bool:
		return appendArray(b, v)
	default:
		b = le.AppendUint32(b, number(v))
		return appendScalar(b, v)
	}
}

func appendArray[T any](b []byte, list []T) []byte {
	var zero T
	b = binary.LittleEndian.AppendUint32(b, 9)
	b = binary.LittleEndian.AppendUint32(b, number(zero))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(list)))
	for _, v := range list {
		b = appendScalar(b, v)
	}
	return b
}

// number is the type number of a scalar.
func number(v any) uint32 {
	switch v.(type) {
	case uint8:
		return 0
	case int8:
		return 1
	case uint16:
		return 2
	case int16:
		return 3
	case uint32:
		return 4
	case int32:
		return 5
	case float32:
		return 6
	case bool:
		return 7
	case string:
		return 8
	case uint64:
		return 10
	case int64:
		return 11
	case float64:
		return 12
	}
	panic(fmt.Sprintf("gguftest: no GGUF type for %T", v))
}

func appendScalar(b []byte, v any) []byte {
	if s, ok := v.(string); ok {
		return appendString(b, s)
	}
	b, err := binary.Append(b, binary.LittleEndian, v)
	if err != nil {
		panic(fmt.Sprintf("gguftest: %T: %v", v, err))
	}
	return b
}

// Encode encodes x as F32, F16 or BF16, rounding. It panics on other types,
// whose random blocks [Random] makes.
func Encode(t gguf.Type, x []float32) []byte {
	var b []byte
	for _, v := range x {
		bits := math.Float32bits(v)
		switch t {
		case gguf.F32:
			b = binary.LittleEndian.AppendUint32(b, bits)
		case gguf.F16:
			b = binary.LittleEndian.AppendUint16(b, f16.Bits(v))
		case gguf.BF16:
			b = binary.LittleEndian.AppendUint16(b, uint16((bits+0x7fff+bits>>16&1)>>16))
		case gguf.Q40, gguf.Q41, gguf.Q80, gguf.Q4K, gguf.Q6K:
			panic(fmt.Sprintf("gguftest: cannot encode %v", t))
		}
	}
	return b
}
