#include "textflag.h"

// Columns are walked by an index that rises from minus their length to 0, from the
// address of their end. MINPD and MAXPD give their first operand here, the source,
// where one of the two is NaN or both are equal.

DATA infinity<>+0(SB)/8, $0x7FF0000000000000
DATA infinity<>+8(SB)/8, $0x7FF0000000000000
GLOBL infinity<>(SB), RODATA|NOPTR, $16

// func quadsLeast(x []float64, least float64) float64
TEXT ·quadsLeast(SB), NOSPLIT, $0-40
	MOVQ     x_base+0(FP), SI
	MOVQ     x_len+8(FP), BX
	MOVSD    least+24(FP), X0
	UNPCKLPD X0, X0
	MOVAPD   X0, X1
	LEAQ     (SI)(BX*8), SI
	NEGQ     BX
	JZ       done

four:
	MOVUPD (SI)(BX*8), X2
	MOVUPD 16(SI)(BX*8), X3
	MINPD  X0, X2
	MINPD  X1, X3
	MOVAPD X2, X0
	MOVAPD X3, X1
	ADDQ   $4, BX
	JNZ    four

done:
	MINPD    X1, X0
	MOVAPD   X0, X1
	UNPCKHPD X1, X1
	MINSD    X1, X0
	MOVSD    X0, ret+32(FP)
	RET

// func quadsPlace(x []float64, v float64) int
TEXT ·quadsPlace(SB), NOSPLIT, $0-40
	MOVQ     x_base+0(FP), SI
	MOVQ     x_len+8(FP), BX
	MOVSD    v+24(FP), X0
	UNPCKLPD X0, X0
	MOVQ     BX, DX
	LEAQ     (SI)(BX*8), SI
	NEGQ     BX
	JZ       none

four:
	MOVUPD   (SI)(BX*8), X1
	MOVUPD   16(SI)(BX*8), X2
	CMPPD    X0, X1, $0
	CMPPD    X0, X2, $0
	MOVMSKPD X1, AX
	MOVMSKPD X2, CX
	LEAL     (AX)(CX*4), AX
	TESTL    AX, AX
	JNZ      found
	ADDQ     $4, BX
	JNZ      four

none:
	MOVQ $-1, ret+32(FP)
	RET

found:
	BSFL AX, AX
	ADDQ DX, BX
	ADDQ BX, AX
	MOVQ AX, ret+32(FP)
	RET

// func quadsHits(numbers []prefix.Worker, blocks []int32, each, most float64, hits []float64)
TEXT ·quadsHits(SB), NOSPLIT, $0-88
	MOVQ     numbers_base+0(FP), SI
	MOVQ     blocks_base+24(FP), R8
	MOVSD    each+48(FP), X8
	MOVSD    most+56(FP), X9
	MOVQ     hits_base+64(FP), DI
	MOVQ     hits_len+72(FP), BX
	UNPCKLPD X8, X8
	UNPCKLPD X9, X9
	LEAQ     (SI)(BX*2), SI
	LEAQ     (DI)(BX*8), DI
	NEGQ     BX
	JZ       done

four:
	MOVQ      (SI)(BX*2), AX // four numbers
	MOVWLZX   AX, CX
	SHRQ      $16, AX
	MOVWLZX   AX, DX
	SHRQ      $16, AX
	MOVWLZX   AX, R9
	SHRQ      $16, AX
	MOVL      (R8)(CX*4), X0
	MOVL      (R8)(DX*4), X1
	MOVL      (R8)(R9*4), X2
	MOVL      (R8)(AX*4), X3
	PUNPCKLLQ X1, X0
	PUNPCKLLQ X3, X2
	CVTPL2PD  X0, X0
	CVTPL2PD  X2, X2
	MULPD     X8, X0
	MULPD     X8, X2
	MINPD     X9, X0
	MINPD     X9, X2
	MOVUPD    X0, (DI)(BX*8)
	MOVUPD    X2, 16(DI)(BX*8)
	ADDQ      $4, BX
	JNZ       four

done:
	RET

