package tcp_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/transfer"
	"github.com/yardmaster/yardmaster/gpu/transfer/fake"
	"github.com/yardmaster/yardmaster/gpu/transfer/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testShape = transfer.Shape{Layers: 4, Blocks: 64, BlockTokens: 16, PageBytes: 24 << 10, Hidden: 8, Hash: 7}

// short has a lease for tests that wait for it to end.
var short = transfer.Config{Lease: time.Second}

// site is one worker's memory and endpoint.
type site struct {
	*tcp.Endpoint
	id       fleet.WorkerID
	epoch    fleet.Epoch      // as others know it
	own      *engine.OwnEpoch // as it knows itself
	memory   *fake.Memory
	registry *measure.Registry
}

func listen(t testing.TB, id fleet.WorkerID, epoch fleet.Epoch, addr string, shape transfer.Shape, opt tcp.Options) *site {
	t.Helper()
	s := &site{id: id, epoch: epoch, own: new(engine.OwnEpoch), memory: fake.NewMemory(shape), registry: &measure.Registry{}}
	opt.Memory, opt.Registry = s.memory, s.registry
	opt.ID, opt.Own = id, s.own
	s.own.Set(epoch)
	if opt.Lease == 0 {
		opt.Lease = 20 * time.Second // a busy machine must not look like a dead peer
	}
	var err error
	if s.Endpoint, err = tcp.Listen(t.Context(), addr, opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		if n := s.Node().Live(); n != 0 {
			t.Errorf("%s: %d transfers left", id, n)
		}
	})
	return s
}

func site0(t testing.TB, id fleet.WorkerID, opt tcp.Options) *site {
	t.Helper()
	return listen(t, id, 1, "127.0.0.1:0", testShape, opt)
}

func (s *site) peer() engine.Peer {
	return engine.Peer{ID: s.id, Epoch: s.epoch, Transfer: s.Addr().String()}
}

// fill writes a pattern into a page.
func fill(page []byte, layer, block int) {
	v := uint64(layer)<<32 | uint64(block) | 1
	for i := 0; i+8 <= len(page); i += 8 {
		v = v*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(page[i:], v)
	}
}

func (s *site) fillAll() {
	shape := s.memory.Shape()
	for layer := range shape.Layers {
		for b := range shape.Blocks {
			fill(s.memory.Run(layer, int32(b), 1), layer, b)
		}
	}
}

// result is what done was called with.
type result struct {
	hidden []float32
	err    error
}

// job is one transfer of whole blocks: the source's from 0, to the
// destination's from first (or 0).
type job struct {
	id     uint64
	prompt []int32
	refs   []transfer.Ref
	table  []int32
	hidden []float32
}

func newJob(id uint64, d *site, blocks int, first ...int32) *job {
	shape := d.memory.Shape()
	j := &job{id: id, prompt: make([]int32, blocks*shape.BlockTokens), hidden: make([]float32, shape.Hidden)}
	for i := range j.prompt {
		j.prompt[i] = int32(id) + int32(i)
	}
	for i := range j.hidden {
		j.hidden[i] = float32(id) + float32(i)
	}
	at := int32(0)
	if len(first) > 0 {
		at = first[0]
	}
	for b := range blocks {
		j.refs = append(j.refs, d.memory.Allot(at+int32(b)))
		j.table = append(j.table, int32(b))
	}
	return j
}

func (j *job) start(d *site, from engine.Peer) (*transfer.Import, chan result) {
	out := make(chan result, 1)
	imp := d.Node().Import(j.id, from, transfer.Destination{Prompt: j.prompt, Blocks: j.refs}, func(hidden []float32, err error) {
		out <- result{hidden, err}
	})
	return imp, out
}

func (j *job) export(ctx context.Context, p *site, to engine.Peer) (*transfer.Export, error) {
	return p.Node().Export(ctx, j.id, to, j.prompt)
}

func (j *job) compute(e *transfer.Export, layers int) chan struct{} {
	released := make(chan struct{})
	for layer := range layers {
		e.Computed(layer, 0, len(j.prompt), j.table)
	}
	e.Finish(j.hidden, func() { close(released) })
	return released
}

