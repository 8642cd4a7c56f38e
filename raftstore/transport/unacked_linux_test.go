package transport

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A peer's machine may vanish without a word; both ends have to notice.
func TestDeadMachinesAreNoticed(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	l := b.Listener(ProtoPeer)
	near := dial(t, a, b, ProtoPeer)
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ours, _ := far.(*Conn)
	for way, conn := range map[string]*Conn{"dialled": near, "accepted": ours} {
		tcp, ok := conn.raw.(*net.TCPConn)
		if !ok {
			t.Fatalf("%s: %T", way, conn.raw)
		}
		raw, err := tcp.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		for name, o := range map[string]struct{ level, opt, want int }{
			"no delay":   {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			"unacked ms": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000},
			"keep-alive": {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			"idle s":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 5},
		} {
			var got int
			if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), o.level, o.opt) }); cerr != nil || err != nil || got != o.want {
				t.Errorf("%s: %s is %d, want %d (%v, %v)", way, name, got, o.want, cerr, err)
			}
		}
	}
}
