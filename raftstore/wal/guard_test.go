package wal

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// sickStore hangs or fails on request.
type sickStore struct {
	Store
	hang   chan struct{} // nil: writes do not hang; else until it is closed
	err    error
	closed bool
}

func (s *sickStore) wait() error {
	if s.hang != nil {
		<-s.hang
	}
	return s.err
}

func (s *sickStore) StoreLogs(l []*raft.Log) error {
	return errors.Join(s.wait(), s.Store.StoreLogs(l))
}

func (s *sickStore) SetUint64(k []byte, v uint64) error {
	return errors.Join(s.wait(), s.Store.SetUint64(k, v))
}

func (s *sickStore) GetLog(i uint64, l *raft.Log) error {
	if s.err != nil {
		return s.err
	}
	return s.Store.GetLog(i, l)
}

func (s *sickStore) Close() error {
	s.closed = true
	return nil
}

func entries() []*raft.Log { return []*raft.Log{{Index: 1, Term: 1}} }

func TestHungWriteEndsByTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick := &sickStore{Store: Memory(), hang: make(chan struct{})}
		var faults []error
		g := Guard(sick, time.Second, func(err error) { faults = append(faults, err) })
		start := time.Now()
		if err := g.StoreLogs(entries()); !errors.Is(err, ErrStalled) {
			t.Fatalf("StoreLogs = %v", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("gave up after %v", d)
		}
		start = time.Now()
		for _, err := range []error{g.StoreLogs(entries()), g.DeleteRange(1, 1), g.Set(nil, nil)} {
			if !errors.Is(err, ErrStalled) {
				t.Errorf("a write after the fault: %v", err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("later writes waited %v", d)
		}
		if len(faults) != 1 || !errors.Is(g.Fault(), ErrStalled) {
			t.Errorf("faults %v", faults)
		}
		if err := g.Close(); !errors.Is(err, ErrStalled) || sick.closed {
			t.Errorf("Close under a hung write = %v, closed %v", err, sick.closed)
		}
		close(sick.hang)
		synctest.Wait()
		if !sick.closed {
			t.Error("the store was not closed once the write had ended")
		}
	})
}