func (j *job) check(t testing.TB, d *site, r result) {
	t.Helper()
	if r.err != nil {
		t.Fatalf("transfer %d: %v", j.id, r.err)
	}
	if !slices.Equal(r.hidden, j.hidden) {
		t.Errorf("transfer %d: hidden state %v", j.id, r.hidden)
	}
	shape := d.memory.Shape()
	want := make([]byte, shape.PageBytes)
	for layer := range shape.Layers {
		for i := range j.refs {
			fill(want, layer, int(j.table[i]))
			if !slices.Equal(d.memory.Run(layer, j.refs[i].Block, 1), want) {
				t.Fatalf("transfer %d: page %d of layer %d differs", j.id, i, layer)
			}
		}
	}
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*transfer.Error](err)
	if !ok {
		return "untyped: " + err.Error()
	}
	return e.Reason()
}

func await[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came in 20 s")
	}
	return v
}

func TestMoves(t *testing.T) {
	for streams := 1; streams <= 4; streams++ {
		t.Run(fmt.Sprint(streams, " streams"), func(t *testing.T) {
			p, d := site0(t, "p", tcp.Options{}), site0(t, "d", tcp.Options{MaxStreams: streams})
			p.fillAll()
			for id := range uint64(8) {
				j := newJob(id+1, d, 1+int(id)*9)
				_, out := j.start(d, p.peer())
				e, err := j.export(t.Context(), p, d.peer())
				if err != nil {
					t.Fatal(err)
				}
				released := j.compute(e, testShape.Layers)
				j.check(t, d, await(t, out))
				await(t, released)
				if err := e.Wait(t.Context()); err != nil {
					t.Errorf("Wait: %v", err)
				}
			}
			moved := p.registry.Counter(measure.TransferBytes, "tcp", "sent").Value()
			if got := d.registry.Counter(measure.TransferBytes, "tcp", "received").Value(); got != moved || moved == 0 {
				t.Errorf("%v bytes sent, %v received", moved, got)
			}
		})
	}
}

func TestManyAtOnceLegFirst(t *testing.T) {
	p, d := site0(t, "p", tcp.Options{}), site0(t, "d", tcp.Options{})
	p.fillAll()
	var wg sync.WaitGroup
	for id := range uint64(32) {
		j := newJob(id+1, d, 2, int32(2*id))
		wg.Go(func() {
			e, err := j.export(t.Context(), p, d.peer())
			if err != nil {
				t.Error(err)
				return
			}
			released := j.compute(e, testShape.Layers)
			<-released
		})
		wg.Go(func() {
			_, out := j.start(d, p.peer())
			j.check(t, d, await(t, out))
		})
	}
	wg.Wait()
}

func TestUnreachable(t *testing.T) {
	d := site0(t, "d", tcp.Options{})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	for _, transferAddr := range []string{addr, "", "nonsense", "127.0.0.1:99999"} {
		_, out := newJob(1, d, 1).start(d, engine.Peer{ID: "p", Epoch: 1, Transfer: transferAddr})
		if r := await(t, out); reason(r.err) != "connect" {
			t.Errorf("%q: %v", transferAddr, r.err)
		}
	}
}

func TestSilentListener(t *testing.T) {
	d := site0(t, "d", tcp.Options{Config: short})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, out := newJob(1, d, 1).start(d, engine.Peer{ID: "p", Epoch: 1, Transfer: l.Addr().String()})
	if r := await(t, out); reason(r.err) != "lease" {
		t.Errorf("ended with %v", r.err)
	}
}

func TestRestartedPeerIsRefused(t *testing.T) {
	p, d := site0(t, "p", tcp.Options{}), site0(t, "d", tcp.Options{})
	old := p.peer()
	addr := p.Addr().String()
	_ = p.Close()
	p = listen(t, "p", 2, addr, testShape, tcp.Options{})
	p.fillAll()
	_, out := newJob(1, d, 1).start(d, old)
	if r := await(t, out); reason(r.err) != "epoch" {
		t.Errorf("old epoch: %v", r.err)
	}
	j := newJob(2, d, 1)
	_, out = j.start(d, p.peer())
	e, err := j.export(t.Context(), p, d.peer())
	if err != nil {
		t.Fatal(err)
	}
	j.compute(e, testShape.Layers)
	j.check(t, d, await(t, out))
}

