package vet

import (
	"io"
	"os"

	"github.com/yardmaster/yardmaster/core/rollout"
)

// ReadFile reads a module's file. Of one that is larger than [rollout.MaxModule] it reads one
// byte more than that and no further: [Pipeline.Check] refuses it by its size.
func ReadFile(path string) (wasm []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	return io.ReadAll(io.LimitReader(f, rollout.MaxModule+1))
}
