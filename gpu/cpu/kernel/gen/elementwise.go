package main

import "fmt"

// The element-wise loops take 16 values a turn at either width, so that both
// add in the same 16 lanes as the pure-Go loops.

// loop16 counts R8 values down by 16 around body.
func (g *gen) loop16(label string, body func(), pointers ...string) {
	g.p("%s:", label)
	body()
	for _, p := range pointers {
		g.p("ADDQ $64, %s", p)
	}
	g.p("SUBQ $16, R8")
	g.p("JNZ %s", label)
}

// fold combines 16 lanes, in registers 0 (and 1), to lane 0 of X0: the upper
// half onto the lower, until one is left. It uses register 1.
func (g *gen) fold(v vector, op string) {
	if v == zmm {
		g.p("VEXTRACTF64X4 $1, Z0, Y1")
	}
	g.p("%sPS Y1, Y0, Y0", op)
	g.p("VEXTRACTF128 $1, Y0, X1")
	g.p("%sPS X1, X0, X0", op)
	g.p("VMOVHLPS X0, X0, X1")
	g.p("%sPS X1, X0, X0", op)
	g.p("VMOVSHDUP X0, X1")
	g.p("%sSS X1, X0, X0", op)
}

func (g *gen) sumSquare(v vector) {
	f := g.function("sumSquare"+v.level, "is sumSquare.", "x *float32, n int", "float32")
	f.load("x", "AX")
	f.load("n", "R8")
	n := v.per16()
	g.zeroAll(v.reg, 0, n)
	g.loop16("turn", func() {
		for i := range n {
			g.p("VMOVUPS %d(AX), %s", v.bytes*i, v.r(2+i))
			g.p("VFMADD231PS %s, %s, %s", v.r(2+i), v.r(2+i), v.r(i))
		}
	}, "AX")
	g.fold(v, "VADD")
	g.p("VMOVSS X0, ret+%d(FP)", f.ret)
	f.end()
}

func (g *gen) scale(v vector) {
	f := g.function("scale"+v.level, "is scale.", "dst *float32, x *float32, w *float32, n int, by float32", "")
	f.load("dst", "DI")
	f.load("x", "AX")
	f.load("w", "BX")
	f.load("n", "R8")
	g.p("VBROADCASTSS by+%d(FP), %s", f.offset["by"], v.r(0))
	g.loop16("turn", func() {
		for i := range v.per16() {
			g.p("VMULPS %d(AX), %s, %s", v.bytes*i, v.r(0), v.r(1))
			g.p("VMULPS %d(BX), %s, %s", v.bytes*i, v.r(1), v.r(1))
			g.p("VMOVUPS %s, %d(DI)", v.r(1), v.bytes*i)
		}
	}, "AX", "BX", "DI")
	f.end()
}

func (g *gen) add(v vector) {
	f := g.function("add"+v.level, "is add.", "dst *float32, x *float32, n int", "")
	f.load("dst", "DI")
	f.load("x", "AX")
	f.load("n", "R8")
	g.loop16("turn", func() {
		for i := range v.per16() {
			g.p("VMOVUPS %d(AX), %s", v.bytes*i, v.r(0))
			g.p("VADDPS %d(DI), %s, %s", v.bytes*i, v.r(0), v.r(0))
			g.p("VMOVUPS %s, %d(DI)", v.r(0), v.bytes*i)
		}
	}, "AX", "DI")
	f.end()
}