// TestHelloToTheComingEpoch: who has heard of a worker's new epoch before the worker
// itself is not refused.
func TestHelloToTheComingEpoch(t *testing.T) {
	p, d := site0(t, "p", tcp.Options{}), site0(t, "d", tcp.Options{})
	p.fillAll()
	p.epoch = 2
	time.AfterFunc(50*time.Millisecond, func() { p.own.Set(2) })
	j := newJob(1, d, 1)
	_, out := j.start(d, p.peer())
	e, err := j.export(t.Context(), p, d.peer())
	if err != nil {
		t.Fatal(err)
	}
	j.compute(e, testShape.Layers)
	j.check(t, d, await(t, out))
}

func TestOtherLayoutIsRefused(t *testing.T) {
	other := testShape
	other.Hash++
	p, d := listen(t, "p", 1, "127.0.0.1:0", other, tcp.Options{}), site0(t, "d", tcp.Options{})
	_, out := newJob(1, d, 1).start(d, p.peer())
	if r := await(t, out); reason(r.err) != "layout" {
		t.Errorf("ended with %v", r.err)
	}
}

func TestPeerClosesMidTransfer(t *testing.T) {
	for _, who := range []string{"source", "destination"} {
		t.Run(who, func(t *testing.T) {
			p, d := site0(t, "p", tcp.Options{}), site0(t, "d", tcp.Options{})
			p.fillAll()
			j := newJob(1, d, 4)
			_, out := j.start(d, p.peer())
			e, err := j.export(t.Context(), p, d.peer())
			if err != nil {
				t.Fatal(err)
			}
			e.Computed(0, 0, len(j.prompt), j.table)
			here, there := "closed", "peer_abort"
			if who == "source" {
				_ = p.Close()
				here, there = there, here
			} else {
				_ = d.Close()
			}
			if r := await(t, out); reason(r.err) != here {
				t.Errorf("import: %v", r.err)
			}
			if err := e.Wait(t.Context()); reason(err) != there {
				t.Errorf("export: %v", err)
			}
			released := make(chan struct{})
			e.Finish(j.hidden, func() { close(released) })
			await(t, released)
		})
	}
}

func TestIdleSessionsEnd(t *testing.T) {
	p := site0(t, "p", tcp.Options{})
	d := site0(t, "d", tcp.Options{Idle: time.Nanosecond})
	p.fillAll()
	for id := range uint64(3) {
		j := newJob(id+1, d, 1)
		_, out := j.start(d, p.peer())
		e, err := j.export(t.Context(), p, d.peer())
		if err != nil {
			t.Fatal(err)
		}
		j.compute(e, testShape.Layers)
		j.check(t, d, await(t, out))
		for d.Sessions() > 0 || p.Sessions() > 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func TestSessionBound(t *testing.T) {
	d := site0(t, "d", tcp.Options{MaxSessions: 1})
	p, q := site0(t, "p", tcp.Options{}), site0(t, "q", tcp.Options{})
	imp, _ := newJob(1, d, 1).start(d, p.peer())
	_, out := newJob(2, d, 1).start(d, q.peer())
	if r := await(t, out); reason(r.err) != "busy" {
		t.Errorf("second session: %v", r.err)
	}
	imp.Cancel()
	q.fillAll()
	j := newJob(3, d, 1)
	_, out = j.start(d, q.peer()) // the idle one makes room
	e, err := j.export(t.Context(), q, d.peer())
	if err != nil {
		t.Fatal(err)
	}
	j.compute(e, testShape.Layers)
	j.check(t, d, await(t, out))
}

// proxy stands between two workers and misbehaves towards the destination.
type proxy struct {
	net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
}

// mischief changes what the source sends: it gets what was read at offset in the
// connection's stream and returns what to pass on; an error cuts the connection.
type mischief func(offset int64, b []byte) ([]byte, error)

func newProxy(t testing.TB, to string, do mischief) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &proxy{Listener: l}
	x.wg.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := new(net.Dialer).DialContext(context.Background(), "tcp", to)
			if err != nil {
				_ = down.Close()
				continue
			}
			x.mu.Lock()
			x.conns = append(x.conns, up, down)
			x.mu.Unlock()
			x.wg.Go(func() { _, _ = io.Copy(up, down); _ = up.Close() })
			x.wg.Go(func() { defer func() { _ = down.Close(); _ = up.Close() }(); pass(down, up, do) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		x.mu.Lock()
		for _, c := range x.conns {
			_ = c.Close()
		}
		x.mu.Unlock()
		x.wg.Wait()
	})
	return x
}

func pass(to io.Writer, from io.Reader, do mischief) {
	var offset int64
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		out, err := do(offset, b[:n])
		offset += int64(n)
		if _, werr := to.Write(out); werr != nil || err != nil {
			return
		}
	}
}

