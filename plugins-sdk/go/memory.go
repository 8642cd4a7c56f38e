package ym

import (
	"math"
	"unsafe"
)

// Rows is how many workers, samples or outcomes one call can take.
const Rows = 4096

// F32 is a column of numbers; NaN is unknown. Columns are arrays and not slices since
// an index below Rows then needs no check, and an array one word in place of three.
type F32 [Rows]float32

// U32 is a column of counts and hashes; [Unknown] is unknown.
type U32 [Rows]uint32

// Kind is what a policy decides.
type Kind uint8

// The kinds.
const (
	Router Kind = iota
	Admission
	Autoscaler
	Observer
)

// requestSizes are the request blocks' sizes in bytes.
var requestSizes = [...]int{
	Router: int(unsafe.Sizeof(RouterRequest{})), Admission: int(unsafe.Sizeof(AdmissionRequest{})),
	Autoscaler: int(unsafe.Sizeof(PoolsRequest{})), Observer: int(unsafe.Sizeof(OutcomesRequest{})),
}

// The header's first words: "YML1" and the version.
const (
	magic       = 0x314c_4d59
	abi         = 1 << 16
	headerWords = 10
	vector      = 16 // columns stand at its multiples
)

// Memory is a policy's buffers, which the host writes and reads. Bindings make one;
// policies see its parts.
type Memory struct {
	header  []uint32
	request []byte
	params  []uint64
	columns []unsafe.Pointer
}

// NewMemory makes the buffers for a kind, with that many input and output columns and
// parameters.
func NewMemory(kind Kind, inputs, outputs, params int) *Memory {
	words := make([]uint64, (requestSizes[kind]+7)/8)
	m := &Memory{
		header:  make([]uint32, headerWords, headerWords+inputs+outputs),
		request: unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), requestSizes[kind]),
		params:  make([]uint64, params+1),
		columns: make([]unsafe.Pointer, inputs+outputs),
	}
	h := m.header
	h[0], h[1], h[2], h[3] = magic, abi, uint32(headerWords+inputs+outputs), Rows
	h[4], h[5] = address(unsafe.Pointer(&words[0])), uint32(len(m.request))
	h[6], h[7] = address(unsafe.Pointer(&m.params[0])), uint32(8*params)
	h[8], h[9] = uint32(inputs), uint32(outputs)
	for i := range m.columns {
		b := make([]byte, 4*Rows+vector)
		skip := -uintptr(unsafe.Pointer(&b[0])) % vector
		m.columns[i] = unsafe.Pointer(&b[skip])
		m.header = append(m.header, address(m.columns[i]))
	}
	return m
}

// address is where something is in the guest's memory of at most 4 GiB.
func address(p unsafe.Pointer) uint32 { return uint32(uintptr(p)) }

// Layout is where the header is.
func (m *Memory) Layout() uint32 { return address(unsafe.Pointer(&m.header[0])) }

// F32 is the column of that place, inputs first.
func (m *Memory) F32(column int) *F32 { return (*F32)(m.columns[column]) }

// U32 is F32 for columns of that type.
func (m *Memory) U32(column int) *U32 { return (*U32)(m.columns[column]) }

// Request is the request block, for the kind's pointer type.
func (m *Memory) Request() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m.request)) }

// Float is the parameter of that place.
func (m *Memory) Float(param int) float64 { return math.Float64frombits(m.params[param]) }

// Int is the parameter of that place.
func (m *Memory) Int(param int) int64 { return int64(m.params[param]) }

// Bool is the parameter of that place.
func (m *Memory) Bool(param int) bool { return m.params[param] != 0 }

// Code is what a call returns: that it has decided, or not.
func Code(decided bool) int32 {
	if decided {
		return 0
	}
	return 1
}
