// Package kernel holds the inner loops of the CPU engine: matrix products with
// quantised weights, attention, and the element-wise steps between them.
//
// Weights are repacked once into panels ([Matrix]): 16 output channels side by
// side, in 4-bit, 8-bit or float32 form. Activations ([Acts]) are float32 and,
// for quantised weights, also 8-bit with a scale per 32 values. So three
// products serve every weight type.
//
// There are three levels of each loop: pure Go on every machine, and Go
// assembly for AVX2 and for AVX-512 with VNNI ([Best] picks). Integer parts
// are equal at all levels; float parts agree within the tolerance that the
// tests state. At one level, an output depends on its own inputs only, bit for
// bit: not on how many rows are computed together, nor on threads.
//
// A [Team] is the threads that share a step. Package model says what to
// compute; this package knows neither files nor layers.
package kernel
