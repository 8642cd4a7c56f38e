package gguf

import "strconv"

// Type is the element type of a tensor, with the number it has in the file.
type Type uint32

// The supported tensor types.
const (
	F32  Type = 0
	F16  Type = 1
	Q40  Type = 2  // 32 weights: f16 scale, 4-bit values around 8
	Q41  Type = 3  // 32 weights: f16 scale, f16 minimum, 4-bit values
	Q80  Type = 8  // 32 weights: f16 scale, 8-bit values
	Q4K  Type = 12 // 256 weights: f16 scale and minimum, 8 x 6-bit of each, 4-bit values
	Q6K  Type = 14 // 256 weights: f16 scale, 16 x 8-bit scales, 6-bit values around 32
	BF16 Type = 30
)

// typeNames holds every type number that has been given out, so that a refusal
// can name what it refuses.
var typeNames = map[Type]string{
	F32: "F32", F16: "F16", Q40: "Q4_0", Q41: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1",
	Q80: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", Q4K: "Q4_K", 13: "Q5_K", Q6K: "Q6_K", 15: "Q8_K",
	16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
	23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", BF16: "BF16",
	31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4",
	37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4",
}

// String is the type's usual name, e.g. "Q4_1", or its number.
func (t Type) String() string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return "type " + strconv.FormatUint(uint64(t), 10)
}

// Block is the size of the type's smallest unit: elements elements take bytes
// bytes. Both are zero for an unsupported type.
func (t Type) Block() (elements, bytes int) {
	switch t {
	case F32:
		return 1, 4
	case F16, BF16:
		return 1, 2
	case Q40:
		return 32, 18
	case Q41:
		return 32, 20
	case Q80:
		return 32, 34
	case Q4K:
		return 256, 144
	case Q6K:
		return 256, 210
	}
	return 0, 0
}

// Bytes is the encoded size of n elements, a multiple of the type's block.
func (t Type) Bytes(n int) int {
	elements, bytes := t.Block()
	return n / elements * bytes
}
