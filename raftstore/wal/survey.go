package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	raftwal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// ErrDamaged means that files of the log are missing, or not what was written.
var ErrDamaged = errors.New("log is damaged")

func damage(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrDamaged, path, fmt.Sprintf(format, args...))
}

// survey is what the files of a log are found to hold before it is opened, which
// repairs and deletes.
type survey struct {
	last uint64 // entry
	tail string // path of the segment that is written to, empty without one
	// Whatever is in the tail from end to its size was never acknowledged, or is
	// damaged; torn is the first byte there that is not zero, 0 without any.
	end, torn, size int64
	short           bool  // the tail has not that size yet
	index           int64 // where the tail's index begins if it is full, else 0

	state types.PersistentState // what the library has written down of the segments
}

// loadMeta opens the log's file of segments. One that is missing beside segments,
// or a mark, is damage; without those the log is new.
func loadMeta(meta *metadb.BoltMetaDB, dir, segments string, m *mark) (state types.PersistentState, err error) {
	path := filepath.Join(segments, metaName)
	defer func() {
		if p := recover(); p != nil { // the database trusts what it reads
			err = damage(path, "is not readable: %v", p)
		}
	}()
	found, err := filepath.Glob(filepath.Join(segments, "*.wal"))
	if err != nil {
		return state, err
	}
	used := len(found) > 0 || m.index > 0
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) && used {
		return state, damage(path, "is missing: the terms and votes of this node were in it")
	}
	if state, err = meta.Load(dir); err != nil {
		_, system := errors.AsType[syscall.Errno](err)
		if _, file := errors.AsType[*fs.PathError](err); file || system {
			return state, err
		}
		return state, damage(path, "is not readable: %v", err)
	}
	if len(state.Segments) == 0 && used {
		return state, damage(path, "lists no segments, and there were some")
	}
	return state, nil
}

// inspect checks the segments in dir against what is to be there. Where loss is
// accepted, what is damaged at the end only ends the log earlier.
func inspect(dir string, state types.PersistentState, m *mark, accept bool) (s survey, err error) {
	s.state = state
	for _, info := range state.Segments {
		if !info.SealTime.IsZero() {
			if err := checkSealed(dir, info); err != nil {
				return s, err
			}
			s.last = info.MaxIndex
			continue
		}
		if err := s.readTail(dir, info, m, accept); err != nil {
			return s, err
		}
	}
	if s.last < m.index && !accept {
		return s, fmt.Errorf("%w: it ends at entry %d and had reached %d, so entries that this node had vouched for are missing", ErrDamaged, s.last, m.index)
	}
	return s, nil
}

// checkSealed is an error when a segment that is full is missing or too short. Its
// entries are checked when they are read.
func checkSealed(dir string, info types.SegmentInfo) error {
	path := filepath.Join(dir, segment.FileName(info))
	f, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return damage(path, "is missing")
	}
	if err != nil {
		return err
	}
	least := max(int64(info.IndexStart)+4*int64(info.MaxIndex-info.BaseIndex+1), int64(info.SizeLimit))
	if f.Size() < least {
		return damage(path, "has %d bytes and needs %d", f.Size(), least)
	}
	return nil
}

// readTail finds the end of the segment that is written to.
func (s *survey) readTail(dir string, info types.SegmentInfo, m *mark, accept bool) error {
	path := filepath.Join(dir, segment.FileName(info))
	b, err := os.ReadFile(path)
	missing := errors.Is(err, os.ErrNotExist)
	switch {
	case missing && (m.index < info.BaseIndex || accept):
		return nil // created, and lost in a crash before anything in it was synced
	case missing:
		return damage(path, "is missing")
	case err != nil:
		return err
	case len(b) < int(info.SizeLimit) && !accept && (m.index >= info.BaseIndex || !zero(b)):
		// It gets its size before anything is written into it.
		return damage(path, "has %d bytes and needs %d", len(b), info.SizeLimit)
	}
	entries, end, index, bad := scan(b)
	if bad > 0 && !accept {
		return damage(path, "fails its checksum before byte %d, and more was written after it", bad)
	}
	if entries > 0 {
		s.last = info.BaseIndex + entries - 1
	}
	s.tail, s.end, s.index, s.size = path, int64(end), int64(index), max(int64(len(b)), int64(info.SizeLimit))
	s.short = int64(len(b)) < s.size
	if at := end + firstSet(b[end:]); at < len(b) {
		s.torn = max(int64(at), 1)
	}
	return nil
}

// What a segment consists of, as the log library writes it: a header, then frames
// of a head, of which the first byte is the kind and the last four the length of
// what follows, padded to whole heads; a commit has a checksum there, of all since
// the commit before, and nothing follows.
const (
	fileHead  = 32
	frameHead = 8

	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3
)

// scan reads a segment: how many entries are committed, where the last commit ends,
// where the index begins that is committed once the segment is full, and, if a
// commit that was followed by others is not what was written, where that is. The
// last commit may be: a crash tears it.
func scan(b []byte) (entries uint64, end, index, bad int) {
	seen, from, torn, listed := uint64(0), 0, 0, 0
	for at := fileHead; at+frameHead <= len(b); {
		kind, word := b[at], binary.LittleEndian.Uint32(b[at+4:])
		if kind < frameEntry || kind > frameCommit {
			break
		}
		if torn > 0 {
			return entries, end, index, torn
		}
		next := at + frameHead
		switch kind {
		case frameEntry, frameIndex:
			next += (int(word) + frameHead - 1) / frameHead * frameHead
			if kind == frameEntry {
				seen++
			} else {
				listed = at + frameHead
			}
		case frameCommit:
			if crc32.Checksum(b[from:at], castagnoli) == word {
				entries, end, index = seen, next, listed
			} else {
				torn = at
			}
			from = next
		}
		at = next
	}
	return entries, end, index, 0
}

// turn has the log go on in a new segment if the last one is full. The library
// writes that down in its own time after the append that filled it; when the
// process ends before, the library takes no more entries, ever.
func (s *survey) turn(meta types.MetaStore) error {
	if s.index == 0 {
		return nil
	}
	now, state := time.Now(), s.state
	full := &state.Segments[len(state.Segments)-1]
	full.SealTime, full.MaxIndex, full.IndexStart = now, s.last, uint64(s.index)
	state.Segments = append(state.Segments, types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: s.last + 1, MinIndex: s.last + 1, SizeLimit: segmentBytes, Codec: raftwal.CodecBinaryV1, CreateTime: now,
	})
	state.NextSegmentID++
	return meta.CommitState(state)
}

// prepare repairs what a crash leaves in dir and the library does not. A segment
// whose name is not on the disk yet is one of these: the library syncs names for
// the process that creates them.
func (s *survey) prepare(meta types.MetaStore, dir string) error {
	if err := s.clear(); err != nil {
		return err
	}
	if err := s.turn(meta); err != nil {
		return err
	}
	return syncDir(dir)
}

// clear overwrites what is behind the end of the tail, so that it is not read as
// part of the log once other entries are written before it, and gives it its size.
func (s *survey) clear() error {
	if s.torn == 0 && !s.short {
		return nil
	}
	f, err := os.OpenFile(s.tail, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(clearFile(f, s.end, s.size), f.Close())
}

func clearFile(f *os.File, from, to int64) error {
	if _, err := f.WriteAt(make([]byte, to-from), from); err != nil {
		return err
	}
	return f.Sync()
}