// func quadsSum(x []float64, sums *[4]float64)
TEXT ·quadsSum(SB), NOSPLIT, $0-32
	MOVQ   x_base+0(FP), SI
	MOVQ   x_len+8(FP), BX
	MOVQ   sums+24(FP), DI
	MOVUPD (DI), X0
	MOVUPD 16(DI), X1
	LEAQ   (SI)(BX*8), SI
	NEGQ   BX
	JZ     done

four:
	MOVUPD (SI)(BX*8), X2
	MOVUPD 16(SI)(BX*8), X3
	ADDPD  X2, X0
	ADDPD  X3, X1
	ADDQ   $4, BX
	JNZ    four

done:
	MOVUPD X0, (DI)
	MOVUPD X1, 16(DI)
	RET

// func quadsScale(x []float64, by float64, out []float64)
TEXT ·quadsScale(SB), NOSPLIT, $0-56
	MOVQ     x_base+0(FP), SI
	MOVQ     x_len+8(FP), BX
	MOVSD    by+24(FP), X8
	MOVQ     out_base+32(FP), DI
	UNPCKLPD X8, X8
	LEAQ     (SI)(BX*8), SI
	LEAQ     (DI)(BX*8), DI
	NEGQ     BX
	JZ       done

four:
	MOVUPD (SI)(BX*8), X0
	MOVUPD 16(SI)(BX*8), X1
	MULPD  X8, X0
	MULPD  X8, X1
	MOVUPD X0, (DI)(BX*8)
	MOVUPD X1, 16(DI)(BX*8)
	ADDQ   $4, BX
	JNZ    four

done:
	RET

// CROWDED sets all bits of mask where a candidate of the requests r and the siblings
// s is crowded: few, X8, or more, and half of them siblings or more than many, X9. s
// and t are lost.
#define CROWDED(r, s, t, mask) \
	MOVAPD X8, mask;   \
	CMPPD  r, mask, $2; \
	ADDPD  s, s;       \
	MOVAPD r, t;       \
	CMPPD  s, t, $2;   \
	MOVAPD X9, s;      \
	CMPPD  r, s, $1;   \
	ORPD   s, t;       \
	ANDPD  t, mask

// func quadsLongest(hit, requests, siblings []float64, few, many float64) float64
TEXT ·quadsLongest(SB), NOSPLIT, $0-96
	MOVQ     hit_base+0(FP), SI
	MOVQ     hit_len+8(FP), BX
	MOVQ     requests_base+24(FP), R8
	MOVQ     siblings_base+48(FP), R9
	MOVSD    few+72(FP), X8
	MOVSD    many+80(FP), X9
	UNPCKLPD X8, X8
	UNPCKLPD X9, X9
	XORPD    X0, X0
	XORPD    X1, X1
	LEAQ     (SI)(BX*8), SI
	LEAQ     (R8)(BX*8), R8
	LEAQ     (R9)(BX*8), R9
	NEGQ     BX
	JZ       done

four:
	MOVUPD (R8)(BX*8), X2
	MOVUPD (R9)(BX*8), X3
	CROWDED(X2, X3, X4, X5)
	MOVUPD (SI)(BX*8), X2
	ANDNPD X2, X5
	MAXPD  X5, X0
	MOVUPD 16(R8)(BX*8), X2
	MOVUPD 16(R9)(BX*8), X3
	CROWDED(X2, X3, X4, X5)
	MOVUPD 16(SI)(BX*8), X2
	ANDNPD X2, X5
	MAXPD  X5, X1
	ADDQ   $4, BX
	JNZ    four

done:
	MAXPD    X1, X0
	MOVAPD   X0, X1
	UNPCKHPD X1, X1
	MAXSD    X1, X0
	MOVSD    X0, ret+88(FP)
	RET

// func quadsBehind(cost, requests, siblings []float64, few, many, by float64)
TEXT ·quadsBehind(SB), NOSPLIT, $0-96
	MOVQ     cost_base+0(FP), SI
	MOVQ     cost_len+8(FP), BX
	MOVQ     requests_base+24(FP), R8
	MOVQ     siblings_base+48(FP), R9
	MOVSD    few+72(FP), X8
	MOVSD    many+80(FP), X9
	MOVSD    by+88(FP), X10
	UNPCKLPD X8, X8
	UNPCKLPD X9, X9
	UNPCKLPD X10, X10
	LEAQ     (SI)(BX*8), SI
	LEAQ     (R8)(BX*8), R8
	LEAQ     (R9)(BX*8), R9
	NEGQ     BX
	JZ       done

