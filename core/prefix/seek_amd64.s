//go:build !race

#include "textflag.h"

// func findTags(keys *Hash, n int, d *directory, cells *cellMap, chunks *atomic.Pointer[[]*chunk], tags *tagBatch)
//
// Two passes, as in plainTags: page numbers, then addresses.
TEXT ·findTags(SB), NOSPLIT, $64-48
	MOVQ keys+0(FP), SI
	MOVQ n+8(FP), DX
	MOVQ d+16(FP), R8
	MOVQ cells+24(FP), R9
	MOVQ 512(R8), R10 // entries
	MOVQ $0x9E3779B97F4A7C15, R11
	XORQ BX, BX

entry:
	MOVQ  (SI)(BX*8), AX
	IMULQ R11, AX
	MOVQ  AX, DI
	SHRQ  $52, DI // the cell
	MOVBLZX (R9)(DI*1), DI // the shard
	MOVQ  (R8)(DI*8), CX // its run: first below, depth above
	MOVL  CX, DI
	SHRQ  $32, CX
	XORL  $63, CX
	SHLQ  $12, AX // the run's bits
	SHRQ  $1, AX
	SHRQ  CX, AX
	ADDQ  DI, AX
	MOVL  (R10)(AX*4), AX
	MOVL  AX, numbers-64(SP)(BX*4)
	INCQ  BX
	CMPQ  BX, DX
	JLT   entry

	// After the numbers: it has them all.
	MOVQ chunks+32(FP), R10
	MOVQ (R10), R10
	MOVQ (R10), R10
	MOVQ tags+40(FP), R8
	XORQ BX, BX

group:
	MOVL    numbers-64(SP)(BX*4), AX
	MOVL    AX, DI
	SHRL    $6, DI
	MOVQ    (R10)(DI*8), DI
	ANDL    $63, AX
	SHLL    $12, AX
	ADDQ    AX, DI
	MOVWLZX (SI)(BX*8), CX
	LEAL    (CX)(CX*4), CX
	SHRL    $14, CX
	LEAQ    (DI)(CX*8), DI
	PREFETCHT0 (DI)
	MOVQ    DI, (R8)(BX*8)
	INCQ    BX
	CMPQ    BX, DX
	JLT     group
	RET

// func findSlots(keys *Hash, n int, tags *tagBatch, slots *slotBatch)
TEXT ·findSlots(SB), NOSPLIT, $0-32
	MOVQ keys+0(FP), SI
	MOVQ n+8(FP), DX
	MOVQ tags+16(FP), R8
	MOVQ slots+24(FP), R9
	MOVQ $0x0101010101010101, R10
	MOVQ $0x8080808080808080, R11
	MOVQ $0x8000000000000000, R12
	XORQ BX, BX

slot:
	MOVQ  (SI)(BX*8), AX
	MOVQ  (R8)(BX*8), DI
	MOVWLZX AX, CX
	SHRQ  $57, AX
	ORQ   $0x80, AX
	IMULQ R10, AX
	XORQ  (DI), AX      // zero where the tag is
	LEAL  (CX)(CX*4), CX
	SHRL  $14, CX       // the group
	IMUL3Q $184, CX, CX
	LEAQ  256(DI)(CX*1), DI
	MOVQ  AX, CX
	SUBQ  R10, AX
	NOTQ  CX
	ANDQ  R11, AX
	ANDQ  CX, AX
	ORQ   R12, AX
	BSFQ  AX, AX
	SHRL  $3, AX
	LEAL  (AX)(AX*2), AX
	LEAQ  (DI)(AX*8), DI
	PREFETCHT0 (DI)
	PREFETCHT0 16(DI)
	MOVQ  DI, (R9)(BX*8)
	INCQ  BX
	CMPQ  BX, DX
	JLT   slot
	RET
