package nemesis

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// trouble is what a disk does instead of what it should. The zero value is none.
type trouble struct {
	hang  bool          // writes do not end
	stuck bool          // nor do reads: the whole machine stands still
	err   error         // of writes
	late  bool          // with err: the write reaches the disk all the same
	slow  time.Duration // added to each write
}

func (t trouble) String() string {
	switch {
	case t.stuck:
		return "stands still"
	case t.hang:
		return "hangs"
	case t.err != nil && t.late:
		return fmt.Sprintf("writes and says %q", t.err)
	case t.err != nil:
		return fmt.Sprintf("says %q", t.err)
	}
	return fmt.Sprintf("takes %v a write", t.slow)
}

// disk is a node's, under the logs of both groups.
type disk struct {
	mu      sync.Mutex
	now     trouble
	changed chan struct{} // closed at each change
}

func newDisk() *disk { return &disk{changed: make(chan struct{})} }

func (d *disk) set(t trouble) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = t
	close(d.changed)
	d.changed = make(chan struct{})
}

// wait lasts while the disk does not let an operation go on.
func (d *disk) wait(write bool) trouble {
	for {
		d.mu.Lock()
		now, changed := d.now, d.changed
		d.mu.Unlock()
		if !now.stuck && (!write || !now.hang) {
			return now
		}
		<-changed
	}
}

func (d *disk) write(f func() error) error {
	t := d.wait(true)
	if t.slow > 0 {
		time.Sleep(t.slow)
	}
	if t.err != nil && !t.late {
		return t.err
	}
	if err := f(); err != nil {
		return err
	}
	return t.err
}

// wrap puts the disk under a group's log.
func (d *disk) wrap(_ string, log wal.Store) wal.Store { return &onDisk{log, d} }

type onDisk struct {
	wal.Store
	disk *disk
}

func (s *onDisk) StoreLog(l *raft.Log) error {
	return s.disk.write(func() error { return s.Store.StoreLog(l) })
}

func (s *onDisk) StoreLogs(l []*raft.Log) error {
	return s.disk.write(func() error { return s.Store.StoreLogs(l) })
}

func (s *onDisk) DeleteRange(from, to uint64) error {
	return s.disk.write(func() error { return s.Store.DeleteRange(from, to) })
}

func (s *onDisk) Set(k, v []byte) error {
	return s.disk.write(func() error { return s.Store.Set(k, v) })
}

func (s *onDisk) SetUint64(k []byte, v uint64) error {
	return s.disk.write(func() error { return s.Store.SetUint64(k, v) })
}

func (s *onDisk) GetLog(index uint64, l *raft.Log) error {
	s.disk.wait(false)
	return s.Store.GetLog(index, l)
}

func (s *onDisk) LastIndex() (uint64, error) {
	s.disk.wait(false)
	return s.Store.LastIndex()
}

var failures = []trouble{
	{hang: true},
	{err: unix.EIO},
	{err: unix.EIO, late: true},
	{err: unix.ENOSPC},
}