two:
	MOVUPD (R8)(BX*8), X2
	MOVUPD (R9)(BX*8), X3
	CROWDED(X2, X3, X4, X5)
	MOVUPD (SI)(BX*8), X2
	ANDPD  X10, X5
	ADDPD  X5, X2
	MOVUPD X2, (SI)(BX*8)
	ADDQ   $2, BX
	JNZ    two

done:
	RET

// func quadsWeigh(w *weights, hit, queued, requests, share, cost []float64)
TEXT ·quadsWeigh(SB), NOSPLIT, $0-128
	MOVQ     w+0(FP), AX
	MOVQ     hit_base+8(FP), SI
	MOVQ     queued_base+32(FP), R8
	MOVQ     requests_base+56(FP), R9
	MOVQ     share_base+80(FP), R10
	MOVQ     cost_base+104(FP), DI
	MOVQ     cost_len+112(FP), BX
	MOVSD    (AX), X8       // hold
	MOVSD    8(AX), X9      // each
	MOVSD    16(AX), X10    // balance
	MOVSD    24(AX), X11    // prompt
	MOVSD    32(AX), X12    // longest
	MOVSD    40(AX), X13    // tau
	UNPCKLPD X8, X8
	UNPCKLPD X9, X9
	UNPCKLPD X10, X10
	UNPCKLPD X11, X11
	UNPCKLPD X12, X12
	UNPCKLPD X13, X13
	LEAQ     (SI)(BX*8), SI
	LEAQ     (R8)(BX*8), R8
	LEAQ     (R9)(BX*8), R9
	LEAQ     (R10)(BX*8), R10
	LEAQ     (DI)(BX*8), DI
	NEGQ     BX
	JZ       done

two:
	MOVUPD (SI)(BX*8), X0
	MINPD  X12, X0
	MOVAPD X12, X1
	SUBPD  X0, X1
	MULPD  X8, X1
	MINPD  X13, X1         // again
	MOVAPD X11, X2
	SUBPD  X0, X2
	MINPD  X10, X2
	MOVUPD (R10)(BX*8), X4
	MULPD  X4, X2          // the balance
	MOVUPD (R9)(BX*8), X3
	MOVUPD (R8)(BX*8), X4
	MULPD  X9, X3
	ADDPD  X4, X3
	ADDPD  X11, X3
	SUBPD  X12, X3
	ADDPD  X1, X3
	ADDPD  X2, X3
	MOVUPD X3, (DI)(BX*8)
	ADDQ   $2, BX
	JNZ    two

done:
	RET

// func quadsRunnersUp(x []float64, lowest float64) (ties int, second float64)
TEXT ·quadsRunnersUp(SB), NOSPLIT, $0-48
	MOVQ     x_base+0(FP), SI
	MOVQ     x_len+8(FP), BX
	MOVSD    lowest+24(FP), X8
	UNPCKLPD X8, X8
	MOVUPD   infinity<>(SB), X9
	MOVAPD   X9, X7
	PXOR     X6, X6
	LEAQ     (SI)(BX*8), SI
	NEGQ     BX
	JZ       done

two:
	MOVUPD (SI)(BX*8), X0
	MOVAPD X0, X1
	CMPPD  X8, X1, $0
	PSUBQ  X1, X6
	MOVAPD X8, X2
	CMPPD  X0, X2, $1
	ANDPD  X2, X0
	ANDNPD X9, X2
	ORPD   X2, X0
	MINPD  X0, X7
	ADDQ   $2, BX
	JNZ    two

done:
	MOVAPD     X7, X0
	UNPCKHPD   X0, X0
	MINSD      X0, X7
	MOVHLPS    X6, X0
	PADDQ      X0, X6
	MOVQ       X6, ties+32(FP)
	MOVSD      X7, second+40(FP)
	RET
