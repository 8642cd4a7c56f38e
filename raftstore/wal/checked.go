package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/hashicorp/raft"
)

// ErrChecksum means that an entry on disk is not what was written.
var ErrChecksum = errors.New("log entry fails its checksum")

// checked adds a CRC-32C to every entry of a log on disk. The log itself checks
// the tail of a file when it is opened, and nothing when an entry is read: a
// byte that rotted would be applied on this node and on no other.
//
// The checksum rides at the end of the entry's extensions, because the log
// (raft-wal 0.4.1) cannot reopen files of a codec other than its own.
type checked struct{ Store }

const checksumBytes = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// StoreLog stores an entry with its checksum.
func (c checked) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries with their checksums. The entries are not modified.
func (c checked) StoreLogs(logs []*raft.Log) error {
	sealed := make([]*raft.Log, len(logs))
	for i, l := range logs {
		s := *l
		s.Extensions = binary.LittleEndian.AppendUint32(slices.Clone(l.Extensions), checksum(l))
		sealed[i] = &s
	}
	return c.Store.StoreLogs(sealed)
}

// GetLog reads an entry and checks it. Errors wrap ErrChecksum or are the log's.
func (c checked) GetLog(index uint64, l *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil { // the log's decoder trusts what it reads
			err = fmt.Errorf("%w: %v", ErrChecksum, p)
		}
	}()
	if err := c.Store.GetLog(index, l); err != nil {
		return err
	}
	n := len(l.Extensions) - checksumBytes
	if n < 0 || l.Index != index {
		return fmt.Errorf("%w: entry %d", ErrChecksum, index)
	}
	sum := binary.LittleEndian.Uint32(l.Extensions[n:])
	l.Extensions = l.Extensions[:n:n]
	if n == 0 {
		l.Extensions = nil
	}
	if checksum(l) != sum {
		return fmt.Errorf("%w: entry %d", ErrChecksum, index)
	}
	return nil
}

// checksum covers all of an entry but the time it was appended, which nothing
// depends on.
func checksum(l *raft.Log) uint32 {
	head := binary.LittleEndian.AppendUint64(nil, l.Index)
	head = binary.LittleEndian.AppendUint64(head, l.Term)
	head = append(head, byte(l.Type))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(l.Data)))
	sum := crc32.Checksum(head, castagnoli)
	return crc32.Update(crc32.Update(sum, castagnoli, l.Data), castagnoli, l.Extensions)
}
