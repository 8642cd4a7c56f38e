//go:build !amd64

package kernel

func levels() []Level { return []Level{Generic} }

func kernels(Level) *Kernels { return genericKernels() }
