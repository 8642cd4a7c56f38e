package zmtp

import (
	"bufio"
	"encoding/binary"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// python is a Python with pyzmq: YARDMASTER_TEST_PYTHON, else python3.
func python(t *testing.T) string {
	t.Helper()
	name := os.Getenv("YARDMASTER_TEST_PYTHON")
	if name == "" {
		name = "python3"
	}
	if out, err := exec.CommandContext(t.Context(), name, "-c", "import zmq").CombinedOutput(); err != nil {
		t.Skipf("no pyzmq in %s (set YARDMASTER_TEST_PYTHON to a Python that has it): %s", name, out)
	}
	return name
}

// libzmq publishes and replays to us.
func TestLibzmqServes(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), python(t), "testdata/interop.py", "serve")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	endpoints := strings.Fields(line)

	sub, dealer := NewSub(quick(), "kv@"), NewDealer(quick())
	defer func() { _ = sub.Close() }()
	defer func() { _ = dealer.Close() }()
	must(t, sub.Connect(endpoints[0]))
	must(t, dealer.Connect(endpoints[1]))
	until(t, "connected", func() bool { return sub.Peers() == 1 })
	ctx := soon(t)
	must(t, dealer.Send(ctx, nil, binary.BigEndian.AppendUint64(nil, 1)))
	for i := range uint64(3) {
		m, err := sub.Recv(ctx)
		must(t, err)
		if len(m.Frames) != 3 || binary.BigEndian.Uint64(m.Frames[1]) != i {
			t.Errorf("live %q", m.Frames)
		}
	}
	for _, want := range []string{"replayed", "replayed", ""} {
		m, err := dealer.Recv(ctx)
		must(t, err)
		if len(m.Frames) != 4 || string(m.Frames[3]) != want {
			t.Errorf("replay %q, want %q", m.Frames, want)
		}
	}
	must(t, dealer.Send(ctx, []byte("done")))
	must(t, cmd.Wait())
}

// libzmq subscribes to us and asks us for a replay.
func TestLibzmqConsumes(t *testing.T) {
	name := python(t)
	pub, router := NewPub(quick()), NewRouter(quick())
	pubAt, routerAt := bound(t, pub), bound(t, router)
	cmd := exec.CommandContext(t.Context(), name, "testdata/interop.py", "consume", pubAt, routerAt)
	cmd.Stderr = os.Stderr
	var out strings.Builder
	cmd.Stdout = &out
	must(t, cmd.Start())

	ctx := soon(t)
	m, err := router.Recv(ctx)
	must(t, err)
	if binary.BigEndian.Uint64(m.Frames[1]) != 1 {
		t.Errorf("request %q", m.Frames)
	}
	time.Sleep(200 * time.Millisecond) // long enough for a few of its heartbeats
	must(t, router.Send(ctx, m.Peer, nil, []byte("kv@x"), binary.BigEndian.AppendUint64(nil, 1), []byte("old")))
	must(t, router.Send(ctx, m.Peer, nil, nil, binary.BigEndian.AppendUint64(nil, 1<<64-1), nil))
	until(t, "subscribed", func() bool { return pub.Subscribers("kv@x") == 1 })
	for i := range uint64(3) {
		pub.Publish([]byte("other"), nil, nil)
		pub.Publish([]byte("kv@x"), binary.BigEndian.AppendUint64(nil, i), []byte("new"))
	}
	must(t, cmd.Wait())
	want := `replay 0000000000000001 old
replay ffffffffffffffff 
live kv@x 0000000000000000 new
live kv@x 0000000000000001 new
live kv@x 0000000000000002 new
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}
