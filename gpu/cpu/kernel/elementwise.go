package kernel

import "math"

// The element-wise steps. Lengths are multiples of 16.

// RMSNorm sets dst to x / sqrt(mean(x²) + eps) * w.
func (k *Kernels) RMSNorm(dst, x, w []float32, eps float32) {
	n := len(x)
	_, _ = dst[n-1], w[n-1]
	mean := k.sumSquare(&x[0], n) / float32(n)
	k.scale(&dst[0], &x[0], &w[0], n, float32(1/math.Sqrt(float64(mean+eps))))
}

// Add adds x to dst.
func (k *Kernels) Add(dst, x []float32) {
	n := len(x)
	_ = dst[n-1]
	k.add(&dst[0], &x[0], n)
}

// SiluMul sets dst to silu(gate) * up, with silu(x) = x / (1 + exp(-x)).
func (k *Kernels) SiluMul(dst, gate, up []float32) {
	n := len(dst)
	_, _ = gate[n-1], up[n-1]
	k.siluMul(&dst[0], &gate[0], &up[0], n)
}

// Narrow rounds src to half precision.
func (k *Kernels) Narrow(dst []uint16, src []float32) {
	n := len(src)
	_ = dst[n-1]
	k.narrow(&dst[0], &src[0], n)
}
