package host

import (
	"errors"
	"fmt"
	"os"

	"github.com/tetratelabs/wazero"
)

// ErrCache says that the directory for compiled code cannot be used.
var ErrCache = errors.New("cache of compiled policies not usable")

// openCache makes the directory if need be, and refuses one that others may write
// to: what lies there is executed.
func openCache(dir string) (wazero.CompilationCache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCache, err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCache, err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%w: %s has mode %04o; it holds machine code and must be its owner's alone: chmod 700 it", ErrCache, dir, mode)
	}
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCache, err)
	}
	return cache, nil
}
