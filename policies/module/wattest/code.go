package wattest

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/policies/module"
)

func itoa(n int) string { return strconv.Itoa(n) }

// assembler turns words into code.
type assembler struct {
	words []string
	out   []byte
}

// Code assembles instructions: names, each with its immediates as numbers. Blocks
// take a result's type, a type's index or nothing ("block i32 … end"); br_table
// takes its number of targets, the targets, and the default; loads and stores take
// an offset and may take a lane; v128.const takes two i64; "byte 0x…" is itself;
// "select t" is written select-t.
func Code(text string) []byte {
	a := assembler{words: strings.Fields(text)}
	for len(a.words) > 0 {
		a.instruction(a.next())
	}
	return a.out
}

func (a *assembler) next() string {
	if len(a.words) == 0 {
		panic("wattest: the code ends in the middle of an instruction")
	}
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

// numeric says whether the next word is a number.
func (a *assembler) numeric() bool {
	if len(a.words) == 0 {
		return false
	}
	_, err := strconv.ParseInt(a.words[0], 0, 64)
	return err == nil
}

func (a *assembler) int() int64 {
	w := a.next()
	n, err := strconv.ParseInt(w, 0, 64)
	if err != nil {
		u, err := strconv.ParseUint(w, 0, 64)
		if err != nil {
			panic("wattest: " + w + " is no number")
		}
		return int64(u)
	}
	return n
}

func (a *assembler) index() { a.out = binary.AppendUvarint(a.out, uint64(a.int())) }

// Signed appends a signed LEB128 number.
func Signed(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func (a *assembler) opcode(op module.Op) {
	switch {
	case op < 0x100:
		a.out = append(a.out, byte(op))
	case op < 0x200:
		a.out = binary.AppendUvarint(append(a.out, 0xfc), uint64(op-0x100))
	default:
		a.out = binary.AppendUvarint(append(a.out, 0xfd), uint64(op-0x200))
	}
}

func (a *assembler) instruction(name string) {
	if name == "byte" {
		a.out = append(a.out, byte(a.int()))
		return
	}
	op, ok := module.OpNamed(strings.Replace(name, "select-t", "select t", 1))
	if !ok {
		panic("wattest: there is no instruction " + name)
	}
	a.opcode(op)
	switch name {
	case "block", "loop", "if":
		a.block()
	case "br", "br_if", "call", "local.get", "local.set", "local.tee", "global.get", "global.set", "table.get", "table.set",
		"table.size", "table.grow", "table.fill", "ref.func", "data.drop", "elem.drop":
		a.index()
	case "call_indirect", "table.init", "table.copy":
		a.index()
		a.index()
	case "br_table":
		n := a.int()
		a.out = binary.AppendUvarint(a.out, uint64(n))
		for range n + 1 {
			a.index()
		}
	case "memory.init":
		a.index()
		a.out = append(a.out, 0)
	case "memory.size", "memory.grow", "memory.fill":
		a.out = append(a.out, 0)
	case "memory.copy":
		a.out = append(a.out, 0, 0)
	case "i32.const":
		a.out = Signed(a.out, int64(int32(a.int())))
	case "i64.const":
		a.out = Signed(a.out, a.int())
	case "f32.const":
		a.out = binary.LittleEndian.AppendUint32(a.out, math.Float32bits(float32(a.float())))
	case "f64.const":
		a.out = binary.LittleEndian.AppendUint64(a.out, math.Float64bits(a.float()))
	case "v128.const":
		a.out = binary.LittleEndian.AppendUint64(a.out, uint64(a.int()))
		a.out = binary.LittleEndian.AppendUint64(a.out, uint64(a.int()))
	case "select-t":
		a.out = append(append(a.out, 1), types(a.next())...)
	case "ref.null":
		a.out = append(a.out, types(a.next())...)
	default:
		a.rest(op, name)
	}
}

// rest encodes what loads, stores and lanes need.
func (a *assembler) rest(op module.Op, name string) {
	if strings.Contains(name, "load") || strings.Contains(name, "store") {
		a.out = binary.AppendUvarint(a.out, uint64(op.Align()))
		a.index()
	}
	_, named := op.Lanes()
	for range named {
		a.out = append(a.out, byte(a.int()))
	}
}

func (a *assembler) block() {
	switch {
	case a.numeric():
		a.out = Signed(a.out, a.int())
	case len(a.words) > 0 && typeBytes[a.words[0]] != 0:
		a.out = append(a.out, types(a.next())...)
	default:
		a.out = append(a.out, 0x40)
	}
}

func (a *assembler) float() float64 {
	w := a.next()
	f, err := strconv.ParseFloat(w, 64)
	if err != nil {
		panic("wattest: " + w + " is no number")
	}
	return f
}
