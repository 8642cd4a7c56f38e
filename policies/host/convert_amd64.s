#include "textflag.h"

// func narrowAVX(to *float32, from *float64, n int)
// n is a multiple of 16 and above 0.
TEXT ·narrowAVX(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VCVTPD2PSY (SI), X0
	VCVTPD2PSY 32(SI), X1
	VCVTPD2PSY 64(SI), X2
	VCVTPD2PSY 96(SI), X3
	VMOVUPS    X0, (DI)
	VMOVUPS    X1, 16(DI)
	VMOVUPS    X2, 32(DI)
	VMOVUPS    X3, 48(DI)
	ADDQ       $128, SI
	ADDQ       $64, DI
	SUBQ       $16, CX
	JNZ        loop
	VZEROUPPER
	RET

// func invertAVX(to *float32, from *float64, n int)
// n is a multiple of 16 and above 0.
TEXT ·invertAVX(SB), NOSPLIT, $0-24
	MOVQ         to+0(FP), DI
	MOVQ         from+8(FP), SI
	MOVQ         n+16(FP), CX
	MOVQ         $0x3ff0000000000000, AX // 1.0
	MOVQ         AX, X4
	VMOVDDUP     X4, X4
	VINSERTF128  $1, X4, Y4, Y4

loop:
	VDIVPD     (SI), Y4, Y0
	VDIVPD     32(SI), Y4, Y1
	VDIVPD     64(SI), Y4, Y2
	VDIVPD     96(SI), Y4, Y3
	VCVTPD2PSY Y0, X0
	VCVTPD2PSY Y1, X1
	VCVTPD2PSY Y2, X2
	VCVTPD2PSY Y3, X3
	VMOVUPS    X0, (DI)
	VMOVUPS    X1, 16(DI)
	VMOVUPS    X2, 32(DI)
	VMOVUPS    X3, 48(DI)
	ADDQ       $128, SI
	ADDQ       $64, DI
	SUBQ       $16, CX
	JNZ        loop
	VZEROUPPER
	RET

// func widenAVX(to *float64, from *float32, n int) int
// n is a multiple of 16 and above 0. A number less itself is 0, and anything else
// less itself NaN: added, it makes what is infinite NaN and leaves numbers alone.
TEXT ·widenAVX(SB), NOSPLIT, $0-32
	MOVQ   to+0(FP), DI
	MOVQ   from+8(FP), SI
	MOVQ   n+16(FP), CX
	VXORPD Y8, Y8, Y8

loop:
	VCVTPS2PD (SI), Y0
	VCVTPS2PD 16(SI), Y1
	VCVTPS2PD 32(SI), Y2
	VCVTPS2PD 48(SI), Y3
	VSUBPD    Y0, Y0, Y4
	VSUBPD    Y1, Y1, Y5
	VSUBPD    Y2, Y2, Y6
	VSUBPD    Y3, Y3, Y7
	VADDPD    Y4, Y0, Y0
	VADDPD    Y5, Y1, Y1
	VADDPD    Y6, Y2, Y2
	VADDPD    Y7, Y3, Y3
	VMOVUPD   Y0, (DI)
	VMOVUPD   Y1, 32(DI)
	VMOVUPD   Y2, 64(DI)
	VMOVUPD   Y3, 96(DI)
	VCMPPD    $7, Y4, Y4, Y4
	VCMPPD    $7, Y5, Y5, Y5
	VCMPPD    $7, Y6, Y6, Y6
	VCMPPD    $7, Y7, Y7, Y7
	VORPD     Y4, Y5, Y4
	VORPD     Y6, Y7, Y6
	VORPD     Y4, Y8, Y8
	VORPD     Y6, Y8, Y8
	ADDQ      $64, SI
	ADDQ      $128, DI
	SUBQ      $16, CX
	JNZ       loop
	VMOVMSKPD Y8, AX
	VZEROUPPER
	MOVQ      AX, ret+24(FP)
	RET
