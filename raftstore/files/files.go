// Package files is what the packages of raftstore do with files: reading a bounded
// one, writing one so that it is there after a crash, and copying until a context
// ends. What is in the files is their owners' affair.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrTooLong means that a file is longer than its reader bears.
var ErrTooLong = errors.New("file is too long")

// ReadBounded reads a file of at most limit bytes. Errors wrap ErrTooLong or are the
// file system's.
func ReadBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrTooLong, limit)
	}
	return b, nil
}

// WriteSynced writes a file that only its owner may read, and returns when it is on
// the disk. Its name is there after a crash only when the folder is synced, too.
func WriteSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// SyncFolder returns when the names in a folder are on the disk.
func SyncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Until is r until ctx ends, and then ctx's error.
func Until(ctx context.Context, r io.Reader) io.Reader { return until{ctx, r} }

type until struct {
	ctx context.Context //nolint:containedctx // ends the copy it is made for
	r   io.Reader
}

func (r until) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
