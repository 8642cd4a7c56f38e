//go:build !linux

package prefix

// hugeMemory is the index's own way to get memory: there are no huge pages to
// ask for.
func hugeMemory() func(words int) []uint64 { return nil }