// exp replaces register x by e to its power, using n, r and p. See exp in
// generic.go for the method.
func (g *gen) exp(v vector, x, n, r, p int) {
	k := func(name string) string { return "k" + name + "<>(SB)" }
	g.p("VMINPS %s, %s, %s", k("high"), v.r(x), v.r(x))
	g.p("VMAXPS %s, %s, %s", k("low"), v.r(x), v.r(x))
	g.p("VMULPS %s, %s, %s", k("log2e"), v.r(x), v.r(n))
	if v == zmm {
		g.p("VRNDSCALEPS $8, %s, %s", v.r(n), v.r(n))
	} else {
		g.p("VROUNDPS $8, %s, %s", v.r(n), v.r(n))
	}
	g.p("VFNMADD231PS %s, %s, %s", k("ln2high"), v.r(n), v.r(x))
	g.p("VFNMADD231PS %s, %s, %s", k("ln2low"), v.r(n), v.r(x))
	g.p("VMOVUPS %s, %s", k("exp0"), v.r(p))
	for i := 1; i < 6; i++ {
		g.p("VFMADD213PS %s, %s, %s", k(fmt.Sprintf("exp%d", i)), v.r(x), v.r(p))
	}
	g.p("VMULPS %s, %s, %s", v.r(x), v.r(x), v.r(r))
	g.p("VFMADD213PS %s, %s, %s", v.r(x), v.r(r), v.r(p))
	g.p("VADDPS %s, %s, %s", k("one"), v.r(p), v.r(p))
	g.p("VCVTPS2DQ %s, %s", v.r(n), v.r(n))
	g.p("VPSLLD $23, %s, %s", v.r(n), v.r(n))
	g.p("VPADDD %s, %s, %s", v.r(n), v.r(p), v.r(x))
}

func (g *gen) siluMul(v vector) {
	f := g.function("siluMul"+v.level, "is siluMul.", "dst *float32, gate *float32, up *float32, n int", "")
	f.load("dst", "DI")
	f.load("gate", "AX")
	f.load("up", "BX")
	f.load("n", "R8")
	g.loop16("turn", func() {
		for i := range v.per16() {
			g.p("VMOVUPS %d(AX), %s", v.bytes*i, v.r(4))
			if v == zmm {
				g.p("VPXORD ksign<>(SB), %s, %s", v.r(4), v.r(0))
			} else {
				g.p("VPXOR ksign<>(SB), %s, %s", v.r(4), v.r(0))
			}
			g.exp(v, 0, 1, 2, 3)
			g.p("VADDPS kone<>(SB), %s, %s", v.r(0), v.r(0))
			g.p("VDIVPS %s, %s, %s", v.r(0), v.r(4), v.r(0))
			g.p("VMULPS %d(BX), %s, %s", v.bytes*i, v.r(0), v.r(0))
			g.p("VMOVUPS %s, %d(DI)", v.r(0), v.bytes*i)
		}
	}, "AX", "BX", "DI")
	f.end()
}

func (g *gen) expSum(v vector) {
	f := g.function("expSum"+v.level, "is expSum.", "x *float32, n int, scale float32", "float32")
	n := v.per16()
	f.load("x", "AX")
	f.load("n", "R8")
	for i := range n {
		g.p("VMOVUPS %d(AX), %s", v.bytes*i, v.r(i))
	}
	g.loop16("largest", func() {
		for i := range n {
			g.p("VMAXPS %d(AX), %s, %s", v.bytes*i, v.r(i), v.r(i))
		}
	}, "AX")
	g.fold(v, "VMAX")
	g.p("VBROADCASTSS X0, %s", v.r(6))
	g.p("VBROADCASTSS scale+%d(FP), %s", f.offset["scale"], v.r(7))
	g.zeroAll(v.reg, 4, n)
	f.load("x", "AX")
	f.load("n", "R8")
	g.loop16("turn", func() {
		for i := range n {
			g.p("VMOVUPS %d(AX), %s", v.bytes*i, v.r(0))
			g.p("VSUBPS %s, %s, %s", v.r(6), v.r(0), v.r(0))
			g.p("VMULPS %s, %s, %s", v.r(7), v.r(0), v.r(0))
			g.exp(v, 0, 1, 2, 3)
			g.p("VMOVUPS %s, %d(AX)", v.r(0), v.bytes*i)
			g.p("VADDPS %s, %s, %s", v.r(0), v.r(4+i), v.r(4+i))
		}
	}, "AX")
	for i := range n {
		g.p("VMOVAPS %s, %s", v.r(4+i), v.r(i))
	}
	g.fold(v, "VADD")
	g.p("VMOVSS X0, ret+%d(FP)", f.ret)
	f.end()
}