// TestCutAndCorruptAnywhere cuts, or flips a bit of, what the source sends at
// many places: the import fails or is right, and both sides let go.
func TestCutAndCorruptAnywhere(t *testing.T) {
	t.Parallel()
	const whole = 4 * 3 * 24 << 10
	for _, kind := range []string{"cut", "corrupt"} {
		for _, at := range []int64{0, 3, 20, 60, 100, 140, 150, 200, 300, 5000, 70_000, 73_900, 150_000, whole - 9, whole, whole + 300, whole + 500, whole + 520} {
			t.Run(fmt.Sprint(kind, " at ", at), func(t *testing.T) {
				t.Parallel()
				p, d := site0(t, "p", tcp.Options{}), site0(t, "d", tcp.Options{})
				p.fillAll()
				var hit atomic.Bool
				x := newProxy(t, p.Addr().String(), func(offset int64, b []byte) ([]byte, error) {
					if at < offset || at >= offset+int64(len(b)) {
						return b, nil
					}
					hit.Store(true)
					if kind == "corrupt" {
						b[at-offset] ^= 0x20
						return b, nil
					}
					return b[:at-offset], io.ErrUnexpectedEOF
				})
				via := p.peer()
				via.Transfer = x.Addr().String()
				j := newJob(1, d, 3)
				_, out := j.start(d, via)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				released := make(chan struct{})
				close(released)
				if e, err := j.export(ctx, p, d.peer()); err == nil {
					released = j.compute(e, testShape.Layers)
				}
				r := await(t, out)
				await(t, released)
				switch {
				case r.err == nil:
					j.check(t, d, r)
				case !hit.Load():
					t.Errorf("failed without mischief: %v", r.err)
				case reason(r.err) != "connect" && reason(r.err) != "checksum" && reason(r.err) != "lease":
					t.Errorf("ended with %v", r.err)
				}
				if kind == "corrupt" && hit.Load() && r.err == nil && at < whole {
					t.Error("a flipped bit was not noticed")
				}
			})
		}
	}
}

// TestStalledSource stops the bytes in the middle of a frame: the destination
// gives up by itself, and its fence holds.
func TestStalledSource(t *testing.T) {
	p, d := site0(t, "p", tcp.Options{Config: short}), site0(t, "d", tcp.Options{Config: short})
	p.fillAll()
	stop := make(chan struct{})
	x := newProxy(t, p.Addr().String(), func(offset int64, b []byte) ([]byte, error) {
		if offset > 100_000 {
			<-stop
		}
		return b, nil
	})
	defer close(stop)
	via := p.peer()
	via.Transfer = x.Addr().String()
	j := newJob(1, d, 8)
	_, out := j.start(d, via)
	e, err := j.export(t.Context(), p, d.peer())
	if err != nil {
		t.Fatal(err)
	}
	released := j.compute(e, testShape.Layers)
	if r := await(t, out); reason(r.err) != "lease" {
		t.Errorf("import ended with %v", r.err)
	}
	await(t, released)
	if err := e.Wait(t.Context()); err == nil {
		t.Error("export reports success")
	}
}

