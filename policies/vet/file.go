package vet

import (
	"io"
	"os"
)

// ReadFile reads a module's file. Of one that is larger than [MostBytes] it reads one
// byte more than that and no further: [Pipeline.Check] refuses it by its size.
func ReadFile(path string) (wasm []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return io.ReadAll(io.LimitReader(f, MostBytes+1))
}
