package faultnet

import (
	"context"
	"errors"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	// chunk bounds what is read at once, queued what is on its way in one
	// direction of a connection: together 1 MiB.
	chunk  = 16 << 10
	queued = 64
	// ticks a second is how often a trickle drips.
	ticks = 20
)

// pipe is one connection through the network.
type pipe struct {
	net    *Net
	link   Link // From dialled
	number uint64
	near   *net.TCPConn
	ctx    context.Context // until it ends
	cancel context.CancelFunc

	mu    sync.Mutex
	far   *net.TCPConn // nil until it reaches the node
	ended bool
}

// piece is bytes on their way, or, without any, the end of the stream.
type piece struct {
	bytes   []byte
	arrived time.Time
	chance  float64 // of jitter
	reset   bool    // the stream ended with an error
}

// carry serves one connection that From made. When it returns, resets find it.
func (n *Net) carry(link Link, c net.Conn) {
	near, _ := c.(*net.TCPConn)
	p := &pipe{net: n, link: link, near: near}
	p.ctx, p.cancel = context.WithCancel(n.ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil || n.faults[link].Cut {
		p.reset()
		return
	}
	n.numbers[link]++
	p.number = n.numbers[link]
	n.pipes[p] = struct{}{}
	n.tasks.Go(p.run)
}

func (p *pipe) run() {
	if far := p.open(); far != nil {
		var both sync.WaitGroup
		both.Go(func() { p.pump(p.link, p.near, far) })
		both.Go(func() { p.pump(Link{p.link.To, p.link.From}, far, p.near) })
		both.Wait()
		p.end(false)
	} else {
		p.reset()
	}
	p.net.mu.Lock()
	delete(p.net.pipes, p)
	p.net.mu.Unlock()
}

// open connects to the real address, once packets could. It is nil when nobody
// is there, or when the connection was reset meanwhile.
func (p *pipe) open() *net.TCPConn {
	n := p.net
	if n.passable(p.ctx, p.link) != nil {
		return nil
	}
	n.mu.Lock()
	addr := n.nodes[p.link.To]
	n.mu.Unlock()
	var d net.Dialer
	c, err := d.DialContext(p.ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	far, _ := c.(*net.TCPConn)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended { // the node may have accepted: it is told of the reset
		abort(far)
		return nil
	}
	p.far = far
	return far
}

// reset ends both halves at once, with an error.
func (p *pipe) reset() { p.end(true) }

func (p *pipe) end(hard bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	p.cancel()
	for _, c := range []*net.TCPConn{p.near, p.far} {
		switch {
		case c == nil:
		case hard:
			abort(c)
		default:
			_ = c.Close()
		}
	}
}

// abort closes a connection so that its other end hears of a reset.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// pump moves one direction, through a bounded queue, so that delay does not
// cost throughput.
func (p *pipe) pump(link Link, from, to *net.TCPConn) {
	queue := make(chan piece, queued)
	var reader sync.WaitGroup
	reader.Go(func() { p.read(link, from, queue) })
	p.write(link, to, queue)
	reader.Wait()
}

func (p *pipe) read(link Link, from *net.TCPConn, queue chan<- piece) {
	defer close(queue)
	h := fnv.New64a()
	_, _ = io.WriteString(h, link.From+"\x00"+link.To)
	rng := rand.New(rand.NewPCG(p.net.seed^h.Sum64(), p.number))
	buf := make([]byte, chunk)
	for {
		k, err := from.Read(buf)
		now := piece{bytes: append([]byte(nil), buf[:k]...), arrived: time.Now(), chance: rng.Float64()}
		if k > 0 && !p.queue(queue, now) {
			return
		}
		if err != nil {
			p.queue(queue, piece{arrived: time.Now(), reset: !errors.Is(err, io.EOF)})
			return
		}
	}
}

func (p *pipe) queue(queue chan<- piece, x piece) bool {
	select {
	case queue <- x:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// write delivers. A receiver that is gone is no reason to end the other
// direction: that it is gone is news that travels there, under its own faults.
func (p *pipe) write(link Link, to *net.TCPConn, queue <-chan piece) {
	deaf := false
	for x := range queue {
		if !p.due(link, x) {
			return
		}
		switch {
		case len(x.bytes) > 0:
			deaf = deaf || !p.drip(link, to, x.bytes)
		case x.reset:
			abort(to)
		default:
			_ = to.CloseWrite()
		}
	}
}

// due waits until a piece may arrive.
func (p *pipe) due(link Link, x piece) bool {
	for {
		f, _, changed := p.net.look(link)
		left := time.Until(x.arrived.Add(f.Delay + time.Duration(x.chance*float64(f.Jitter))))
		if !f.Blackhole && left <= 0 {
			return true
		}
		if f.Blackhole {
			left = time.Hour
		}
		if !p.sleep(left, changed) {
			return false
		}
	}
}

// drip writes at the link's rate. It reports false when nobody takes the bytes.
func (p *pipe) drip(link Link, to *net.TCPConn, b []byte) bool {
	for len(b) > 0 {
		f, _, _ := p.net.look(link)
		part := b
		if f.Rate > 0 {
			part = b[:min(len(b), max(1, f.Rate/ticks))]
		}
		if _, err := to.Write(part); err != nil {
			return false
		}
		b = b[len(part):]
		if !p.pause(link, len(part)) || !p.due(link, piece{}) {
			return false
		}
	}
	return true
}

// pause lasts as long as sent bytes take at the link's rate, whatever that
// comes to be meanwhile.
func (p *pipe) pause(link Link, sent int) bool {
	begin := time.Now()
	for {
		f, _, changed := p.net.look(link)
		if f.Rate <= 0 {
			return true
		}
		left := time.Duration(float64(sent)/float64(f.Rate)*float64(time.Second)) - time.Since(begin)
		if left <= 0 {
			return true
		}
		if !p.sleep(left, changed) {
			return false
		}
	}
}

// sleep waits, or until the faults change. It reports false when the
// connection was reset.
func (p *pipe) sleep(d time.Duration, changed <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-changed:
	case <-p.ctx.Done():
		return false
	}
	return true
}

// loopback opens a port.
func loopback(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", "127.0.0.1:0")
}

// pair is both ends of a new connection. A listener that stays would leave the
// second one in the system's queue for a while, where no reset finds it.
func pair(ctx context.Context) (dialled, accepted net.Conn, err error) {
	l, err := loopback(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var d net.Dialer
	if dialled, err = d.DialContext(ctx, "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	for { // strangers may dial any port
		if accepted, err = l.Accept(); err != nil {
			_ = dialled.Close()
			return nil, nil, err
		}
		if accepted.RemoteAddr().String() == dialled.LocalAddr().String() {
			return dialled, accepted, nil
		}
		_ = accepted.Close()
	}
}
