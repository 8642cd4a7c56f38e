//go:build !race

#include "textflag.h"

// func findTags(keys *Hash, n int, d *directory, cells *cellMap, chunks *atomic.Pointer[[]*chunk], tags *tagBatch)
//
// Two passes, as in plainTags: page numbers, then addresses. Few keys at a time
// keep the numbers in the nearest cache.
TEXT ·findTags(SB), NOSPLIT, $64-48
	MOVQ keys+0(FP), SI
	MOVQ n+8(FP), DX
	MOVQ d+16(FP), R8
	MOVQ cells+24(FP), R9
	MOVQ tags+40(FP), R13
	MOVQ 512(R8), R10 // entries
	MOVQ $0x9E3779B97F4A7C15, R11
	MOVQ $0x7FFFFFFFFFFFF800, R12
	LEAQ (SI)(DX*8), SI // one past the last key
	LEAQ numbers-64(SP), DI
	LEAQ (DI)(DX*4), DI
	NEGQ DX
	MOVQ DX, BX

entry:
	MOVQ    (SI)(BX*8), AX
	IMULQ   R11, AX
	MOVQ    AX, CX
	SHRQ    $52, CX // the cell
	MOVBLZX (R9)(CX*1), CX // the shard
	MOVQ    (R8)(CX*8), CX // its run: first below, depth above
	SHLQ    $11, AX
	ANDQ    R12, AX // the run's bits, one to the right
	MOVL    CX, R14
	SHRQ    $32, CX
	NOTL    CX // modulo 64, 63 less the depth
	SHRQ    CX, AX
	ADDQ    R14, AX
	MOVL    (R10)(AX*4), AX
	MOVL    AX, (DI)(BX*4)
	INCQ    BX
	JNZ     entry

	// After the numbers: it has them all.
	MOVQ chunks+32(FP), R10
	MOVQ (R10), R10
	MOVQ (R10), R10
	MOVQ DX, BX
	NEGQ DX
	LEAQ (R13)(DX*8), R13 // one past the last address

group:
	MOVL    (DI)(BX*4), AX
	MOVWLZX (SI)(BX*8), CX
	MOVL    AX, R14
	SHRL    $6, R14
	ANDL    $63, AX
	SHLL    $12, AX
	ADDQ    (R10)(R14*8), AX
	LEAL    (CX)(CX*4), CX
	SHRL    $14, CX
	LEAQ    (AX)(CX*8), AX
	PREFETCHT0 (AX)
	MOVQ    AX, (R13)(BX*8)
	INCQ    BX
	JNZ     group
	RET

// func findSlots(keys *Hash, n int, tags *tagBatch, slots *slotBatch)
TEXT ·findSlots(SB), NOSPLIT, $0-32
	MOVQ keys+0(FP), SI
	MOVQ n+8(FP), BX
	MOVQ tags+16(FP), R8
	MOVQ slots+24(FP), R9
	MOVQ $0x0101010101010101, R10
	MOVQ $0x8080808080808080, R11
	MOVQ $0x8000000000000000, R12
	LEAQ (SI)(BX*8), SI
	LEAQ (R8)(BX*8), R8
	LEAQ (R9)(BX*8), R9
	NEGQ BX

slot:
	MOVQ    (SI)(BX*8), AX
	MOVQ    (R8)(BX*8), DI
	MOVWLZX AX, CX
	SHRQ    $57, AX
	ORQ     $0x80, AX
	IMULQ   R10, AX
	XORQ    (DI), AX // a zero byte where the tag is
	LEAL    (CX)(CX*4), CX
	SHRL    $14, CX // the group
	IMUL3Q  $184, CX, CX // less the group's own word
	ADDQ    CX, DI
	MOVQ    AX, CX
	SUBQ    R10, AX
	NOTQ    CX
	ANDQ    R11, AX
	ANDQ    CX, AX
	ORQ     R12, AX
	TZCNTQ  AX, AX // on a processor without it this is BSF, which is as good: AX is not zero
	SHRL    $3, AX
	LEAL    (AX)(AX*2), AX
	LEAQ    256(DI)(AX*8), AX
	PREFETCHT0 (AX)
	PREFETCHT0 16(AX)
	MOVQ    AX, (R9)(BX*8)
	INCQ    BX
	JNZ     slot
	RET

// func fetch(slots *slotBatch)
TEXT ·fetch(SB), NOSPLIT, $0-8
	MOVQ slots+0(FP), SI
	LEAQ 128(SI), DI

ask:
	MOVQ (SI), AX
	MOVQ 8(SI), BX
	MOVQ 16(SI), CX
	MOVQ 24(SI), DX
	PREFETCHT0 (AX)
	PREFETCHT0 16(AX)
	PREFETCHT0 (BX)
	PREFETCHT0 16(BX)
	PREFETCHT0 (CX)
	PREFETCHT0 16(CX)
	PREFETCHT0 (DX)
	PREFETCHT0 16(DX)
	ADDQ $32, SI
	CMPQ SI, DI
	JNE  ask
	RET
