//go:build !linux

package vet_test

// yield is of the processes that tests start on Linux.
func yield() {}
