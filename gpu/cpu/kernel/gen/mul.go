package main

import "fmt"

// The products. All keep one float32 sum per row and channel, to which each
// block adds in order, so that the height of a tile cannot change a result.
//
// Common registers: DI results, SI their row stride, DX weights, AX quantised
// activations with row stride R10 (3, 5, 7 times in R11 to R13), BX scales,
// CX minima or corrections, R8 rows left, R9 blocks left, R15 stride of scales.

// tiles starts the loop over tiles of rows, to be closed by endTiles.
func (g *gen) tiles(f *fn, activations, stride string, scale int) {
	f.load("dst", "DI")
	f.load("ldd", "SI")
	g.p("SHLQ $2, SI")
	f.load(stride, "R10")
	if scale > 1 {
		g.p("SHLQ $2, R10")
	}
	f.load("rows", "R8")
	f.load(activations, "AX")
}

func (g *gen) zeroAll(reg string, first, n int) {
	for i := range n {
		r := fmt.Sprintf("%s%d", reg, first+i)
		if reg == "Z" {
			g.p("VPXORD %s, %s, %s", r, r, r)
		} else {
			g.p("VPXOR %s, %s, %s", r, r, r)
		}
	}
}

// storeRows stores n registers to consecutive rows at DI, which it moves on to
// the next tile.
func (g *gen) storeRows(reg string, first, n int) {
	for i := range n {
		g.p("VMOVUPS %s%d, (DI)", reg, first+i)
		g.p("ADDQ SI, DI")
	}
}

func (g *gen) mulQ4AVX512(rows int) {
	f := g.function(fmt.Sprintf("mulQ4x%dAVX512", rows), "is mulQ4 for multiples of its number of rows.", q4Args, "")
	g.tiles(f, "q", "ldq", 1)
	g.rowMultiples(rows)
	f.load("lds", "R15")
	g.p("SHLQ $2, R15")
	g.p("VMOVDQU64 knibbles<>(SB), Z30")
	g.p("VPXORD Z31, Z31, Z31")
	g.p("tile:")
	f.load("w", "DX")
	f.load("blocks", "R9")
	f.load("s", "BX")
	f.load("m", "CX")
	g.zeroAll("Z", 10, rows)
	g.p("block:")
	g.p("VCVTPH2PS (DX), Z8")
	g.p("VCVTPH2PS 32(DX), Z9")
	g.prefetch(320)
	for i := range 4 {
		g.p("VMOVDQU64 %d(DX), Z26", 64+64*i)
		g.p("VPSRLW $4, Z26, Z27")
		g.p("VPANDD Z30, Z26, Z%d", i)
		g.p("VPANDD Z30, Z27, Z%d", i+4)
	}
	for r := range rows {
		g.p("VMOVDQA64 Z31, Z%d", 18+r)
	}
	g.dots(rows)
	g.accumulate(rows)
	for r := range rows {
		g.p("VFMADD231PS.BCST %d(CX), Z9, Z%d", 4*r, 10+r)
	}
	g.p("ADDQ $320, DX")
	g.p("ADDQ R15, CX")
	g.nextBlock()
	g.storeRows("Z", 10, rows)
	g.nextTile(f, rows, "s", "m")
	f.end()
}

func (g *gen) mulQ8AVX512(rows int) {
	f := g.function(fmt.Sprintf("mulQ8x%dAVX512", rows), "is mulQ8 for multiples of its number of rows.", q8Args, "")
	g.tiles(f, "q", "ldq", 1)
	g.rowMultiples(rows)
	f.load("lds", "R15")
	g.p("SHLQ $2, R15")
	g.p("tile:")
	f.load("w", "DX")
	f.load("d", "R14")
	f.load("blocks", "R9")
	f.load("s", "BX")
	f.load("c", "CX")
	g.zeroAll("Z", 10, rows)
	g.p("block:")
	g.p("VCVTPH2PS (R14), Z8")
	g.prefetch(512)
	for i := range 8 {
		g.p("VMOVDQU64 %d(DX), Z%d", 64*i, i)
	}
	for r := range rows {
		g.p("VPBROADCASTD %d(CX), Z%d", 4*r, 18+r)
	}
	g.dots(rows)
	g.accumulate(rows)
	g.p("ADDQ $512, DX")
	g.p("ADDQ $32, R14")
	g.p("ADDQ R15, CX")
	g.nextBlock()
	g.storeRows("Z", 10, rows)
	g.nextTile(f, rows, "s", "c")
	f.end()
}

