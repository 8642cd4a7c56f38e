//go:build !linux

package pages

// advise does nothing: the system chooses its pages itself.
func advise([]byte) {}
