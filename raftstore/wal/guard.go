package wal

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

var (
	// ErrStalled means that the disk did not finish a write in time.
	ErrStalled = errors.New("disk stalled")
	// ErrFailed means that the store reported an error.
	ErrFailed = errors.New("disk failed")
	// ErrFull comes with ErrFailed when there was no room: free some, then start
	// the process again.
	ErrFull = errors.New("disk is full; free some space and start again")
)

// Guarded is a Store whose writes end by a deadline. After the first failure
// it refuses every write: a write that was given up may still reach the disk,
// so what Raft believes to be in the log and what is there can differ until
// the store is opened anew.
type Guarded struct {
	inner    Store
	deadline atomic.Int64 // nanoseconds
	onFault  func(error)

	may       atomic.Pointer[func([]*raft.Log) bool] // see Behind
	unwritten atomic.Uint64                          // first entry that is not on disk, or nothing

	mu      sync.Mutex
	fault   error
	recent  recent
	writing bool           // writeBehind runs
	written *sync.Cond     // of mu: unwritten, writing or fault has changed
	writes  sync.WaitGroup // writes still inside inner, given up or not
}

// Guard wraps inner. onFault is called once, before a call that fails returns; it
// must not block and must not call the store.
func Guard(inner Store, deadline time.Duration, onFault func(error)) *Guarded {
	g := &Guarded{inner: inner, onFault: onFault}
	g.written = sync.NewCond(&g.mu)
	g.unwritten.Store(nothing)
	g.SetDeadline(deadline)
	return g
}

// SetDeadline changes the deadline of writes that begin later.
func (g *Guarded) SetDeadline(d time.Duration) { g.deadline.Store(int64(d)) }

// Deadline is the deadline of writes.
func (g *Guarded) Deadline() time.Duration { return time.Duration(g.deadline.Load()) }

// StoreLog stores one entry within the deadline.
func (g *Guarded) StoreLog(l *raft.Log) error { return g.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores entries within the deadline, or takes them to be stored, see
// Behind. The entries must not change afterwards, not even after an error.
func (g *Guarded) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	if may := g.may.Load(); may != nil && (*may)(logs) {
		return g.storeBehind(logs)
	}
	if err := g.write("store entries", func() error { return g.inner.StoreLogs(logs) }); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recent.add(logs, false)
	return nil
}

// DeleteRange deletes entries within the deadline.
func (g *Guarded) DeleteRange(minIndex, maxIndex uint64) error {
	err := g.write("delete entries", func() error { return g.inner.DeleteRange(minIndex, maxIndex) })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recent.forget(minIndex, maxIndex)
	return err
}

// Set stores a small value within the deadline.
func (g *Guarded) Set(key, val []byte) error {
	return g.write("store a value", func() error { return g.inner.Set(key, val) })
}

// SetUint64 stores a number within the deadline. It ends the calling goroutine
// when it fails: the Raft library has no answer to a term that cannot be stored
// but to panic, which would take down a gateway that shares the process.
func (g *Guarded) SetUint64(key []byte, val uint64) error {
	if err := g.write("store a value", func() error { return g.inner.SetUint64(key, val) }); err != nil {
		runtime.Goexit()
	}
	return nil
}

// GetLog reads an entry. A missing entry is raft.ErrLogNotFound; any other
// failure is a fault, and ends the calling goroutine as SetUint64 does.
func (g *Guarded) GetLog(index uint64, l *raft.Log) error {
	err := g.Entry(index, l)
	if errors.Is(err, ErrFailed) {
		runtime.Goexit()
	}
	return err // unwrapped where it is ErrLogNotFound: the library compares it by identity
}

// Entry is GetLog for callers that are not the library: a failure is a fault and
// wraps ErrFailed, and the goroutine goes on.
func (g *Guarded) Entry(index uint64, l *raft.Log) error {
	if g.isRecent(index, l) {
		return nil
	}
	err := g.inner.GetLog(index, l)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		return g.fail(fmt.Errorf("%w: read entry %d: %w", ErrFailed, index, err))
	}
	return err
}