func (g *gen) widen(v vector) {
	f := g.function("widen"+v.level, "is widen.", "dst *float32, src *uint16, n int", "")
	f.load("dst", "DI")
	f.load("src", "AX")
	f.load("n", "R8")
	g.loop16("turn", func() {
		for i := range v.per16() {
			g.p("VCVTPH2PS %d(AX), %s", v.bytes/2*i, v.r(i))
			g.p("VMOVUPS %s, %d(DI)", v.r(i), v.bytes*i)
		}
		g.p("ADDQ $32, AX")
	}, "DI")
	f.end()
}

func (g *gen) narrow(v vector) {
	f := g.function("narrow"+v.level, "is narrow.", "dst *uint16, src *float32, n int", "")
	f.load("dst", "DI")
	f.load("src", "AX")
	f.load("n", "R8")
	g.loop16("turn", func() {
		for i := range v.per16() {
			g.p("VMOVUPS %d(AX), %s", v.bytes*i, v.r(i))
			g.p("VCVTPS2PH $0, %s, %d(DI)", v.r(i), v.bytes/2*i)
		}
		g.p("ADDQ $32, DI")
	}, "AX")
	f.end()
}

// quantize does a block of 32 a turn: registers from 4 on hold it.
func (g *gen) quantize(v vector) {
	f := g.function("quantize"+v.level, "is quantize.",
		"x *float32, blocks int, q *int8, s *float32, m *float32, c *int32, stride int", "")
	f.load("x", "AX")
	f.load("blocks", "R8")
	f.load("q", "DI")
	f.load("s", "BX")
	f.load("m", "CX")
	f.load("c", "DX")
	f.load("stride", "SI")
	g.p("SHLQ $2, SI")
	n := 2 * v.per16()
	g.p("block:")
	for i := range n {
		g.p("VMOVUPS %d(AX), %s", v.bytes*i, v.r(4+i))
		if v == zmm {
			g.p("VPANDD kabsolute<>(SB), %s, %s", v.r(4+i), v.r(i))
		} else {
			g.p("VANDPS kabsolute<>(SB), %s, %s", v.r(4+i), v.r(i))
		}
	}
	if v == zmm {
		g.p("VMAXPS Z1, Z0, Z0")
	} else {
		g.p("VMAXPS Y2, Y0, Y0")
		g.p("VMAXPS Y3, Y1, Y1")
	}
	g.fold(v, "VMAX")
	g.p("VMAXSS ktiny<>(SB), X0, X0")
	g.p("VMOVSS ktop<>(SB), X2")
	g.p("VDIVSS X0, X2, X1") // the inverse scale
	g.p("VDIVSS X2, X0, X0") // the scale
	g.p("VMOVSS X0, (BX)")
	g.p("VBROADCASTSS X1, %s", v.r(1))
	for i := range n {
		g.p("VMULPS %s, %s, %s", v.r(1), v.r(4+i), v.r(4+i))
		g.p("VCVTPS2DQ %s, %s", v.r(4+i), v.r(4+i))
	}
	if v == zmm {
		g.p("VPMOVSDB Z4, (DI)")
		g.p("VPMOVSDB Z5, 16(DI)")
		g.p("VPADDD Z5, Z4, Z4")
		g.p("VEXTRACTI64X4 $1, Z4, Y5")
		g.p("VPADDD Y5, Y4, Y4")
	} else {
		g.p("VPACKSSDW Y5, Y4, Y2")
		g.p("VPACKSSDW Y7, Y6, Y3")
		g.p("VPACKSSWB Y3, Y2, Y2")
		g.p("VMOVDQU kpack<>(SB), Y3")
		g.p("VPERMD Y2, Y3, Y2")
		g.p("VMOVDQU Y2, (DI)")
		g.p("VPADDD Y5, Y4, Y4")
		g.p("VPADDD Y7, Y6, Y6")
		g.p("VPADDD Y6, Y4, Y4")
	}
	g.p("VEXTRACTI128 $1, Y4, X5")
	g.p("VPADDD X5, X4, X4")
	g.p("VPSHUFD $0x4e, X4, X5")
	g.p("VPADDD X5, X4, X4")
	g.p("VPSHUFD $0xb1, X4, X5")
	g.p("VPADDD X5, X4, X4")
	g.p("VCVTDQ2PS X4, X5")
	g.p("VMULSS X5, X0, X5")
	g.p("VMOVSS X5, (CX)")
	g.p("VMOVD X4, R9")
	g.p("SHLL $7, R9")
	g.p("NEGL R9")
	g.p("MOVL R9, (DX)")
	g.p("ADDQ $128, AX")
	g.p("ADDQ $32, DI")
	for _, r := range []string{"BX", "CX", "DX"} {
		g.p("ADDQ SI, %s", r)
	}
	g.p("DECQ R8")
	g.p("JNZ block")
	f.end()
}

