package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
)

// Kind is the type of a message on the wire.
type Kind byte

// The kinds. Hello belongs to the transport.
const (
	KindHello Kind = iota + 1
	KindReserve
	KindFinish
	KindAbort
	KindCommit
	KindRenew
	KindFrame
)

// Sizes on the wire.
const (
	HeadBytes = 16      // before every body
	MaxBody   = 1 << 20 // longest body; a frame's payload is not part of it
	MaxFrame  = 1 << 20 // longest payload of a frame, unless one page is longer
)

// ErrMalformed means bytes that are no message of this protocol. The stream they
// came from has lost its footing and must be closed.
var ErrMalformed = errors.New("malformed transfer message")

// Castagnoli is the polynomial of every checksum of the protocol; the machine
// computes it in hardware.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Head is what stands before a body.
type Head struct {
	Kind Kind
	Body int // bytes
	CRC  uint32
}

// AppendHead appends a head for body, which the caller appends or writes next.
func AppendHead(b []byte, kind Kind, body []byte) []byte {
	at := len(b)
	b = append(b, byte(kind), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(body, Castagnoli))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], Castagnoli))
}

// ParseHead reads the HeadBytes of b. Errors wrap ErrMalformed.
func ParseHead(b []byte) (Head, error) {
	if len(b) != HeadBytes {
		return Head{}, fmt.Errorf("%w: head of %d bytes", ErrMalformed, len(b))
	}
	if crc32.Checksum(b[:12], Castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return Head{}, fmt.Errorf("%w: checksum of head", ErrMalformed)
	}
	h := Head{Kind: Kind(b[0]), CRC: binary.LittleEndian.Uint32(b[8:])}
	size := binary.LittleEndian.Uint32(b[4:])
	if b[1]|b[2]|b[3] != 0 || size > MaxBody {
		return Head{}, fmt.Errorf("%w: head of kind %d with a body of %d bytes", ErrMalformed, b[0], size)
	}
	h.Body = int(size)
	return h, nil
}

// Check verifies a body against its head. Errors wrap ErrMalformed.
func (h Head) Check(body []byte) error {
	if len(body) != h.Body || crc32.Checksum(body, Castagnoli) != h.CRC {
		return fmt.Errorf("%w: checksum of body", ErrMalformed)
	}
	return nil
}

// Append appends m, head and body.
func Append(b []byte, m Message) []byte {
	return finishHead(appendBody(openHead(b), m), len(b), m.kind())
}

// AppendFrame appends the header of f, head and body. Its payload follows it.
func AppendFrame(b []byte, f *Frame) []byte {
	at := len(b)
	b = openHead(b)
	b = binary.LittleEndian.AppendUint64(b, f.ID)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.Epoch))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.Layer))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.Index))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.Bytes))
	b = binary.LittleEndian.AppendUint32(b, f.CRC)
	b = appendRefs(b, f.Refs)
	return finishHead(b, at, KindFrame)
}

func openHead(b []byte) []byte {
	var room [HeadBytes]byte
	return append(b, room[:]...)
}

// finishHead fills in the head at b[at:] once the body behind it is written.
func finishHead(b []byte, at int, kind Kind) []byte {
	AppendHead(b[:at], kind, b[at+HeadBytes:])
	return b
}

func appendBody(b []byte, m Message) []byte {
	switch m := m.(type) {
	case *Reserve:
		return appendReserve(b, m)
	case *Finish:
		b = binary.LittleEndian.AppendUint64(b, m.ID)
		b = binary.LittleEndian.AppendUint64(b, uint64(m.Epoch))
		b = binary.LittleEndian.AppendUint32(b, m.Frames)
		b = binary.LittleEndian.AppendUint64(b, m.Bytes)
		b = binary.LittleEndian.AppendUint64(b, m.Digest)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Hidden)))
		for _, v := range m.Hidden {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	case *Abort:
		return append(binary.LittleEndian.AppendUint64(b, m.ID), m.Why.code())
	case *Commit:
		return binary.LittleEndian.AppendUint64(b, m.ID)
	case *Renew:
		return binary.LittleEndian.AppendUint64(b, m.ID)
	default:
		panic(fmt.Sprintf("transfer: message %T has no form on the wire", m))
	}
}

func appendReserve(b []byte, m *Reserve) []byte {
	b = binary.LittleEndian.AppendUint64(b, m.ID)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Source))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.DestEpoch))
	b = binary.LittleEndian.AppendUint64(b, m.Hash)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.From))
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Prompt))
	b = append(b, m.Digest[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Lease))
	b = AppendString(b, string(m.Dest))
	return appendRefs(b, m.Blocks)
}