// prefetchAhead is how far in front of the weights in use others are fetched:
// the processor's own prefetching falls behind when a tile is tall.
const prefetchAhead = 2048

// prefetch fetches as many bytes as a block takes.
func (g *gen) prefetch(bytes int) {
	for at := 0; at < bytes; at += 64 {
		g.p("PREFETCHT0 %d(DX)", prefetchAhead+at)
	}
}

// dots adds the integer products of Z0 to Z7 with each row's 32 activations to
// Z18 onwards. Rows alternate, so that no instruction waits for the one before.
func (g *gen) dots(rows int) {
	for i := range 8 {
		for r := range rows {
			g.p("VPDPBUSD.BCST %s, Z%d, Z%d", row(4*i, "AX", r), i, 18+r)
		}
	}
}

// accumulate adds the integer sums times both scales to Z10 onwards.
func (g *gen) accumulate(rows int) {
	for r := range rows {
		g.p("VCVTDQ2PS Z%d, Z%d", 18+r, 18+r)
		g.p("VMULPS.BCST %d(BX), Z8, Z%d", 4*r, 26+r%2)
		g.p("VFMADD231PS Z%d, Z%d, Z%d", 26+r%2, 18+r, 10+r)
	}
}

func (g *gen) nextBlock() {
	g.p("ADDQ R15, BX")
	g.p("ADDQ $32, AX")
	g.p("DECQ R9")
	g.p("JNZ block")
}

// nextTile moves the activations on by rows rows and loops. The scales start
// anew from the arguments' places, moved on likewise.
func (g *gen) nextTile(f *fn, rows int, scales ...string) {
	// AX has walked along its first row: back to its start, then down.
	f.load("blocks", "R9")
	g.p("SHLQ $5, R9")
	g.p("SUBQ R9, AX")
	for range rows {
		g.p("ADDQ R10, AX")
	}
	for _, s := range scales {
		g.p("ADDQ $%d, %s+%d(FP)", 4*rows, s, f.offset[s])
	}
	g.p("SUBQ $%d, R8", rows)
	g.p("JNZ tile")
}

func (g *gen) mulF32AVX512(rows int) {
	f := g.function(fmt.Sprintf("mulF32x%dAVX512", rows), "is mulF32 for multiples of its number of rows.", f32Args, "")
	g.mulF32(f, rows, zmm)
}

func (g *gen) mulF32AVX2(rows int) {
	f := g.function(fmt.Sprintf("mulF32x%dAVX2", rows), "is mulF32 for multiples of its number of rows.", f32Args, "")
	g.mulF32(f, rows, ymm)
}

