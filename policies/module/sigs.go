package module

// A sig is the type of an instruction that always has the same one, as an index
// into signatures; sigNone stands for those whose type depends on what is around.
type sig uint8

const (
	sigNone sig = iota
	sig0toD
	sig0toF
	sig0toI
	sig0toL
	sig0toV
	sigDtoD
	sigDtoF
	sigDtoI
	sigDtoL
	sigDtoV
	sigDDtoD
	sigDDtoI
	sigFtoD
	sigFtoF
	sigFtoI
	sigFtoL
	sigFtoV
	sigFFtoF
	sigFFtoI
	sigItoD
	sigItoF
	sigItoI
	sigItoL
	sigItoV
	sigIDto0
	sigIFto0
	sigIIto0
	sigIItoI
	sigIIIto0
	sigILto0
	sigIVto0
	sigIVtoV
	sigLtoD
	sigLtoF
	sigLtoI
	sigLtoL
	sigLtoV
	sigLLtoI
	sigLLtoL
	sigVtoD
	sigVtoF
	sigVtoI
	sigVtoL
	sigVtoV
	sigVDtoV
	sigVFtoV
	sigVItoV
	sigVLtoV
	sigVVtoV
	sigVVVtoV
)

// A signature is what an instruction takes off the stack, the first deepest, and
// what it leaves; zero is nothing.
type signature struct {
	pops [3]ValType
	n    uint8
	push ValType
}

var signatures = [...]signature{
	sigNone:   {},
	sig0toD:   {[3]ValType{}, 0, F64},
	sig0toF:   {[3]ValType{}, 0, F32},
	sig0toI:   {[3]ValType{}, 0, I32},
	sig0toL:   {[3]ValType{}, 0, I64},
	sig0toV:   {[3]ValType{}, 0, V128},
	sigDtoD:   {[3]ValType{F64}, 1, F64},
	sigDtoF:   {[3]ValType{F64}, 1, F32},
	sigDtoI:   {[3]ValType{F64}, 1, I32},
	sigDtoL:   {[3]ValType{F64}, 1, I64},
	sigDtoV:   {[3]ValType{F64}, 1, V128},
	sigDDtoD:  {[3]ValType{F64, F64}, 2, F64},
	sigDDtoI:  {[3]ValType{F64, F64}, 2, I32},
	sigFtoD:   {[3]ValType{F32}, 1, F64},
	sigFtoF:   {[3]ValType{F32}, 1, F32},
	sigFtoI:   {[3]ValType{F32}, 1, I32},
	sigFtoL:   {[3]ValType{F32}, 1, I64},
	sigFtoV:   {[3]ValType{F32}, 1, V128},
	sigFFtoF:  {[3]ValType{F32, F32}, 2, F32},
	sigFFtoI:  {[3]ValType{F32, F32}, 2, I32},
	sigItoD:   {[3]ValType{I32}, 1, F64},
	sigItoF:   {[3]ValType{I32}, 1, F32},
	sigItoI:   {[3]ValType{I32}, 1, I32},
	sigItoL:   {[3]ValType{I32}, 1, I64},
	sigItoV:   {[3]ValType{I32}, 1, V128},
	sigIDto0:  {[3]ValType{I32, F64}, 2, 0},
	sigIFto0:  {[3]ValType{I32, F32}, 2, 0},
	sigIIto0:  {[3]ValType{I32, I32}, 2, 0},
	sigIItoI:  {[3]ValType{I32, I32}, 2, I32},
	sigIIIto0: {[3]ValType{I32, I32, I32}, 3, 0},
	sigILto0:  {[3]ValType{I32, I64}, 2, 0},
	sigIVto0:  {[3]ValType{I32, V128}, 2, 0},
	sigIVtoV:  {[3]ValType{I32, V128}, 2, V128},
	sigLtoD:   {[3]ValType{I64}, 1, F64},
	sigLtoF:   {[3]ValType{I64}, 1, F32},
	sigLtoI:   {[3]ValType{I64}, 1, I32},
	sigLtoL:   {[3]ValType{I64}, 1, I64},
	sigLtoV:   {[3]ValType{I64}, 1, V128},
	sigLLtoI:  {[3]ValType{I64, I64}, 2, I32},
	sigLLtoL:  {[3]ValType{I64, I64}, 2, I64},
	sigVtoD:   {[3]ValType{V128}, 1, F64},
	sigVtoF:   {[3]ValType{V128}, 1, F32},
	sigVtoI:   {[3]ValType{V128}, 1, I32},
	sigVtoL:   {[3]ValType{V128}, 1, I64},
	sigVtoV:   {[3]ValType{V128}, 1, V128},
	sigVDtoV:  {[3]ValType{V128, F64}, 2, V128},
	sigVFtoV:  {[3]ValType{V128, F32}, 2, V128},
	sigVItoV:  {[3]ValType{V128, I32}, 2, V128},
	sigVLtoV:  {[3]ValType{V128, I64}, 2, V128},
	sigVVtoV:  {[3]ValType{V128, V128}, 2, V128},
	sigVVVtoV: {[3]ValType{V128, V128, V128}, 3, V128},
}