// TestStalledDestination stops reading what the source sends until its writes
// stand still: the pages it is writing are held, and let go in bounded time.
func TestStalledDestination(t *testing.T) {
	p, d := site0(t, "p", tcp.Options{Config: short}), site0(t, "d", tcp.Options{MaxStreams: 1, Config: short})
	p.fillAll()
	stop := make(chan struct{})
	x := newProxy(t, p.Addr().String(), func(offset int64, b []byte) ([]byte, error) {
		if offset > 100_000 {
			<-stop
		}
		return b, nil
	})
	defer close(stop)
	via := p.peer()
	via.Transfer = x.Addr().String()
	first := newJob(1, d, 64)
	_, out := first.start(d, via)
	e, err := first.export(t.Context(), p, d.peer())
	if err != nil {
		t.Fatal(err)
	}
	released := first.compute(e, testShape.Layers)
	// The socket takes some megabytes before writes stand still. More transfers
	// fill it; where a machine's buffers take them all, they fail all the same.
	var rest []<-chan result
	for id := range uint64(8) {
		j := newJob(id+2, d, 64)
		_, out := j.start(d, via)
		rest = append(rest, out)
		if e, err := j.export(t.Context(), p, d.peer()); err == nil {
			defer await(t, j.compute(e, testShape.Layers))
		}
	}
	for _, out := range append(rest, out) {
		if r := await(t, out); r.err == nil {
			t.Error("a stalled transfer succeeded")
		}
	}
	await(t, released)
	if err := e.Wait(t.Context()); err == nil {
		t.Error("export reports success")
	}
	if q := p.registry.Gauge(measure.TransferQuarantined).Value(); q != 0 {
		t.Errorf("%v bytes quarantined", q)
	}
}

// TestCancelDoesNotBreakTheSession cancels in the middle of a frame and uses the
// same session for the next transfer.
func TestCancelDoesNotBreakTheSession(t *testing.T) {
	p, d := site0(t, "p", tcp.Options{}), site0(t, "d", tcp.Options{MaxStreams: 1})
	p.fillAll()
	var once sync.Once
	reached, goOn := make(chan struct{}), make(chan struct{})
	var accepted atomic.Int32
	x := newProxy(t, p.Addr().String(), func(offset int64, b []byte) ([]byte, error) {
		if offset == 0 {
			accepted.Add(1)
		}
		if offset > 100_000 {
			once.Do(func() { close(reached); <-goOn })
		}
		return b, nil
	})
	via := p.peer()
	via.Transfer = x.Addr().String()
	j := newJob(1, d, 8)
	imp, out := j.start(d, via)
	e, err := j.export(t.Context(), p, d.peer())
	if err != nil {
		t.Fatal(err)
	}
	released := j.compute(e, testShape.Layers)
	await(t, reached)
	imp.Cancel()
	if r := await(t, out); reason(r.err) != "canceled" {
		t.Errorf("ended with %v", r.err)
	}
	before := make([][]byte, testShape.Layers)
	for layer := range before {
		before[layer] = slices.Clone(d.memory.Run(layer, 0, 8))
	}
	close(goOn)
	await(t, released)
	if err := e.Wait(t.Context()); reason(err) != "peer_abort" {
		t.Errorf("export: %v", err)
	}
	j2 := newJob(2, d, 2, 20)
	_, out = j2.start(d, via)
	if e, err = j2.export(t.Context(), p, d.peer()); err != nil {
		t.Fatal(err)
	}
	j2.compute(e, testShape.Layers)
	j2.check(t, d, await(t, out))
	for layer := range before {
		if !slices.Equal(before[layer], d.memory.Run(layer, 0, 8)) {
			t.Error("pages were written after Cancel returned")
		}
	}
	if n := accepted.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// TestStrangers sends what is no hello to an endpoint.
func TestStrangers(t *testing.T) {
	p := site0(t, "p", tcp.Options{Config: short})
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", string(make([]byte, 4096))} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, text)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q: %d bytes, %v", text, n, err)
		}
		_ = conn.Close()
	}
}

// TestTLS moves pages over connections that are encrypted.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS() // for its certificate
	defer server.Close()
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	opt := tcp.Options{TLS: &tls.Config{
		Certificates: server.TLS.Certificates, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAnyClientCert,
		MinVersion: tls.VersionTLS13,
	}}
	p, d := site0(t, "p", opt), site0(t, "d", opt)
	p.fillAll()
	for id := range uint64(3) {
		j := newJob(id+1, d, 20)
		_, out := j.start(d, p.peer())
		e, err := j.export(t.Context(), p, d.peer())
		if err != nil {
			t.Fatal(err)
		}
		j.compute(e, testShape.Layers)
		j.check(t, d, await(t, out))
	}
	plain := site0(t, "x", tcp.Options{})
	_, out := newJob(9, plain, 1).start(plain, p.peer())
	if r := await(t, out); r.err == nil {
		t.Error("a plain connection was accepted")
	}
}