// mulF32 keeps the sums of a row in one or two registers from 4 on, weights in 0
// and 1, a broadcast activation in 2. Four inputs are done per turn, then the
// rest one by one.
func (g *gen) mulF32(f *fn, rows int, v vector) {
	n := v.per16()
	g.tiles(f, "x", "ldx", 4)
	g.rowMultiples(rows)
	f.load("ldw", "R15")
	g.p("SHLQ $2, R15")
	g.p("tile:")
	f.load("w", "DX")
	f.load("k", "R9")
	g.p("MOVQ AX, BX")
	g.zeroAll(v.reg, 4, rows*n)
	g.p("CMPQ acc+%d(FP), $0", f.offset["acc"])
	g.p("JEQ four")
	g.p("MOVQ DI, CX")
	for r := range rows {
		for i := range n {
			g.p("VMOVUPS %d(CX), %s", v.bytes*i, v.r(4+r*n+i))
		}
		g.p("ADDQ SI, CX")
	}
	g.p("four:")
	g.p("SUBQ $4, R9")
	g.p("JLT rest")
	g.p("turn:")
	for i := range 4 {
		g.f32Step(rows, v, 4*i)
	}
	g.p("ADDQ $16, BX")
	g.p("SUBQ $4, R9")
	g.p("JGE turn")
	g.p("rest:")
	g.p("ADDQ $4, R9")
	g.p("JEQ store")
	g.p("one:")
	g.f32Step(rows, v, 0)
	g.p("ADDQ $4, BX")
	g.p("DECQ R9")
	g.p("JNZ one")
	g.p("store:")
	for r := range rows {
		for i := range n {
			g.p("VMOVUPS %s, %d(DI)", v.r(4+r*n+i), v.bytes*i)
		}
		g.p("ADDQ SI, DI")
	}
	for range rows {
		g.p("ADDQ R10, AX")
	}
	g.p("SUBQ $%d, R8", rows)
	g.p("JNZ tile")
	f.end()
}

// f32Step multiplies one input's weights, and steps to the next input's.
func (g *gen) f32Step(rows int, v vector, disp int) {
	n := v.per16()
	for i := range n {
		g.p("VMOVUPS %d(DX), %s", v.bytes*i, v.r(i))
	}
	g.p("ADDQ R15, DX")
	for r := range rows {
		x := row(disp, "BX", r)
		if v == zmm {
			g.p("VFMADD231PS.BCST %s, Z0, Z%d", x, 4+r)
			continue
		}
		g.p("VBROADCASTSS %s, Y2", x)
		for i := range n {
			g.p("VFMADD231PS Y2, Y%d, Y%d", i, 4+r*n+i)
		}
	}
}

// mulQ4AVX2 does 8 channels at a time. Sums of a block's products fit 16 bits:
// 32 products of at most 15*127 in 16 lanes are 8 pairs, below 2^15.
// Y0, Y1 weights, Y2 scratch, Y4 on: 16-bit sums, Y8 on: float sums.
func (g *gen) mulQ4AVX2(rows int) {
	f := g.function(fmt.Sprintf("mulQ4x%dAVX2", rows), "is mulQ4 for multiples of its number of rows.", q4Args, "")
	g.tiles(f, "q", "ldq", 1)
	g.rowMultiples(rows)
	f.load("lds", "R15")
	g.p("SHLQ $2, R15")
	g.p("VMOVDQU knibbles<>(SB), Y14")
	g.p("VMOVDQU kones16<>(SB), Y15")
	g.p("tile:")
	g.p("XORQ R13, R13") // the half: 0, then 32
	g.p("half:")
	f.load("w", "DX")
	f.load("blocks", "R9")
	f.load("s", "BX")
	f.load("m", "CX")
	g.zeroAll("Y", 8, rows)
	g.p("block:")
	g.zeroAll("Y", 4, rows)
	for i := range 4 {
		g.p("VMOVDQU %d(DX)(R13*1), Y0", 64+64*i)
		g.p("VPSRLW $4, Y0, Y1")
		g.p("VPAND Y14, Y0, Y0")
		g.p("VPAND Y14, Y1, Y1")
		for r := range rows {
			for half := range 2 {
				g.p("VPBROADCASTD %s, Y%d", row(4*(i+4*half), "AX", r), 2+half)
				g.p("VPMADDUBSW Y%d, Y%d, Y%d", 2+half, half, 2+half)
				g.p("VPADDW Y%d, Y%d, Y%d", 2+half, 4+r, 4+r)
			}
		}
	}
	g.p("SHRQ $1, R13")
	g.p("VCVTPH2PS (DX)(R13*1), Y0")
	g.p("VCVTPH2PS 32(DX)(R13*1), Y1")
	g.p("SHLQ $1, R13")
	for r := range rows {
		g.p("VPMADDWD Y15, Y%d, Y%d", 4+r, 4+r)
		g.scaleAVX2(r)
		g.p("VBROADCASTSS %d(CX), Y2", 4*r)
		g.p("VFMADD231PS Y2, Y1, Y%d", 8+r)
	}
	g.p("ADDQ $320, DX")
	g.p("ADDQ R15, CX")
	g.nextBlock()
	g.storeHalf(f, rows)
	g.nextTile(f, rows, "s", "m")
	f.end()
}

