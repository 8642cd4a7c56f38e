package e2e

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// proxy stands before a worker's transfer endpoint, so that its connections can
// be cut while both processes live.
type proxy struct {
	listener net.Listener
	target   string
	tasks    sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: ln, target: target, conns: map[net.Conn]struct{}{}}
	p.tasks.Go(p.accept)
	t.Cleanup(func() {
		ln.Close() //nolint:errcheck // the test is over
		p.cut(false)
		p.tasks.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.relay(near) })
	}
}

func (p *proxy) relay(near net.Conn) {
	defer p.drop(near)
	p.keep(near)
	far, err := net.Dial("tcp", p.target) //nolint:noctx // loopback answers at once
	if err != nil {
		return
	}
	defer p.drop(far)
	p.keep(far)
	var back sync.WaitGroup
	back.Go(func() {
		io.Copy(near, far) //nolint:errcheck // cutting is the point
		near.Close()       //nolint:errcheck // as above
	})
	io.Copy(far, near) //nolint:errcheck // as above
	far.Close()        //nolint:errcheck // as above
	back.Wait()
}

func (p *proxy) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
}

func (p *proxy) drop(c net.Conn) {
	c.Close() //nolint:errcheck // it may be closed already
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// cut ends every connection: by a reset, or as if the peer had closed it.
func (p *proxy) cut(reset bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok && reset {
			tcp.SetLinger(0) //nolint:errcheck // it may be closed already
		}
		c.Close() //nolint:errcheck // as above
	}
	return len(p.conns)
}

// freeAddr is an address that nobody listens on, and that no client gets meanwhile.
func freeAddr(t *testing.T) string {
	t.Helper()
	ports, err := planners.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}
