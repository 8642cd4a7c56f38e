package prefixlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Submit hands an entry to the log, here or at the leader, and returns before it
// is committed. Entries take effect in the order of the calls, unless they fail.
// The entry is the callee's from then on.
type Submit func(ctx context.Context, entry []byte) (Wait, error)

// Wait waits for what became of an entry's frames. It ends with its context.
type Wait func(ctx context.Context) ([]prefix.Outcome, error)

// ErrClosed means that the batcher was closed. The frame was not proposed if it
// comes without another error.
var ErrClosed = errors.New("prefix log: batcher is closed")

// Config says how a batcher works. Submit is required, zeros mean the defaults.
type Config struct {
	Submit Submit
	// MaxBytes is when an entry is full, 32 KiB. A frame that is larger goes alone.
	MaxBytes int
	// MaxWait is the time from one entry to the next that is not full, 10 ms, and so
	// the longest that a frame waits for others, while as many entries as InFlight, 4,
	// are not under way already. A frame that comes after a pause goes at once.
	MaxWait  time.Duration
	InFlight int
	// Queue is how many frames wait before others wait to be let in, 8,192.
	Queue int
	// Timeout is the longest that an entry may take, 5 s.
	Timeout time.Duration
}

func (c Config) withDefaults() Config {
	c.MaxBytes = min(cmp.Or(max(c.MaxBytes, 0), 32<<10), MaxEntry/2)
	c.MaxWait = cmp.Or(max(c.MaxWait, 0), 10*time.Millisecond)
	c.InFlight = cmp.Or(max(c.InFlight, 0), 4)
	c.Queue = cmp.Or(max(c.Queue, 0), 8192)
	c.Timeout = cmp.Or(max(c.Timeout, 0), 5*time.Second)
	return c
}

// Batcher gathers frames into entries. It is safe for concurrent use.
type Batcher struct {
	cfg   Config
	slots chan struct{} // one for each frame that is here, waited for or not
	kick  chan struct{} // something has changed that the sender waits for

	mu       sync.Mutex
	closed   bool
	open     *batch   // takes frames
	full     []*batch // wait to be sent, oldest first
	inFlight int
	sent     time.Time // when the last one was

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// batch is an entry and those who wait for it.
type batch struct {
	entry  []byte
	frames int

	done     chan struct{}
	outcomes []prefix.Outcome // by frame, once done is closed
	err      error
}

// NewBatcher starts a batcher. The caller closes it.
func NewBatcher(cfg Config) *Batcher {
	b := &Batcher{cfg: cfg.withDefaults(), kick: make(chan struct{}, 1)}
	b.slots = make(chan struct{}, b.cfg.Queue)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.tasks.Go(b.send)
	return b
}

// Do proposes a frame and returns what became of it. While the queue is full it
// waits to be let in. Errors wrap prefix.ErrMalformed or ErrClosed, or are ctx's
// or Submit's; after the last two the frame may still take effect, and proposing
// it again does no harm.
func (b *Batcher) Do(ctx context.Context, f *prefix.Frame) (prefix.Outcome, error) {
	if err := f.Validate(); err != nil {
		return 0, err
	}
	encoded, err := control.AppendFrame(nil, f)
	if err != nil {
		return 0, err
	}
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, fmt.Errorf("prefix log: the queue is full: %w", ctx.Err())
	case <-b.ctx.Done():
		return 0, ErrClosed
	}
	to, at, err := b.add(encoded)
	if err != nil {
		<-b.slots
		return 0, err
	}
	select {
	case <-to.done:
		return to.outcome(at)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (t *batch) outcome(at int) (prefix.Outcome, error) {
	switch {
	case t.err != nil:
		return 0, t.err
	case at >= len(t.outcomes):
		return 0, fmt.Errorf("%w: %d outcomes for %d frames", ErrMalformed, len(t.outcomes), t.frames)
	}
	return t.outcomes[at], nil
}

// add puts an encoded frame into the open batch and returns its place there.
func (b *Batcher) add(frame []byte) (to *batch, at int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, 0, ErrClosed
	}
	if b.open != nil && len(b.open.entry)+frameBytes(len(frame)) > b.cfg.MaxBytes {
		b.seal()
	}
	if b.open == nil {
		b.open = &batch{entry: newEntry(b.cfg.MaxBytes), done: make(chan struct{})}
		b.wake()
	}
	to = b.open
	to.entry = appendFrame(to.entry, frame)
	to.frames++
	if len(to.entry) >= b.cfg.MaxBytes {
		b.seal()
	}
	return to, to.frames - 1, nil
}

// seal lets the open batch take no more.
func (b *Batcher) seal() {
	b.full = append(b.full, b.open)
	b.open = nil
	b.wake()
}

func (b *Batcher) wake() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// send submits batches in their order until the batcher is closed.
func (b *Batcher) send() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next, pause := b.take(time.Now())
		if next != nil {
			b.submit(next)
			continue
		}
		timer.Reset(pause)
		select {
		case <-b.kick:
		case <-timer.C:
		case <-b.ctx.Done():
			return
		}
	}
}

// take is the batch to submit now, or how long to wait for one.
func (b *Batcher) take(now time.Time) (*batch, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const long = time.Hour // until the next kick
	if b.inFlight >= b.cfg.InFlight {
		return nil, long
	}
	var next *batch
	switch {
	case len(b.full) > 0:
		next = b.full[0]
		b.full[0] = nil
		b.full = b.full[1:]
	case b.open == nil:
		return nil, long
	default:
		if left := b.cfg.MaxWait - now.Sub(b.sent); left > 0 {
			return nil, left
		}
		next, b.open = b.open, nil
	}
	b.inFlight++
	b.sent = now
	return next, 0
}

// submit hands a batch over and has its outcomes waited for.
func (b *Batcher) submit(t *batch) {
	ctx, cancel := context.WithTimeout(b.ctx, b.cfg.Timeout)
	wait, err := b.cfg.Submit(ctx, t.entry)
	if err != nil {
		cancel()
		b.finish(t, nil, err)
		return
	}
	b.tasks.Go(func() {
		defer cancel()
		outcomes, err := wait(ctx)
		b.finish(t, outcomes, err)
	})
}

func (b *Batcher) finish(t *batch, outcomes []prefix.Outcome, err error) {
	if err != nil {
		err = fmt.Errorf("prefix log: %w", err)
	}
	t.outcomes, t.err = outcomes, err
	b.release(t)
	b.mu.Lock()
	b.inFlight--
	b.mu.Unlock()
	b.wake()
}

// release lets go those who wait for a batch, and lets as many others in.
func (b *Batcher) release(t *batch) {
	close(t.done)
	for range t.frames {
		<-b.slots
	}
}

// Close ends the batcher: frames that wait get ErrClosed, those under way their
// context's error. It returns when nothing runs any more, which is as soon as
// Submit and Wait heed their context. It may be called again.
func (b *Batcher) Close() {
	b.cancel()
	b.tasks.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.open != nil {
		b.full = append(b.full, b.open)
		b.open = nil
	}
	for _, t := range b.full {
		t.err = ErrClosed
		b.release(t)
	}
	b.full = nil
}