// scaleAVX2 adds the integer sums in Y4+r, times d in Y0 and the row's scale,
// to Y8+r.
func (g *gen) scaleAVX2(r int) {
	g.p("VCVTDQ2PS Y%d, Y%d", 4+r, 4+r)
	g.p("VBROADCASTSS %d(BX), Y2", 4*r)
	g.p("VMULPS Y2, Y0, Y2")
	g.p("VFMADD231PS Y2, Y%d, Y%d", 4+r, 8+r)
}

// storeHalf stores a tile's 8 channels, then turns to the other 8.
func (g *gen) storeHalf(f *fn, rows int) {
	g.p("LEAQ (DI)(R13*1), CX")
	for r := range rows {
		g.p("VMOVUPS Y%d, (CX)", 8+r)
		g.p("ADDQ SI, CX")
	}
	g.p("ADDQ $32, R13")
	g.p("CMPQ R13, $64")
	g.p("JEQ halves")
	f.load("blocks", "R9")
	g.p("SHLQ $5, R9")
	g.p("SUBQ R9, AX")
	g.p("JMP half")
	g.p("halves:")
	for range rows {
		g.p("ADDQ SI, DI")
	}
}

// mulQ8AVX2 multiplies magnitudes of weights with activations that carry the
// weights' signs: |w| <= 128 and |a| <= 127, so pairs fit 16 bits. Y3 is the
// signed weights, Y0 their magnitudes.
func (g *gen) mulQ8AVX2(rows int) {
	f := g.function(fmt.Sprintf("mulQ8x%dAVX2", rows), "is mulQ8 for multiples of its number of rows.", q8Args, "")
	g.tiles(f, "q", "ldq", 1)
	g.rowMultiples(rows)
	f.load("lds", "R15")
	g.p("SHLQ $2, R15")
	g.p("VMOVDQU ksign8<>(SB), Y14")
	g.p("VMOVDQU kones16<>(SB), Y15")
	g.p("tile:")
	g.p("XORQ R13, R13")
	g.p("half:")
	f.load("w", "DX")
	f.load("d", "CX")
	f.load("blocks", "R9")
	f.load("s", "BX")
	g.p("SHRQ $1, R13")
	g.p("ADDQ R13, CX")
	g.p("SHLQ $1, R13")
	g.zeroAll("Y", 8, rows)
	g.p("block:")
	g.zeroAll("Y", 4, rows)
	for i := range 8 {
		g.p("VPXOR %d(DX)(R13*1), Y14, Y3", 64*i)
		g.p("VPABSB Y3, Y0")
		for r := range rows {
			g.p("VPBROADCASTD %s, Y2", row(4*i, "AX", r))
			g.p("VPSIGNB Y3, Y2, Y2")
			g.p("VPMADDUBSW Y2, Y0, Y2")
			g.p("VPMADDWD Y15, Y2, Y2")
			g.p("VPADDD Y2, Y%d, Y%d", 4+r, 4+r)
		}
	}
	g.p("VCVTPH2PS (CX), Y0")
	for r := range rows {
		g.scaleAVX2(r)
	}
	g.p("ADDQ $512, DX")
	g.p("ADDQ $32, CX")
	g.nextBlock()
	g.storeHalf(f, rows)
	g.nextTile(f, rows, "s")
	f.end()
}