func (g *Guarded) isRecent(index uint64, l *raft.Log) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := g.recent.find(index)
	if found != nil {
		*l = *found
	}
	return found != nil
}

// Get reads a small value.
func (g *Guarded) Get(key []byte) ([]byte, error) { return g.inner.Get(key) }

// GetUint64 reads a number.
func (g *Guarded) GetUint64(key []byte) (uint64, error) { return g.inner.GetUint64(key) }

// FirstIndex is the first stored index, 0 when there is none.
func (g *Guarded) FirstIndex() (uint64, error) {
	if first, err := g.inner.FirstIndex(); err != nil || first > 0 {
		return first, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if pending := g.recent.pending(); len(pending) > 0 {
		return pending[0].Index, nil
	}
	return 0, nil
}

// LastIndex is the last stored index, 0 when there is none.
func (g *Guarded) LastIndex() (uint64, error) {
	g.mu.Lock()
	if n := len(g.recent.logs); n > 0 {
		defer g.mu.Unlock()
		return g.recent.logs[n-1].Index, nil
	}
	g.mu.Unlock()
	return g.inner.LastIndex()
}

// IsMonotonic passes on whether the store refuses gaps.
func (g *Guarded) IsMonotonic() bool { return g.inner.IsMonotonic() }

// Fault is why writes are refused, or nil.
func (g *Guarded) Fault() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault
}

// Close refuses further writes and closes the store. A write that hangs is
// waited for no longer than the deadline; the store then stays open until the
// process ends, and the error is ErrStalled.
func (g *Guarded) Close() error {
	g.mu.Lock()
	if g.fault == nil {
		g.fault = errStoreClosed
	}
	g.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		g.writes.Wait()
		done <- g.inner.Close()
	}()
	deadline := g.Deadline()
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%w: the log was not closed within %v", ErrStalled, deadline)
	}
}

// errStoreClosed refuses writes. Those that were taken before are still made.
var errStoreClosed = errors.New("store is closed")

// write makes a write once those that were taken before it are made.
func (g *Guarded) write(what string, f func() error) error {
	if err := g.Await(nothing - 1); err != nil {
		return fmt.Errorf("%s: store is out of use: %w", what, err)
	}
	g.mu.Lock()
	if err := g.fault; err != nil {
		g.mu.Unlock()
		return fmt.Errorf("%s: store is out of use: %w", what, err)
	}
	g.writes.Add(1)
	g.mu.Unlock()

	done := make(chan error, 1)
	go func() {
		defer g.writes.Done()
		done <- f()
	}()
	deadline := g.Deadline()
	switch err := await(done, deadline, time.After); {
	case errors.Is(err, errLate):
		return g.fail(late(what, deadline))
	case err != nil:
		return g.fail(fmt.Errorf("%w: %s: %w", ErrFailed, what, explain(err)))
	}
	return nil
}

func late(what string, deadline time.Duration) error {
	return fmt.Errorf("%w: %s took longer than %v", ErrStalled, what, deadline)
}

// errLate means that the time to wait was over.
var errLate = errors.New("late")

// waits is how many parts a deadline is waited for in.
const waits = 8

// await waits for what comes from done, or errLate when so much time has passed
// for this process. A process that was stopped, with its whole machine perhaps,
// finds all of its timers over when it goes on, and a write that no disk has
// delayed not done yet. So the time is waited for part by part: a stop costs one
// of them at most.
func await(done <-chan error, deadline time.Duration, after func(time.Duration) <-chan time.Time) error {
	for range waits {
		select {
		case err := <-done:
			return err
		case <-after(deadline / waits):
		}
	}
	return errLate
}

func explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

func (g *Guarded) fail(err error) error {
	g.mu.Lock()
	first := g.fault == nil
	if first {
		g.fault = err
	}
	g.mu.Unlock()
	if first {
		g.onFault(err)
	}
	g.written.Broadcast()
	return err
}
