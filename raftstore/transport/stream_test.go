package transport

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// oneConn is a stream layer with one connection.
type oneConn struct {
	conns chan net.Conn
	done  chan struct{}
}

func (o *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.done:
		return nil, net.ErrClosed
	}
}
func (o *oneConn) Close() error   { close(o.done); return nil }
func (o *oneConn) Addr() net.Addr { return &net.TCPAddr{} }
func (o *oneConn) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// bytesConn is a connection on which some bytes come and then the end.
type bytesConn struct {
	net.Conn
	io.Reader
	closed chan struct{}
}

func (b *bytesConn) Read(p []byte) (int, error)  { return b.Reader.Read(p) }
func (b *bytesConn) Write(p []byte) (int, error) { return len(p), nil }
func (b *bytesConn) Close() error                { close(b.closed); return nil }
func (b *bytesConn) RemoteAddr() net.Addr        { return &net.TCPAddr{} }

// feed lets the library decode what a member sent; every request is answered.
func feed(t *testing.T, text []byte) {
	t.Helper()
	o := &oneConn{conns: make(chan net.Conn, 1), done: make(chan struct{})}
	c := &bytesConn{Reader: bytes.NewReader(text), closed: make(chan struct{})}
	o.conns <- c
	lib := newLibrary(o, 0, time.Second)
	defer func() { _ = lib.Close() }()
	for {
		select {
		case rpc := <-lib.Consumer():
			if rpc.Reader != nil {
				_, _ = io.Copy(io.Discard, rpc.Reader)
			}
			rpc.Respond(nil, nil)
		case <-c.closed:
			return
		}
	}
}

// bomb claims four billion entries in a message of a few bytes.
var bomb = append([]byte{0, 0x81, 0xa7}, "Entries\xdd\xff\xff\xff\xff"...)

func TestDecoderDoesNotTrustLengths(t *testing.T) {
	for name, text := range map[string][]byte{
		"entries": bomb,
		"bytes":   append([]byte{0, 0x81, 0xa6}, "Leader\xc6\xff\xff\xff\xff"...),
		"text":    append([]byte{1, 0x81, 0xa6}, "Leader\xdb\xff\xff\xff\xff"...),
		"map":     {2, 0xdf, 0xff, 0xff, 0xff, 0xff},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		feed(t, text)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
			t.Errorf("%s: %d MB allocated for %d bytes", name, got>>20, len(text))
		}
	}
}

func FuzzRaftStream(f *testing.F) {
	f.Add(bomb)
	f.Add([]byte{1, 0x80, 3, 0x80, 9})
	f.Add([]byte{2, 0x81, 0xa4, 'S', 'i', 'z', 'e', 3, 1, 2, 3, 4, 0x80})
	f.Fuzz(func(t *testing.T, text []byte) { feed(t, text) })
}
