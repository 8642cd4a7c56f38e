package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/tetratelabs/wazero"
)

// ErrCache says that the directory for compiled code cannot be used.
var ErrCache = errors.New("cache of compiled policies not usable")

// codeCache is a directory of compiled code. The runtime checks of a file only its
// machine code and jumps where the rest says, so that a damaged file ends the process.
// Here each file is sealed: a hash of it is appended, which the runtime does not read.
// One whose seal is not good is removed before anything is compiled, and made anew.
type codeCache struct {
	dir     string
	runtime wazero.CompilationCache

	mu   sync.Mutex
	good map[string]stamp // files that have been looked at
}

// stamp tells whether a file is still the one that was looked at.
type stamp struct {
	size     int64
	modified time.Time
}

// seal is what stands before the hash at the end of a file.
const seal = "ym-seal1"

// staleAfter is when a file that somebody began to write is nobody's any more.
const staleAfter = time.Hour

// openCache makes the directory if need be, and refuses one that others may write
// to: what lies there is executed.
func openCache(dir string) (*codeCache, error) {
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
	runtime, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCache, err)
	}
	return &codeCache{dir: dir, runtime: runtime, good: map[string]stamp{}}, nil
}

// compile has the runtime compile a module between a look at the files that are there
// and the sealing of those that are new. nil compiles without a cache.
func (c *codeCache) compile(ctx context.Context, r wazero.Runtime, wasm []byte) (wazero.CompiledModule, error) {
	if c == nil {
		return r.CompileModule(ctx, wasm)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.each(c.verify); err != nil {
		return nil, err
	}
	compiled, err := r.CompileModule(ctx, wasm)
	if err != nil {
		// It may only have been that the file could not be written: the code is in memory
		// then, and is taken from there.
		if compiled, err = r.CompileModule(ctx, wasm); err != nil {
			return nil, err
		}
	}
	// A file that could not be sealed is removed next time; the code is good.
	_ = c.each(c.sealNew)
	return compiled, nil
}

// Close frees what the runtime keeps of it in memory.
func (c *codeCache) Close(ctx context.Context) error {
	if c == nil {
		return nil
	}
	return c.runtime.Close(ctx)
}

// each does something with every file of code. Other processes may make and remove
// files meanwhile.
func (c *codeCache) each(do func(path string, info fs.FileInfo) error) error {
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreMissing(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		if strings.HasSuffix(path, ".tmp") {
			if time.Since(info.ModTime()) > staleAfter {
				return ignoreMissing(os.Remove(path))
			}
			return nil
		}
		return ignoreMissing(do(path, info))
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCache, err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// verify removes a file without a good seal.
func (c *codeCache) verify(path string, info fs.FileInfo) error {
	if c.good[path] == stampOf(info) {
		return nil
	}
	delete(c.good, path)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !sealed(b) {
		return os.Remove(path)
	}
	c.good[path] = stampOf(info)
	return nil
}

// sealNew seals a file that has none: it was written since all others were looked at.
func (c *codeCache) sealNew(path string, info fs.FileInfo) error {
	if c.good[path] == stampOf(info) {
		return nil
	}
	b, err := os.ReadFile(path)
	if err != nil || sealed(b) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(sealOf(b))
	return errors.Join(err, f.Close())
}

func stampOf(info fs.FileInfo) stamp { return stamp{info.Size(), info.ModTime()} }

func sealOf(b []byte) []byte { return binary.LittleEndian.AppendUint64([]byte(seal), xxhash.Sum64(b)) }

func sealed(b []byte) bool {
	at := len(b) - len(seal) - 8
	return at >= 0 && bytes.Equal(b[at:], sealOf(b[:at]))
}
