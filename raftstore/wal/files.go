package wal

import (
	"os"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// files are the log's segments, synced by what the system has for data alone: a
// segment has its size from the start, so that the times in its inode are all that
// a full sync would write beside.
type files struct{ *fs.FS }

// Create makes a segment. Its first sync is the library's, which makes the name
// durable too.
func (f files) Create(dir, name string, size uint64) (types.WritableFile, error) {
	inner, err := f.FS.Create(dir, name, size)
	return asSegment(inner), err
}

func (f files) OpenWriter(dir, name string) (types.WritableFile, error) {
	inner, err := f.FS.OpenWriter(dir, name)
	return asSegment(inner), err
}

// asSegment is nil for what is not a file of the system: an error came with it.
func asSegment(f types.WritableFile) types.WritableFile {
	switch f := f.(type) {
	case *fs.File:
		if f != nil {
			return &segmentFile{WritableFile: f, file: &f.File}
		}
	case *os.File:
		if f != nil {
			return &segmentFile{WritableFile: f, file: f}
		}
	}
	return nil
}

type segmentFile struct {
	types.WritableFile
	file   *os.File
	synced bool
}

// Sync is called by the log's writer alone.
func (s *segmentFile) Sync() error {
	if !s.synced {
		if err := s.WritableFile.Sync(); err != nil {
			return err
		}
		s.synced = true
		return nil
	}
	return syncData(s.file)
}
