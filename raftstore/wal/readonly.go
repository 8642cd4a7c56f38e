package wal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// metaName is the log's own file of segments, votes and terms.
const metaName = "wal-meta.db"

// OpenReadOnly opens the log in dir as it would be after a restart, and changes
// nothing there: what opening would repair is repaired in a copy, in a folder of
// its own that Close removes. Nobody may have the log open. A missing log is
// os.ErrNotExist, a damaged one ErrDamaged as with Open.
func OpenReadOnly(dir string, log hclog.Logger, opts ...Option) (Store, error) {
	scratch, err := os.MkdirTemp("", "yardmaster-wal-")
	if err != nil {
		return nil, fmt.Errorf("open the log in %s: %w", dir, err)
	}
	s, err := openCopy(dir, scratch, orSilent(log), chosen(opts))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the log in %s: %w", dir, err), os.RemoveAll(scratch))
	}
	return s, nil
}

func openCopy(dir, scratch string, log hclog.Logger, o options) (Store, error) {
	missing := copyFile(filepath.Join(dir, metaName), filepath.Join(scratch, metaName))
	if missing != nil && !errors.Is(missing, os.ErrNotExist) {
		return nil, missing
	}
	meta := &metadb.BoltMetaDB{}
	_, found, err := examine(meta, scratch, dir, log, o)
	if err := cmp.Or(err, missing); err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	files := segment.NewFiler(dir, overlay{FS: fs.New(), scratch: scratch, found: found})
	w, err := openLog(func() (*raftwal.WAL, error) {
		return raftwal.Open(scratch, raftwal.WithLogger(log), raftwal.WithSegmentSize(segmentBytes),
			raftwal.WithMetaStore(meta), raftwal.WithSegmentFiler(files))
	})
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	return scratched{checked{w}, scratch}, nil
}

type scratched struct {
	Store
	scratch string
}

func (s scratched) Close() error { return errors.Join(s.Store.Close(), os.RemoveAll(s.scratch)) }

// overlay reads files where they are and writes them into another folder.
type overlay struct {
	*fs.FS
	scratch string
	found   survey
}

func (o overlay) Create(_, name string, size uint64) (types.WritableFile, error) {
	return o.FS.Create(o.scratch, name, size)
}

// Delete leaves the file where it is.
func (overlay) Delete(string, string) error { return nil }

func (o overlay) OpenReader(dir, name string) (types.ReadableFile, error) {
	f, err := o.FS.OpenReader(o.scratch, name)
	if errors.Is(err, os.ErrNotExist) {
		return o.FS.OpenReader(dir, name)
	}
	return f, err
}

func (o overlay) OpenWriter(dir, name string) (types.WritableFile, error) {
	if err := copyFile(filepath.Join(dir, name), filepath.Join(o.scratch, name)); err != nil {
		return nil, err
	}
	if s := o.found; filepath.Join(dir, name) == s.tail {
		s.tail = filepath.Join(o.scratch, name)
		if err := s.clear(); err != nil {
			return nil, err
		}
	}
	return o.FS.OpenWriter(o.scratch, name)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, in.Close(), out.Close())
}
