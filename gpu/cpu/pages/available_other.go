//go:build !linux

package pages

// Available is about how many bytes can be allocated without swapping. It is 0
// here: nothing says.
func Available() int64 { return 0 }
