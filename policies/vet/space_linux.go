package vet

import (
	"os"
	"strconv"
	"strings"
)

// addressSpace is how many bytes of address space this process has. Go reserves much
// of it that it never uses.
func addressSpace() (uint64, bool) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(b), " ")
	n, err := strconv.ParseUint(first, 10, 64)
	return n * uint64(os.Getpagesize()), err == nil
}
