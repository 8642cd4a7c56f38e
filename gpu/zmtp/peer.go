package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// peer is one connection past its handshake.
type peer struct {
	id       uint64
	conn     net.Conn
	in       reader
	minor    byte
	hello    []byte        // what is written first
	out      chan [][]byte // messages to write
	control  chan []byte   // encoded commands to write
	gone     chan struct{} // closed when the connection has ended
	lastRead atomic.Int64  // when bytes last came, in nanoseconds since the start
	start    time.Time
	ponged   atomic.Bool // it answers pings

	mu     sync.Mutex
	topics []string // what it subscribed to, with repetitions
}

// handshake greets the other side and learns what it is. The connection's
// deadline is ctx's.
func handshake(conn net.Conn, self string, o *Options) (*peer, string, error) {
	if err := conn.SetDeadline(time.Now().Add(o.HandshakeTimeout)); err != nil {
		return nil, "", err
	}
	p := &peer{
		conn: conn, out: make(chan [][]byte, o.Queue), control: make(chan []byte, 16),
		gone: make(chan struct{}), start: time.Now(),
		in: reader{bufio.NewReaderSize(conn, 32<<10), o.MaxMessage, o.MaxFrames},
	}
	if _, err := conn.Write(greeting()); err != nil {
		return nil, "", err
	}
	var err error
	if p.minor, err = readGreeting(p.in.r); err != nil {
		return nil, "", err
	}
	if _, err := conn.Write(appendReady(nil, self)); err != nil {
		return nil, "", err
	}
	first, err := p.in.next()
	if err != nil {
		return nil, "", err
	}
	switch first.command {
	case "READY":
	case "ERROR":
		return nil, "", fmt.Errorf("%w: peer refused: %q", ErrProtocol, first.data)
	default:
		return nil, "", fmt.Errorf("%w: expected READY", ErrProtocol)
	}
	kind, err := parseReady(first.data)
	if err != nil {
		return nil, "", err
	}
	return p, kind, conn.SetDeadline(time.Time{})
}

// compatible reports whether our kind of socket may talk to theirs.
func compatible(self, other string) bool {
	return slices.Contains(map[string][]string{
		"SUB":    {"PUB", "XPUB"},
		"PUB":    {"SUB", "XSUB"},
		"DEALER": {"ROUTER", "DEALER", "REP"},
		"ROUTER": {"DEALER", "ROUTER", "REQ"},
	}[self], other)
}

// read hands each message to deliver, until the connection or ctx ends.
func (p *peer) read(ctx context.Context, deliver func([][]byte) bool) error {
	for ctx.Err() == nil {
		pk, err := p.in.next()
		if err != nil {
			return err
		}
		p.lastRead.Store(int64(time.Since(p.start)))
		switch pk.command {
		case "":
			if !deliver(pk.frames) {
				return nil
			}
		case "PING":
			// Two bytes of time to live, then a context to send back.
			if len(pk.data) >= 2 {
				p.command("PONG", pk.data[2:])
			}
		case "PONG":
			p.ponged.Store(true)
		case "SUBSCRIBE":
			p.subscribe(string(pk.data))
		case "CANCEL":
			p.unsubscribe(string(pk.data))
		}
	}
	return ctx.Err()
}

// command queues a command; one too many is dropped, none is vital.
func (p *peer) command(name string, data []byte) {
	select {
	case p.control <- appendCommand(nil, name, data):
	default:
	}
}

// write sends what is queued and pings a silent peer, until the connection ends.
func (p *peer) write(o *Options) error {
	beat := time.NewTicker(o.Heartbeat)
	defer beat.Stop()
	buf := p.hello
	for {
		if err := p.put(buf, o); err != nil {
			return err
		}
		if cap(buf) > 1<<20 {
			buf = nil // one huge message must not be remembered for good
		}
		buf = buf[:0]
		select {
		case m := <-p.out:
			buf = appendMessage(buf, m)
		case c := <-p.control:
			buf = append(buf, c...)
		case <-beat.C:
			silent := time.Since(p.start) - time.Duration(p.lastRead.Load())
			if p.ponged.Load() && silent > 3*o.Heartbeat {
				return fmt.Errorf("zmtp: peer silent for %v", silent.Round(time.Millisecond))
			}
			if p.minor < 1 || silent < o.Heartbeat {
				continue
			}
			ttl := min(3*o.Heartbeat/(100*time.Millisecond), 1<<16-1) // in tenths of a second
			buf = appendCommand(buf, "PING", binary.BigEndian.AppendUint16(nil, uint16(ttl)))
		case <-p.gone:
			return nil
		}
	}
}

func (p *peer) put(b []byte, o *Options) error {
	if len(b) == 0 {
		return nil
	}
	if err := p.conn.SetWriteDeadline(time.Now().Add(o.WriteTimeout)); err != nil {
		return err
	}
	_, err := p.conn.Write(b)
	return err
}

// maxTopics bounds a peer's subscriptions.
const maxTopics = 1024

func (p *peer) subscribe(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.topics) < maxTopics {
		p.topics = append(p.topics, topic)
	}
}

func (p *peer) unsubscribe(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.topics, topic); i >= 0 {
		p.topics = slices.Delete(p.topics, i, i+1)
	}
}

// wants reports whether a topic the peer subscribed to begins frame.
func (p *peer) wants(frame []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.topics, func(t string) bool {
		return len(t) <= len(frame) && string(frame[:len(t)]) == t
	})
}