// A process that was stopped finds its timers over, and its write not done yet.
func TestStoppedProcessIsNoHungDisk(t *testing.T) {
	over := make(chan time.Time)
	close(over)
	for range 100 {
		done := make(chan error, 1)
		stopped := false
		after := func(time.Duration) <-chan time.Time {
			if stopped { // it goes on, and so does the write
				done <- nil
				return nil
			}
			stopped = true
			return over
		}
		if err := await(done, time.Second, after); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFailedWriteEndsTheStoresUse(t *testing.T) {
	full := &os.PathError{Op: "write", Path: "1.wal", Err: unix.ENOSPC}
	sick := &sickStore{Store: Memory(), err: full}
	trips := 0
	g := Guard(sick, time.Minute, func(error) { trips++ })
	if err := g.StoreLogs(entries()); !errors.Is(err, ErrFailed) || !errors.Is(err, ErrFull) || !errors.Is(err, full) {
		t.Fatalf("StoreLogs = %v", err)
	}
	sick.err = nil
	if err := g.StoreLogs(entries()); !errors.Is(err, full) {
		t.Errorf("a store that failed was written again: %v", err)
	}
	if err := g.Close(); err != nil || !sick.closed || trips != 1 {
		t.Errorf("Close = %v, closed %v, %d trips", err, sick.closed, trips)
	}
}

// The library panics when it cannot store its term. The guard must not let it
// come to that.
func TestFailuresWithoutAnAnswerEndTheGoroutine(t *testing.T) {
	for name, call := range map[string]func(*Guarded){
		"SetUint64": func(g *Guarded) { _ = g.SetUint64([]byte("CurrentTerm"), 7) },
		"GetLog":    func(g *Guarded) { _ = g.GetLog(1, &raft.Log{}) },
	} {
		t.Run(name, func(t *testing.T) {
			g := Guard(&sickStore{Store: Memory(), err: errors.New("input/output error")}, time.Minute, func(error) {})
			returned := false
			var wg sync.WaitGroup
			wg.Go(func() {
				call(g)
				returned = true
			})
			wg.Wait()
			if returned || !errors.Is(g.Fault(), ErrFailed) {
				t.Errorf("returned %v, fault %v", returned, g.Fault())
			}
		})
	}
}

func TestMissingEntryIsNoFault(t *testing.T) {
	g := Guard(Memory(), time.Minute, func(err error) { t.Error(err) })
	if err := g.GetLog(9, &raft.Log{}); err != raft.ErrLogNotFound { //nolint:errorlint // the library compares by identity
		t.Errorf("GetLog = %v", err)
	}
	if g.Fault() != nil {
		t.Error(g.Fault())
	}
}

func TestOpenIsMonotonicAndKeeps(t *testing.T) {
	dir := t.TempDir()
	for round := range uint64(2) {
		s, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !s.IsMonotonic() {
			t.Error("the log accepts gaps; hashicorp/raft#697 would survive a restart")
		}
		if last, err := s.LastIndex(); err != nil || last != round {
			t.Errorf("last index %d, %v; want %d", last, err, round)
		}
		if err := s.StoreLogs([]*raft.Log{{Index: round + 1, Term: 1, Data: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProbeSync(t *testing.T) {
	times, err := ProbeSync(t.TempDir())
	if err != nil || times.Median <= 0 || times.Worst < times.Median {
		t.Errorf("ProbeSync = %+v, %v", times, err)
	}
	if _, err := ProbeSync("/nonexistent"); err == nil {
		t.Error("probed a missing directory")
	}
	if !(SyncTimes{Median: 50 * time.Millisecond}).Slow() || (SyncTimes{Median: time.Millisecond, Worst: 9 * time.Millisecond}).Slow() {
		t.Error("Slow is wrong")
	}
}

func TestProbeOfAHungDiskEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, start := make(chan struct{}), time.Now()
		_, err := probeWithin(time.Second, t.TempDir(), func(*os.File) error {
			<-hang
			return nil
		})
		if !errors.Is(err, ErrStalled) || time.Since(start) != time.Second {
			t.Errorf("probe of a hung disk: %v after %v", err, time.Since(start))
		}
		close(hang)
		synctest.Wait()
	})
}

func TestProbeTellsAFailingSync(t *testing.T) {
	if _, err := probeWithin(time.Minute, t.TempDir(), func(*os.File) error { return unix.EIO }); !errors.Is(err, unix.EIO) {
		t.Errorf("probe = %v", err)
	}
}

func TestFreeBytes(t *testing.T) {
	if n, err := FreeBytes(t.TempDir()); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := FreeBytes("/nonexistent"); err == nil {
		t.Error("a missing directory has free space")
	}
}

func TestDeadlineCanBeChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick := &sickStore{Store: Memory(), hang: make(chan struct{})}
		g := Guard(sick, time.Hour, func(error) {})
		g.SetDeadline(time.Second)
		start := time.Now()
		if err := g.StoreLogs(entries()); !errors.Is(err, ErrStalled) || time.Since(start) != time.Second || g.Deadline() != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		close(sick.hang)
	})
}

func TestChecksumOfEntries(t *testing.T) {
	plain := Memory()
	c := checked{plain}
	in := raft.Log{Index: 1, Term: 2, Data: []byte("register w1"), Extensions: []byte{1}}
	if err := c.StoreLog(&in); err != nil || len(in.Extensions) != 1 {
		t.Fatalf("StoreLog = %v, extensions %v", err, in.Extensions)
	}
	var out raft.Log
	if err := c.GetLog(1, &out); err != nil || !bytes.Equal(out.Data, in.Data) || !bytes.Equal(out.Extensions, in.Extensions) {
		t.Fatalf("%+v, %v", out, err)
	}
	for name, spoil := range map[string]func(*raft.Log){
		"data":       func(l *raft.Log) { l.Data = []byte("register w2") },
		"term":       func(l *raft.Log) { l.Term++ },
		"type":       func(l *raft.Log) { l.Type = raft.LogNoop },
		"extensions": func(l *raft.Log) { l.Extensions = append([]byte{9}, l.Extensions[1:]...) },
		"checksum":   func(l *raft.Log) { l.Extensions = nil },
	} {
		var sealed raft.Log
		if err := plain.GetLog(1, &sealed); err != nil {
			t.Fatal(err)
		}
		spoil(&sealed)
		rotten := Memory()
		if err := rotten.StoreLog(&sealed); err != nil {
			t.Fatal(err)
		}
		if err := (checked{rotten}).GetLog(1, &out); !errors.Is(err, ErrChecksum) {
			t.Errorf("%s spoiled: %v", name, err)
		}
	}
	if err := c.GetLog(9, &out); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("a missing entry: %v", err)
	}
}
