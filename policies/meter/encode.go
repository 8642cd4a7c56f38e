package meter

import "encoding/binary"

// The opcodes that the meter writes.
const (
	opUnreachable = 0x00
	opLoop        = 0x03
	opIf          = 0x04
	opEnd         = 0x0b
	opBrIf        = 0x0d
	opCall        = 0x10
	opDrop        = 0x1a
	opSelect      = 0x1b
	opLocalGet    = 0x20
	opLocalSet    = 0x21
	opLocalTee    = 0x22
	opGlobalGet   = 0x23
	opGlobalSet   = 0x24
	opMemoryGrow  = 0x40
	opI32Const    = 0x41
	opI64Const    = 0x42
	opI32LeU      = 0x4d
	opI64LtS      = 0x53
	opI64LeS      = 0x57
	opI64Add      = 0x7c
	opI64Sub      = 0x7d
	opI64Shl      = 0x86
	opI64ShrU     = 0x88
	opI64ExtendU  = 0xad

	noResult = 0x40
	typeFunc = 0x60
	typeI32  = 0x7f
	typeI64  = 0x7e
)

// unsigned appends an unsigned LEB128 number.
func unsigned(b []byte, v int) []byte { return binary.AppendUvarint(b, uint64(v)) }

// signed appends a signed LEB128 number.
func signed(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// index appends an instruction that names something by its index.
func index(b []byte, op byte, i int) []byte { return unsigned(append(b, op), i) }
