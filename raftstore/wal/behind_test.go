package wal

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

func always([]*raft.Log) bool { return true }

func entry(index uint64) []*raft.Log {
	return []*raft.Log{{Index: index, Term: 1, Data: []byte{byte(index)}}}
}

func lastOf(t *testing.T, s raft.LogStore) uint64 {
	t.Helper()
	last, err := s.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// Entries that wait for the disk can be read, and whatever would vouch for them
// waits too.
func TestBehindTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick := &sickStore{Store: Memory(), hang: make(chan struct{})}
		g := Guard(sick, time.Minute, func(err error) { t.Error(err) })
		g.Behind(always)
		for i := range uint64(3) {
			if err := g.StoreLogs(entry(i + 1)); err != nil {
				t.Fatal(err)
			}
		}
		var l raft.Log
		if err := g.GetLog(2, &l); err != nil || l.Index != 2 || l.Data[0] != 2 || lastOf(t, g) != 3 || lastOf(t, sick.Store) != 0 {
			t.Fatalf("entry %+v, %v, last %d, on disk %d", l, err, lastOf(t, g), lastOf(t, sick.Store))
		}
		var mu sync.Mutex
		var did []string
		note := func(what string, err error) {
			if err != nil || lastOf(t, sick.Store) != 3 {
				t.Errorf("%s: %v, %d on disk", what, err, lastOf(t, sick.Store))
			}
			mu.Lock()
			defer mu.Unlock()
			did = append(did, what)
		}
		go func() { note("await", g.Await(3)) }()
		go func() { note("term", g.SetUint64([]byte("CurrentTerm"), 2)) }()
		synctest.Wait()
		if len(did) > 0 || g.Await(0) != nil {
			t.Errorf("%v before the disk", did)
		}
		close(sick.hang)
		synctest.Wait()
		if slices.Sort(did); !slices.Equal(did, []string{"await", "term"}) {
			t.Errorf("done: %v", did)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestHungDiskBehindTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick := &sickStore{Store: Memory(), hang: make(chan struct{})}
		var trips atomic.Int64
		g := Guard(sick, time.Second, func(error) { trips.Add(1) })
		g.Behind(always)
		start := time.Now()
		if err := g.StoreLogs(entry(1)); err != nil {
			t.Fatal(err)
		}
		if err := g.Await(1); !errors.Is(err, ErrStalled) || time.Since(start) != time.Second || trips.Load() != 1 {
			t.Errorf("%v after %v, %d trips", err, time.Since(start), trips.Load())
		}
		if err := g.StoreLogs(entry(2)); !errors.Is(err, ErrStalled) {
			t.Errorf("a write after the fault: %v", err)
		}
		close(sick.hang)
		synctest.Wait()
		if g.Await(1) == nil || lastOf(t, sick.Store) != 1 {
			t.Error("a write that was given up counts as made, or was not waited for")
		}
	})
}

func TestFailedDiskBehindTheLog(t *testing.T) {
	sick := &sickStore{Store: Memory(), err: errors.New("input/output error")}
	g := Guard(sick, time.Minute, func(error) {})
	g.Behind(always)
	if err := g.StoreLogs(entry(1)); err != nil {
		t.Fatal(err)
	}
	if err := g.Await(1); !errors.Is(err, ErrFailed) || !errors.Is(err, sick.err) {
		t.Errorf("Await = %v", err)
	}
}

// What was taken is written before the store is closed.
func TestCloseWritesWhatWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick := &sickStore{Store: Memory(), hang: make(chan struct{})}
		g := Guard(sick, time.Minute, func(err error) { t.Error(err) })
		g.Behind(always)
		for i := range uint64(2) {
			if err := g.StoreLogs(entry(i + 1)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the first is being written when the second comes
		}
		time.AfterFunc(time.Second, func() { close(sick.hang) })
		if err := g.Close(); err != nil || lastOf(t, sick.Store) != 2 || !sick.closed {
			t.Errorf("Close = %v, %d on disk", err, lastOf(t, sick.Store))
		}
	})
}

func TestRecentEntries(t *testing.T) {
	g := Guard(Memory(), time.Minute, func(err error) { t.Error(err) })
	for i := range uint64(2 * maxRecent) {
		if err := g.StoreLogs(entry(i + 1)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(g.recent.logs); n != maxRecent {
		t.Errorf("%d entries in memory", n)
	}
	if err := g.DeleteRange(2*maxRecent-9, 2*maxRecent); err != nil {
		t.Fatal(err)
	}
	var l raft.Log
	if err := g.GetLog(2*maxRecent, &l); !errors.Is(err, raft.ErrLogNotFound) || lastOf(t, g) != 2*maxRecent-10 {
		t.Errorf("deleted: %v, last %d", err, lastOf(t, g))
	}
	other := &raft.Log{Index: 2*maxRecent - 9, Term: 2}
	if err := g.StoreLog(other); err != nil {
		t.Fatal(err)
	}
	if err := g.GetLog(other.Index, &l); err != nil || l.Term != 2 {
		t.Errorf("%+v, %v", l, err)
	}
}
