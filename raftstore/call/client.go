package call

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/transport"
)

var (
	errEnded   = errors.New("connection has ended") // before anything was asked
	errIdle    = errors.New("nobody used the connection")
	errNoWord  = errors.New("the peer does not answer")
	errUnasked = errors.New("the peer answered what it was not asked")
)

const (
	// lookEvery is how often a connection is looked after.
	lookEvery = 2 * time.Second
	// grace is how long beyond its time an answer may take before the peer counts as
	// gone: one that serves answers everything.
	grace = 10 * time.Second
	// inlineBytes is how much may be unanswered for a caller to write by itself: so
	// little finds room in the kernel, and the caller is not held up beyond its time.
	inlineBytes = 32 << 10
)

// clientConn is a connection to a peer that is asked.
type clientConn struct {
	conn  *transport.Conn
	out   outbox
	tasks sync.WaitGroup
	slots chan struct{} // one for each call that is not answered

	mu    sync.Mutex
	calls map[uint64]*pending // those whose callers have gone, too
	last  uint64              // number
	size  int                 // of the calls, in bytes
	used  time.Time
	err   error // why it ended

	ended chan struct{} // closed after err was set
}

// pending is a call that is not answered.
type pending struct {
	answer chan answer // of one
	size   int
	due    time.Time
}

type answer struct {
	outcome Outcome
	body    []byte
}

func openConn(conn *transport.Conn) *clientConn {
	c := &clientConn{
		conn: conn, slots: make(chan struct{}, underway), calls: map[uint64]*pending{},
		used: time.Now(), ended: make(chan struct{}),
	}
	c.out = outbox{conn: conn, tasks: &c.tasks, broken: c.end}
	return c
}

// run serves the connection until it ends, and waits for all of it.
func (c *clientConn) run(ctx context.Context) {
	c.tasks.Go(func() {
		err := c.receive()
		c.out.fail(err)
		c.end(err)
	})
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for alive := true; alive; {
		select {
		case <-ctx.Done():
			c.end(ErrClosed)
		case <-c.ended:
			alive = false
		case now := <-look.C:
			c.lookAfter(now)
		}
	}
	_ = c.conn.Close()
	c.tasks.Wait()
}

// end ends the connection. It does not block.
func (c *clientConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.ended)
	}
}

// lookAfter ends a connection whose peer keeps silent, and one that nobody uses.
func (c *clientConn) lookAfter(now time.Time) {
	c.mu.Lock()
	var why error
	if len(c.calls) == 0 && now.Sub(c.used) > idleAfter {
		why = errIdle
	}
	for _, p := range c.calls {
		if now.Sub(p.due) > grace {
			why = errNoWord
		}
	}
	c.mu.Unlock()
	if why != nil {
		c.end(why)
	}
}

// call asks, and waits. An error that is errEnded means that nothing was asked.
func (c *clientConn) call(ctx context.Context, q Request) ([]byte, error) {
	select {
	case c.slots <- struct{}{}:
	default:
		select {
		case c.slots <- struct{}{}:
		case <-c.ended:
			return nil, errEnded
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %d calls are under way: %w", ErrUnreachable, underway, ctx.Err())
		}
	}
	p, err := c.ask(ctx, q)
	if err != nil {
		<-c.slots
		return nil, err
	}
	var over <-chan time.Time
	if d, ok := ctx.Deadline(); !ok || d.After(p.due) {
		timer := time.NewTimer(longest)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case a := <-p.answer:
		return a.result()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrLost, ctx.Err())
	case <-over:
		return nil, fmt.Errorf("%w: %w", ErrLost, errNoWord)
	case <-c.ended:
	}
	select {
	case a := <-p.answer: // came before the end
		return a.result()
	default:
		return nil, fmt.Errorf("%w: %w", ErrLost, c.err)
	}
}

// ask sends a request.
func (c *clientConn) ask(ctx context.Context, q Request) (*pending, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	now, left := time.Now(), longest
	if d, ok := ctx.Deadline(); ok {
		left = min(left, d.Sub(now))
	}
	p := &pending{answer: make(chan answer, 1), size: len(q.Body), due: now.Add(left)}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, errEnded
	}
	c.last++
	number := c.last
	c.calls[number] = p
	c.size += p.size
	c.used = now
	inline := c.size <= inlineBytes
	c.mu.Unlock()
	err := c.out.put(func(b []byte) []byte {
		return appendRequest(b, request{number, q.Kind, left, q.Cluster, q.Body})
	}, inline)
	if err == nil {
		return p, nil
	}
	c.take(number)
	if errors.Is(err, errFull) {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	c.end(err)
	return nil, errEnded
}

// take gives up a call; nil if there is none of that number.
func (c *clientConn) take(number uint64) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.calls[number]
	if p != nil {
		delete(c.calls, number)
		c.size -= p.size
	}
	return p
}

// receive hands answers to those who wait for them.
func (c *clientConn) receive() error {
	in := bufio.NewReaderSize(c.conn, 4096)
	for {
		frame, err := transport.ReadFrame(in, maxFrame)
		if err != nil {
			return err
		}
		number, o, body, err := parseAnswer(frame)
		if err != nil {
			return err
		}
		p := c.take(number)
		if p == nil {
			return fmt.Errorf("%w: number %d", errUnasked, number)
		}
		p.answer <- answer{o, body} // of one
		<-c.slots
	}
}

func (a answer) result() ([]byte, error) {
	switch a.outcome {
	case Done:
		return a.body, nil
	case Busy:
		return nil, fmt.Errorf("%w: %s", ErrBusy, a.body)
	case Refused:
	}
	return nil, fmt.Errorf("%w: %s", ErrRefused, a.body)
}
