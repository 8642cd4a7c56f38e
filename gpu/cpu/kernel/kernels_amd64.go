package kernel

import "golang.org/x/sys/cpu"

//go:generate go run ./gen

func levels() []Level {
	x := &cpu.X86
	list := []Level{Generic}
	// F16C has no flag here; every processor with AVX2 has it.
	if x.HasAVX2 && x.HasFMA {
		list = append(list, AVX2)
		if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VNNI {
			list = append(list, AVX512)
		}
	}
	return list
}

func kernels(l Level) *Kernels {
	switch l {
	case AVX2:
		return &Kernels{
			q4:        []tile[mulQ4]{{4, mulQ4x4AVX2}, {2, mulQ4x2AVX2}, {1, mulQ4x1AVX2}},
			q8:        []tile[mulQ8]{{4, mulQ8x4AVX2}, {2, mulQ8x2AVX2}, {1, mulQ8x1AVX2}},
			f32:       []tile[mulF32]{{4, mulF32x4AVX2}, {2, mulF32x2AVX2}, {1, mulF32x1AVX2}},
			quantize:  quantizeAVX2,
			sumSquare: sumSquareAVX2,
			scale:     scaleAVX2,
			add:       addAVX2,
			siluMul:   siluMulAVX2,
			expSum:    expSumAVX2,
			widen:     widenAVX2,
			narrow:    narrowAVX2,
			transpose: transposeAVX2,
		}
	case AVX512:
		return &Kernels{
			q4:        []tile[mulQ4]{{8, mulQ4x8AVX512}, {4, mulQ4x4AVX512}, {2, mulQ4x2AVX512}, {1, mulQ4x1AVX512}},
			q8:        []tile[mulQ8]{{8, mulQ8x8AVX512}, {4, mulQ8x4AVX512}, {2, mulQ8x2AVX512}, {1, mulQ8x1AVX512}},
			f32:       []tile[mulF32]{{8, mulF32x8AVX512}, {4, mulF32x4AVX512}, {2, mulF32x2AVX512}, {1, mulF32x1AVX512}},
			quantize:  quantizeAVX512,
			sumSquare: sumSquareAVX512,
			scale:     scaleAVX512,
			add:       addAVX512,
			siluMul:   siluMulAVX512,
			expSum:    expSumAVX512,
			widen:     widenAVX512,
			narrow:    narrowAVX512,
			transpose: transposeAVX512,
		}
	case Generic:
	}
	return genericKernels()
}
