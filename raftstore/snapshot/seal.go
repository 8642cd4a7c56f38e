package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/raftstore/files"
)

// ErrDamaged means that a snapshot is not what was written.
var ErrDamaged = errors.New("snapshot is damaged")

const (
	metaFile = "meta.json"
	sealFile = "seal"
	// maxMeta bounds a description, in bytes; one of 10,000 members fits.
	maxMeta = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealOf is the seal of a description.
func sealOf(meta []byte) []byte {
	return fmt.Appendf(nil, "ym-seal 1 %08x %d\n", crc32.Checksum(meta, castagnoli), len(meta))
}

// seal makes a snapshot's folder durable, and its description tamper-evident.
func seal(folder string) error {
	meta, err := readSmall(filepath.Join(folder, metaFile))
	if err != nil {
		return err
	}
	if err := files.WriteSynced(filepath.Join(folder, sealFile), sealOf(meta)); err != nil {
		return err
	}
	return files.SyncFolder(folder)
}

// describe reads the description of a snapshot and checks it. A snapshot without
// a seal is of an earlier release, or a crash came before its seal; its
// description must then at least make sense. Errors wrap ErrDamaged or are the
// file system's.
func describe(folder, id string) (*raft.SnapshotMeta, error) {
	b, err := readSmall(filepath.Join(folder, metaFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: it has no description", ErrDamaged)
	}
	if err != nil {
		return nil, err
	}
	want, err := readSmall(filepath.Join(folder, sealFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case !bytes.Equal(want, sealOf(b)):
		return nil, fmt.Errorf("%w: its description fails the seal", ErrDamaged)
	}
	var meta raft.SnapshotMeta
	if err := json.Unmarshal(b, &meta); err != nil {
		return nil, fmt.Errorf("%w: its description: %w", ErrDamaged, err)
	}
	if meta.ID != id || meta.Index == 0 || meta.Term == 0 {
		return nil, fmt.Errorf("%w: its description is of %q, entry %d of term %d", ErrDamaged, meta.ID, meta.Index, meta.Term)
	}
	return &meta, nil
}

// readSmall reads one of the files beside a snapshot.
func readSmall(path string) ([]byte, error) {
	b, err := files.ReadBounded(path, maxMeta)
	if errors.Is(err, files.ErrTooLong) {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return b, err
}
