package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/gpu/transfer"
)

const (
	// bufferBytes holds the control messages of a busy moment; what it takes of a
	// payload must be copied, so it is small.
	bufferBytes = 4 << 10
	spareBytes  = 64 << 10
	// maxPayload is the longest payload a peer may announce: one page, at most.
	maxPayload = 16 << 20
)

// stream is one connection. One goroutine reads it, one writes it.
type stream struct {
	conn  net.Conn
	raw   syscall.RawConn // nil: pages cannot be read into place without waiting
	index int

	buf  []byte // read and not consumed: buf[at:end]
	at   int
	end  int
	body []byte // of the message at hand
	// hurried says that a read deadline is set.
	hurried bool
	spare   []byte

	parts net.Buffers // of the frame being written
}

// open prepares a connection, dialed or accepted.
func (e *Endpoint) open(conn net.Conn) (*stream, error) {
	st := &stream{conn: conn, buf: make([]byte, bufferBytes), spare: make([]byte, spareBytes)}
	secure, ok := conn.(*tls.Conn)
	if ok {
		conn = secure.NetConn()
	}
	tc, ok := conn.(*net.TCPConn)
	if !ok {
		return st, nil
	}
	if err := tune(tc, e.opt.Stall); err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	if secure != nil {
		return st, nil // what arrives must be decrypted first
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	st.raw = raw
	return st, nil
}

// tune makes a dead peer known: by keep-alive when the connection is idle, by
// the user timeout when it is not. Go has set TCP_NODELAY.
func tune(tc *net.TCPConn, stall time.Duration) error {
	second := func(d time.Duration) time.Duration { return max(d.Round(time.Second), time.Second) }
	err := tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: second(stall), Interval: second(stall / 2), Count: 3})
	if err != nil {
		return err
	}
	return userTimeout(tc, stall)
}

// dialConn connects to addr, in plain or with TLS.
func (e *Endpoint) dialConn(addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(e.ctx, e.opt.Stall)
	defer cancel()
	if e.opt.TLS != nil {
		return (&tls.Dialer{Config: e.opt.TLS}).DialContext(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// write writes b whole, within stall.
func (st *stream) write(stall time.Duration, b []byte) error {
	if err := st.conn.SetWriteDeadline(deadline(stall)); err != nil {
		return err
	}
	_, err := st.conn.Write(b)
	return err
}

// move writes one frame from where its pages lie. head is memory for its header.
func (st *stream) move(stall time.Duration, head []byte, m *transfer.Move) ([]byte, error) {
	if !m.Begin() {
		return head, nil
	}
	m.Frame.CRC = 0
	for _, p := range m.Pages {
		m.Frame.CRC = crc32.Update(m.Frame.CRC, transfer.Castagnoli, p)
	}
	head = transfer.AppendFrame(head, &m.Frame)
	st.parts = append(append(st.parts[:0], head), m.Pages...)
	parts := st.parts // WriteTo eats its receiver
	err := st.conn.SetWriteDeadline(deadline(stall))
	if err == nil {
		_, err = parts.WriteTo(st.conn)
	}
	clear(st.parts)
	if err != nil {
		m.Failed(err)
		return head, err
	}
	m.Sent()
	return head, nil
}

// await waits, for as long as it takes, until a message begins.
func (st *stream) await() error {
	if st.at < st.end {
		return nil
	}
	if st.hurried {
		st.hurried = false
		if err := st.conn.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
	}
	return st.fill()
}

// hurry gives what is being read stall from now to come whole.
func (st *stream) hurry(stall time.Duration) error {
	st.hurried = true
	return st.conn.SetReadDeadline(deadline(stall))
}

// message reads the next message but for a frame's payload, within stall. The
// body is valid until the next call.
func (st *stream) message(stall time.Duration) (transfer.Kind, []byte, error) {
	if st.end-st.at < transfer.HeadBytes {
		if err := st.hurry(stall); err != nil {
			return 0, nil, err
		}
	}
	var raw [transfer.HeadBytes]byte
	if err := st.full(raw[:]); err != nil {
		return 0, nil, err
	}
	head, err := transfer.ParseHead(raw[:])
	if err != nil {
		return 0, nil, transfer.Failure(transfer.ReasonChecksum, err)
	}
	if cap(st.body) < head.Body {
		st.body = make([]byte, head.Body)
	}
	st.body = st.body[:head.Body]
	if st.end-st.at < head.Body {
		if err := st.hurry(stall); err != nil {
			return 0, nil, err
		}
	}
	if err := st.full(st.body); err != nil {
		return 0, nil, err
	}
	if err := head.Check(st.body); err != nil {
		return 0, nil, transfer.Failure(transfer.ReasonChecksum, err)
	}
	return head.Kind, st.body, nil
}

// full reads len(b) bytes.
func (st *stream) full(b []byte) error {
	for len(b) > 0 {
		if st.at == st.end {
			if err := st.fill(); err != nil {
				return err
			}
		}
		n := copy(b, st.buf[st.at:st.end])
		st.at += n
		b = b[n:]
	}
	return nil
}

// fill reads what is there into the empty buffer.
func (st *stream) fill() error {
	n, err := st.conn.Read(st.buf)
	if n == 0 {
		return ended(err)
	}
	st.at, st.end = 0, n
	return nil
}

// payload reads a frame's payload through its landing.
func (st *stream) payload(stall time.Duration, l *transfer.Landing) error {
	for l.Left() > 0 && st.at < st.end {
		l.Fill(st.takeBuffered)
	}
	if l.Left() > 0 {
		if err := st.hurry(stall); err != nil {
			return err
		}
	}
	for l.Left() > 0 {
		var err error
		if st.raw != nil {
			err = st.scatter(l)
		} else {
			err = st.copyIn(l)
		}
		if err != nil {
			return err
		}
	}
	l.Close()
	return nil
}

func (st *stream) takeBuffered(room []byte) int {
	n := copy(room, st.buf[st.at:st.end])
	st.at += n
	return n
}

// copyIn reads what is there beside the pages, and copies it in.
func (st *stream) copyIn(l *transfer.Landing) error {
	n, err := st.conn.Read(st.spare[:min(len(st.spare), l.Left())])
	for got := st.spare[:n]; len(got) > 0; {
		l.Fill(func(room []byte) int {
			k := copy(room, got)
			got = got[k:]
			return k
		})
	}
	if n == 0 {
		return ended(err)
	}
	return nil
}

func ended(err error) error {
	if err == nil {
		return io.ErrNoProgress
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return transfer.Failure(transfer.ReasonLease, err)
	}
	return err
}

// deadline is d from now by the machine's clock, which is the one that sockets
// know; none when d is 0.
func deadline(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}
