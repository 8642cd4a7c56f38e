package prefixlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
)

// log is a log that commits when told to.
type log struct {
	mu      sync.Mutex
	fsm     *FSM
	index   uint64
	sizes   []int // of entries, in frames
	commit  time.Duration
	refused error
}

func newLog(commit time.Duration) *log {
	return &log{fsm: New(prefix.NewState(prefix.Options{Budget: 8 << 20})), commit: commit}
}

func (l *log) submit(_ context.Context, entry []byte) (Wait, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused != nil {
		return nil, l.refused
	}
	l.index++
	out, err := l.fsm.Apply(l.index, entry)
	if err != nil {
		return nil, err
	}
	l.sizes = append(l.sizes, len(out))
	committed := time.After(l.commit)
	return func(ctx context.Context) ([]prefix.Outcome, error) {
		select {
		case <-committed:
			return out, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, nil
}

func worker(i int) fleet.WorkerID { return fleet.WorkerID(fmt.Sprintf("w-%d", i)) }

func TestOneFrameGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(time.Millisecond)
		b := NewBatcher(Config{Submit: l.submit})
		defer b.Close()
		start := time.Now()
		f := attach("w")
		out, err := b.Do(t.Context(), &f)
		if err != nil || out != prefix.Applied || time.Since(start) != l.commit {
			t.Errorf("%v, %v after %v", out, err, time.Since(start))
		}
	})
}

func TestFramesThatComeMeanwhileShareAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(20 * time.Millisecond)
		b := NewBatcher(Config{Submit: l.submit})
		defer b.Close()
		var wg sync.WaitGroup
		do := func(i int) {
			wg.Go(func() {
				f := attach(worker(i))
				start := time.Now()
				if out, err := b.Do(t.Context(), &f); err != nil || out != prefix.Applied {
					t.Errorf("%d: %v, %v", i, out, err)
				}
				if d := time.Since(start); d > 30*time.Millisecond {
					t.Errorf("%d took %v", i, d)
				}
			})
			synctest.Wait()
		}
		do(0)
		for i := range 9 {
			do(1 + i)
			time.Sleep(500 * time.Microsecond)
		}
		wg.Wait()
		if !slices.Equal(l.sizes, []int{1, 9}) {
			t.Errorf("entries of %v frames", l.sizes)
		}
	})
}

func TestEntriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(50 * time.Millisecond)
		var worst, most, now int
		var mu sync.Mutex
		b := NewBatcher(Config{InFlight: 2, Submit: func(ctx context.Context, entry []byte) (Wait, error) {
			mu.Lock()
			worst = max(worst, len(entry))
			now++
			most = max(most, now)
			mu.Unlock()
			w, err := l.submit(ctx, entry)
			return func(ctx context.Context) ([]prefix.Outcome, error) {
				defer func() {
					mu.Lock()
					now--
					mu.Unlock()
				}()
				return w(ctx)
			}, err
		}})
		defer b.Close()
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				f := attach(worker(i))
				if _, err := b.Do(t.Context(), &f); err != nil {
					t.Error(err)
				}
				f = prefix.Frame{Kind: prefix.FrameDelta, Worker: worker(i), Epoch: 1, First: 1, Last: 15, Stores: make([]prefix.Hash, 15)}
				if _, err := b.Do(t.Context(), &f); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if worst > 32<<10 || most != 2 {
			t.Errorf("entries of %d bytes, %d at once", worst, most)
		}
		if frames := l.fsm.State().Stats().Frames; frames != 2000 {
			t.Errorf("%d frames were applied", frames)
		}
	})
}

// While the log stands still, the queue fills and then holds up those who come.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(time.Hour)
		b := NewBatcher(Config{Submit: l.submit, Queue: 10, Timeout: 2 * time.Hour})
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i := range 20 {
			wg.Go(func() {
				f := attach(worker(i))
				if _, err := b.Do(ctx, &f); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Do = %v", err)
				}
			})
		}
		wg.Wait()
		if n := len(b.slots); n != 10 {
			t.Errorf("%d frames are in the queue", n)
		}
		b.Close()
		if n := len(b.slots); n != 0 {
			t.Errorf("%d slots were not given back", n)
		}
		f := attach("w")
		if _, err := b.Do(t.Context(), &f); !errors.Is(err, ErrClosed) {
			t.Errorf("Do after Close = %v", err)
		}
	})
}

func TestARefusalReachesEveryFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(time.Millisecond)
		l.refused = errors.New("not the leader")
		b := NewBatcher(Config{Submit: l.submit})
		defer b.Close()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				f := attach(worker(i))
				if _, err := b.Do(t.Context(), &f); !errors.Is(err, l.refused) {
					t.Errorf("Do = %v", err)
				}
			})
		}
		wg.Wait()
		bad := prefix.Frame{Kind: 99}
		if _, err := b.Do(t.Context(), &bad); !errors.Is(err, prefix.ErrMalformed) {
			t.Errorf("a frame of no kind: %v", err)
		}
	})
}

// Frames of one worker, one after the other without waiting in between, are
// applied in their order.
func TestOrderIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(3 * time.Millisecond)
		b := NewBatcher(Config{Submit: l.submit, MaxBytes: 200})
		defer b.Close()
		f := attach("w")
		if _, err := b.Do(t.Context(), &f); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range uint64(200) {
			wg.Go(func() {
				f := prefix.Frame{Kind: prefix.FrameDelta, Worker: "w", Epoch: 1, First: i + 1, Last: i + 1, Stores: []prefix.Hash{prefix.Hash(i)}}
				if out, err := b.Do(t.Context(), &f); err != nil || out == prefix.Gap || out == prefix.Old {
					t.Errorf("%d: %v, %v", i, out, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
	})
}