// transposeAVX512 turns 16 x 16 in four rounds: pairs of floats, pairs of
// doubles, then 128-bit lanes twice.
func (g *gen) transposeAVX512() {
	f := g.function("transposeAVX512", "is transpose.", "dst *float32, src *float32, ld int", "")
	f.load("dst", "DI")
	f.load("src", "AX")
	f.load("ld", "SI")
	g.p("SHLQ $2, SI")
	for i := range 16 {
		g.p("VMOVUPS (AX), Z%d", i)
		g.p("ADDQ SI, AX")
	}
	for i := 0; i < 16; i += 2 {
		g.p("VUNPCKLPS Z%d, Z%d, Z%d", i+1, i, 16+i)
		g.p("VUNPCKHPS Z%d, Z%d, Z%d", i+1, i, 17+i)
	}
	for i := 0; i < 16; i += 4 {
		for h := range 2 {
			g.p("VUNPCKLPD Z%d, Z%d, Z%d", 16+i+2+h, 16+i+h, i+2*h)
			g.p("VUNPCKHPD Z%d, Z%d, Z%d", 16+i+2+h, 16+i+h, i+2*h+1)
		}
	}
	// Z(4j+c) lane l is now column 4l+c of rows 4j to 4j+3.
	for c := range 4 {
		g.p("VSHUFF32X4 $0x44, Z%d, Z%d, Z16", 4+c, c)
		g.p("VSHUFF32X4 $0x44, Z%d, Z%d, Z17", 12+c, 8+c)
		g.p("VSHUFF32X4 $0xee, Z%d, Z%d, Z18", 4+c, c)
		g.p("VSHUFF32X4 $0xee, Z%d, Z%d, Z19", 12+c, 8+c)
		for l, imm := range []string{"0x88", "0xdd", "0x88", "0xdd"} {
			from := 16 + l/2*2
			g.p("VSHUFF32X4 $%s, Z%d, Z%d, Z20", imm, from+1, from)
			g.p("VMOVUPS Z20, %d(DI)", 64*(4*l+c))
		}
	}
	f.end()
}

// transposeAVX2 does the same as four squares of 8 x 8.
func (g *gen) transposeAVX2() {
	f := g.function("transposeAVX2", "is transpose.", "dst *float32, src *float32, ld int", "")
	f.load("dst", "DI")
	f.load("src", "AX")
	f.load("ld", "SI")
	g.p("SHLQ $2, SI")
	for half := range 2 {
		for col := range 2 {
			g.p("MOVQ AX, BX")
			for i := range 8 {
				g.p("VMOVUPS %d(BX), Y%d", 32*col, i)
				if i < 7 {
					g.p("ADDQ SI, BX")
				}
			}
			for i := 0; i < 8; i += 2 {
				g.p("VUNPCKLPS Y%d, Y%d, Y%d", i+1, i, 8+i)
				g.p("VUNPCKHPS Y%d, Y%d, Y%d", i+1, i, 9+i)
			}
			for i := 0; i < 8; i += 4 {
				for h := range 2 {
					g.p("VUNPCKLPD Y%d, Y%d, Y%d", 8+i+2+h, 8+i+h, i+2*h)
					g.p("VUNPCKHPD Y%d, Y%d, Y%d", 8+i+2+h, 8+i+h, i+2*h+1)
				}
			}
			for c := range 4 {
				for l, imm := range []string{"0x20", "0x31"} {
					g.p("VPERM2F128 $%s, Y%d, Y%d, Y8", imm, 4+c, c)
					g.p("VMOVUPS Y8, %d(DI)", 64*(8*col+4*l+c)+32*half)
				}
			}
		}
		if half == 0 {
			g.p("ADDQ SI, BX")
			g.p("MOVQ BX, AX")
		}
	}
	f.end()
}