// AppendString appends s, at most 65,535 bytes of it, with its length.
func AppendString(b []byte, s string) []byte {
	s = s[:min(len(s), math.MaxUint16)]
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendRefs(b []byte, refs []Ref) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(refs)))
	for _, r := range refs {
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Block))
		b = binary.LittleEndian.AppendUint32(b, r.Generation)
	}
	return b
}

// Decode reads the body of a control message. Nothing of the result shares
// memory with body. Errors wrap ErrMalformed.
func Decode(kind Kind, body []byte) (Message, error) {
	d := Decoder{rest: body}
	var m Message
	switch kind {
	case KindReserve:
		m = d.reserve()
	case KindFinish:
		m = d.finish()
	case KindAbort:
		a := &Abort{ID: d.Uint64()}
		a.Why = reasonOf(d.Byte())
		m = a
	case KindCommit:
		m = &Commit{ID: d.Uint64()}
	case KindRenew:
		m = &Renew{ID: d.Uint64()}
	case KindHello, KindFrame:
		return nil, fmt.Errorf("%w: kind %d is no control message", ErrMalformed, kind)
	default:
		return nil, fmt.Errorf("%w: kind %d", ErrMalformed, kind)
	}
	if err := d.End(); err != nil {
		return nil, err
	}
	return m, nil
}

// DecodeFrame reads the body of a frame header. Errors wrap ErrMalformed.
func DecodeFrame(body []byte) (Frame, error) {
	d := Decoder{rest: body}
	f := Frame{ID: d.Uint64(), Epoch: fleet.Epoch(d.Uint64())}
	f.Layer, f.Index, f.Bytes, f.CRC = d.count(), d.count(), d.count(), d.Uint32()
	f.Refs = d.refs()
	return f, d.End()
}

// Decoder takes fields off a body. After a fault it yields zeros; End reports it.
type Decoder struct {
	rest []byte
	bad  bool
}

// NewDecoder reads body.
func NewDecoder(body []byte) *Decoder { return &Decoder{rest: body} }

// End reports a field that did not fit, or bytes left over. It wraps ErrMalformed.
func (d *Decoder) End() error {
	if d.bad || len(d.rest) > 0 {
		return fmt.Errorf("%w: body ends early or late", ErrMalformed)
	}
	return nil
}

// Bytes takes n bytes; they share the body's memory. It is nil after a fault.
func (d *Decoder) Bytes(n int) []byte {
	if d.bad || n > len(d.rest) {
		d.bad = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

// Byte takes one byte.
func (d *Decoder) Byte() byte {
	if b := d.Bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint16 takes a 16-bit integer.
func (d *Decoder) Uint16() uint16 {
	if b := d.Bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// Uint32 takes a 32-bit integer.
func (d *Decoder) Uint32() uint32 {
	if b := d.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// Uint64 takes a 64-bit integer.
func (d *Decoder) Uint64() uint64 {
	if b := d.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// String takes a string.
func (d *Decoder) String() string { return string(d.Bytes(int(d.Uint16()))) }

// count takes a 32-bit integer that must fit an int32.
func (d *Decoder) count() int {
	v := d.Uint32()
	if v > math.MaxInt32 {
		d.bad = true
		return 0
	}
	return int(v)
}

// array takes the length of an array of size-byte elements, all of which must be
// there, so that a length cannot ask for more memory than the body has.
func (d *Decoder) array(size int) (raw []byte, n int) {
	n = d.count()
	if n > len(d.rest)/size {
		d.bad = true
		return nil, 0
	}
	return d.Bytes(n * size), n
}

func (d *Decoder) refs() []Ref {
	raw, n := d.array(8)
	if n == 0 {
		return nil
	}
	refs := make([]Ref, n)
	for i := range refs {
		refs[i] = Ref{
			Block:      int32(binary.LittleEndian.Uint32(raw[8*i:])),
			Generation: binary.LittleEndian.Uint32(raw[8*i+4:]),
		}
	}
	return refs
}

func (d *Decoder) reserve() *Reserve {
	r := &Reserve{
		ID: d.Uint64(), Source: fleet.Epoch(d.Uint64()), DestEpoch: fleet.Epoch(d.Uint64()), Hash: d.Uint64(),
		From: d.count(), Prompt: d.count(),
	}
	copy(r.Digest[:], d.Bytes(len(r.Digest)))
	r.Lease = time.Duration(d.Uint64())
	r.Dest = fleet.WorkerID(d.String())
	r.Blocks = d.refs()
	return r
}

func (d *Decoder) finish() *Finish {
	f := &Finish{
		ID: d.Uint64(), Epoch: fleet.Epoch(d.Uint64()), Frames: d.Uint32(), Bytes: d.Uint64(), Digest: d.Uint64(),
	}
	raw, n := d.array(4)
	if n == 0 {
		return f
	}
	f.Hidden = make([]float32, n)
	for i := range f.Hidden {
		f.Hidden[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return f
}
