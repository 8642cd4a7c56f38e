package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// markName is the file beside the segments that says how far the log had
	// reached.
	markName = "mark"
	// markEvery is the shortest time between two writes of the mark that an append
	// has caused.
	markEvery = time.Second
	// slotBytes is a sector: one slot is written at a time, so that a torn write
	// leaves the other.
	slotBytes = 512
)

// mark is that file: two slots, of which the one with the higher sequence number
// counts.
type mark struct {
	path string
	file *os.File // nil until it is written

	seq   uint64
	index uint64
}

// readMark reads the mark in dir. One that is missing, or was never written, is 0.
func readMark(dir string) (*mark, error) {
	m := &mark{path: filepath.Join(dir, markName)}
	f, err := os.Open(m.path)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 2*slotBytes))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	written, valid := false, false
	for at := 0; at < len(b); at += slotBytes {
		slot := b[at:min(at+slotBytes, len(b))]
		written = written || !zero(slot)
		if seq, index, ok := decodeSlot(slot); ok {
			valid = true
			if seq > m.seq {
				m.seq, m.index = seq, index
			}
		}
	}
	// A power cut can tear the first write of all, and then only a slot that
	// reads as nothing is there; later ones leave one that is whole.
	if written && !valid {
		return nil, damage(m.path, "is not readable")
	}
	return m, nil
}

// firstSet is the first byte of b that is not zero, len(b) if all are.
func firstSet(b []byte) int {
	var zeros [4096]byte
	at := 0
	for at+len(zeros) <= len(b) && bytes.Equal(b[at:at+len(zeros)], zeros[:]) {
		at += len(zeros)
	}
	for at < len(b) && b[at] == 0 {
		at++
	}
	return at
}

func zero(b []byte) bool { return firstSet(b) == len(b) }

func decodeSlot(b []byte) (seq, index uint64, ok bool) {
	if len(b) < 20 {
		return 0, 0, false
	}
	seq, index = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	return seq, index, seq > 0 && crc32.Checksum(b[:16], castagnoli) == binary.LittleEndian.Uint32(b[16:])
}

// write makes index the mark, and durable.
func (m *mark) write(index uint64) error {
	if index == m.index {
		return nil
	}
	if m.file == nil {
		if err := m.create(); err != nil {
			return err
		}
	}
	slot := binary.LittleEndian.AppendUint64(nil, m.seq+1)
	slot = binary.LittleEndian.AppendUint64(slot, index)
	slot = binary.LittleEndian.AppendUint32(slot, crc32.Checksum(slot, castagnoli))
	if _, err := m.file.WriteAt(slot, int64((m.seq+1)%2)*slotBytes); err != nil {
		return err
	}
	if err := m.file.Sync(); err != nil {
		return err
	}
	m.seq, m.index = m.seq+1, index
	return nil
}

func (m *mark) create() error {
	f, err := os.OpenFile(m.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(2*slotBytes), syncDir(filepath.Dir(m.path))); err != nil {
		return errors.Join(err, f.Close())
	}
	m.file = f
	return nil
}

func (m *mark) close() error {
	if m.file == nil {
		return nil
	}
	return m.file.Close()
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// marked keeps the mark of a log: how far it has certainly reached on disk. A log
// that ends before its mark has lost entries that were acknowledged, which the log
// itself cannot tell from an append that a crash cut off.
//
// Appends only leave a number behind. A goroutine writes the mark at once when the
// log grows after a quiet time, and once a second while it goes on growing. It is
// lowered, and that is on disk, before entries at the end are deleted.
type marked struct {
	Store
	reached atomic.Uint64
	grown   chan struct{} // holds one value when the mark is behind
	every   time.Duration // markEvery, but in tests

	mu     sync.Mutex // around the mark
	mark   *mark
	broken atomic.Pointer[error]

	closing chan struct{}
	once    sync.Once
	ended   chan struct{}
}

// keepMark begins with a log that has been checked. It owns both from now on.
func keepMark(s Store, m *mark, every time.Duration) (*marked, error) {
	last, err := s.LastIndex()
	if err != nil {
		return nil, err
	}
	k := &marked{
		Store: s, mark: m, every: every,
		grown: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}),
	}
	k.reached.Store(last)
	if err := m.write(last); err != nil {
		return nil, fmt.Errorf("write down how far the log reaches: %w", err)
	}
	go k.follow()
	return k, nil
}

// StoreLog stores an entry.
func (k *marked) StoreLog(l *raft.Log) error { return k.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries. An error may be that of the mark's last write: a disk
// that failed one write is not to be trusted with another.
func (k *marked) StoreLogs(logs []*raft.Log) error {
	if err := k.broken.Load(); err != nil {
		return *err
	}
	if err := k.Store.StoreLogs(logs); err != nil || len(logs) == 0 {
		return err
	}
	k.reached.Store(logs[len(logs)-1].Index)
	select {
	case k.grown <- struct{}{}:
	default:
	}
	return nil
}

// DeleteRange deletes entries.
func (k *marked) DeleteRange(from, to uint64) error {
	last, err := k.LastIndex()
	if err != nil {
		return err
	}
	if from <= last && to >= last {
		first, err := k.FirstIndex()
		if err != nil {
			return err
		}
		rest := from - 1
		if from <= first {
			rest = 0 // nothing is left; what comes next may be anywhere
		}
		k.reached.Store(rest)
		if err := k.put(); err != nil {
			return err
		}
	}
	return k.Store.DeleteRange(from, to)
}

// put writes the mark.
func (k *marked) put() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.broken.Load(); err != nil {
		return *err
	}
	if err := k.mark.write(k.reached.Load()); err != nil {
		err = fmt.Errorf("write down how far the log reaches: %w", err)
		k.broken.Store(&err)
		return err
	}
	return nil
}

func (k *marked) follow() {
	defer close(k.ended)
	for {
		select {
		case <-k.grown:
		case <-k.closing:
			return
		}
		_ = k.put() // the next append tells
		select {
		case <-time.After(k.every):
		case <-k.closing:
			return
		}
	}
}

// Close closes the log. The mark is then where the log ends.
func (k *marked) Close() (err error) {
	k.once.Do(func() {
		close(k.closing)
		<-k.ended
		err = errors.Join(k.put(), k.mark.close(), k.Store.Close())
	})
	return err
}
