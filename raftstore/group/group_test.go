package group

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/transport"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

func TestMain(m *testing.M) {
	// What hashicorp/raft#696 leaves behind, see the test of it.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*Raft).leadershipTransfer"),
		goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*Raft).leaderLoop.func2"))
}

// counter is an FSM that adds up its entries.
type counter struct {
	mu      sync.Mutex
	sum     uint64
	applied uint64

	unwilling atomic.Bool                   // to restore
	slow      atomic.Pointer[chan struct{}] // to restore
}

var errPoison = errors.New("entry of the future")

func (c *counter) Apply(index uint64, entry []byte) (uint64, error) {
	if string(entry) == "poison" {
		return 0, errPoison
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum += uint64(len(entry))
	c.applied = index
	return c.sum, nil
}

func (c *counter) Snapshot() io.WriterTo {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.NewReader(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, c.sum), c.applied))
}

func (c *counter) Restore(r io.Reader) error {
	if c.unwilling.Load() {
		return errPoison
	}
	if c := c.slow.Load(); c != nil {
		<-*c
	}
	var b [16]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum, c.applied = binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])
	return nil
}

func (c *counter) total() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum
}

func (c *counter) Verify(r io.Reader) error {
	if n, err := io.Copy(io.Discard, r); err != nil || n != 16 {
		return errors.New("not a counter")
	}
	return nil
}

func (c *counter) Digest() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum ^ c.applied<<32
}

func (c *counter) Applied() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applied
}

// sickStore hangs its writes of entries, or fails all its writes, on request.
type sickStore struct {
	wal.Store
	hang atomic.Pointer[chan struct{}]
	hung atomic.Bool // whether a write has met hang
	fail atomic.Bool

	failure atomic.Pointer[os.PathError] // what fail means; nil is errIO
	skew    atomic.Int64                 // nanoseconds that entries are dated wrong
}

func (s *sickStore) err() error {
	if e := s.failure.Load(); e != nil {
		return e
	}
	return errIO
}

var errIO = errors.New("input/output error")

func (s *sickStore) StoreLogs(l []*raft.Log) error {
	if c := s.hang.Load(); c != nil {
		s.hung.Store(true)
		<-*c
	}
	if s.fail.Load() {
		return s.err()
	}
	skewed := make([]*raft.Log, len(l))
	for i := range l {
		entry := *l[i]
		entry.AppendedAt = entry.AppendedAt.Add(time.Duration(s.skew.Load()))
		skewed[i] = &entry
	}
	return s.Store.StoreLogs(skewed)
}

func (s *sickStore) SetUint64(k []byte, v uint64) error {
	if s.fail.Load() {
		return s.err()
	}
	return s.Store.SetUint64(k, v)
}

// node is one member of a test cluster.
type node struct {
	*Group[uint64]
	fsm   *counter
	store *sickStore
	net   *raft.InmemTransport
	reg   *measure.Registry
}

// cluster starts n connected members in memory. edit may change a
// configuration before it is opened.
func cluster(t *testing.T, n int, edit func(i int, c *Config)) []*node {
	t.Helper()
	var conf raft.Configuration
	members := make([]*node, n)
	for i := range members {
		id := strconv.Itoa(i)
		_, net := raft.NewInmemTransport(raft.ServerAddress(id))
		members[i] = &node{fsm: &counter{}, store: &sickStore{Store: wal.Memory()}, net: net, reg: &measure.Registry{}}
		conf.Servers = append(conf.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	for i, m := range members {
		connect(members, i)
		snapshots := raft.NewInmemSnapshotStore()
		rc := raft.DefaultConfig()
		rc.LocalID, rc.Logger = conf.Servers[i].ID, NewHCLog(discard)
		if err := raft.BootstrapCluster(rc, m.store, m.store, snapshots, m.net, conf); err != nil {
			t.Fatal(err)
		}
		cfg := Config{
			Name: "test", NodeID: strconv.Itoa(i), Store: m.store, Snapshots: snapshots, Transport: m.net,
			WriteDeadline: 500 * time.Millisecond, Registry: m.reg,
		}
		if edit != nil {
			edit(i, &cfg)
		}
		var err error
		if m.Group, err = Open(t.Context(), cfg, m.fsm); err != nil {
			t.Fatal(err)
		}
	}
	return members
}

func connect(members []*node, i int) {
	for j, other := range members {
		if i != j {
			members[i].net.Connect(other.net.LocalAddr(), other.net)
			other.net.Connect(members[i].net.LocalAddr(), members[i].net)
		}
	}
}

func isolate(members []*node, i int) {
	members[i].net.DisconnectAll()
	for _, other := range members {
		other.net.Disconnect(members[i].net.LocalAddr())
	}
}

func closeAll(t *testing.T, members []*node) {
	t.Helper()
	for _, m := range members {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		_ = m.Close(ctx) // a test that hurts a member knows how it ends
		cancel()
		if ctx.Err() == context.DeadlineExceeded {
			t.Error("a member did not close")
		}
	}
}

// leader waits for a member of the list to lead.
func leader(t *testing.T, members []*node, within time.Duration) *node {
	t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for _, m := range members {
			if m.Leading() && m.raft.State() == raft.Leader { // not one that is about to notice its loss
				return m
			}
		}
	}
	t.Fatalf("no leader within %v", within)
	return nil
}

func waitFault(t *testing.T, m *node) {
	t.Helper()
	select {
	case <-m.Faulted():
	case <-time.After(time.Minute):
		t.Fatal("no fault within a minute")
	}
}

func apply(t *testing.T, m *node, entry string, timeout time.Duration) (uint64, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return m.Apply(ctx, []byte(entry))
}

func without(members []*node, gone *node) []*node {
	var out []*node
	for _, m := range members {
		if m != gone {
			out = append(out, m)
		}
	}
	return out
}

func TestThreeMembersFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		first := leader(t, members, 10*time.Second)
		if sum, err := apply(t, first, "abc", time.Second); err != nil || sum != 3 {
			t.Fatal(sum, err)
		}
		for i, m := range members {
			if m == first {
				isolate(members, i)
			}
		}
		start := time.Now()
		second := leader(t, without(members, first), 10*time.Second)
		t.Logf("failed over in %v of virtual time", time.Since(start))
		if sum, err := apply(t, second, "de", time.Second); err != nil || sum != 5 {
			t.Fatal(sum, err)
		}
		if _, err := apply(t, first, "x", time.Second); err == nil {
			t.Error("the isolated leader committed")
		}
	})
}

// hashicorp/raft#503: a leader whose disk hangs leads for ever.
func TestHungDiskLosesLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 3, nil)
		defer closeAll(t, members)
		sick := leader(t, members, 10*time.Second)
		hang := make(chan struct{})
		sick.store.hang.Store(&hang)
		defer close(hang)
		if _, err := apply(t, sick, "x", 5*time.Second); !errors.Is(err, ErrAmbiguous) {
			t.Errorf("a write to the hung disk: %v", err)
		}
		next := leader(t, without(members, sick), 10*time.Second)
		if _, err := apply(t, next, "abc", time.Second); err != nil {
			t.Fatal(err)
		}
		if err := sick.Fault(); !errors.Is(err, wal.ErrStalled) {
			t.Errorf("fault %v", err)
		}
		ask := sick.trans.TimeoutNow("x", "x", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
		if !errors.Is(ask, transport.ErrClosed) {
			t.Errorf("the transport of the sick node is open: %v", ask)
		}
		if n := sick.reg.Counter(measure.RaftGuardTrips, "test", "storage").Value(); n != 1 {
			t.Errorf("%v trips counted", n)
		}
		time.Sleep(20 * time.Second) // hashicorp/raft#614: it must not come back
		if sick.Leading() || leader(t, members, time.Second) == sick {
			t.Error("the node with the hung disk leads again")
		}
	})
}

// A single voter has nobody to fail over to: it stops, and the process lives.
func TestFailingDiskStopsASingleVoter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, nil)
		defer closeAll(t, members)
		m := leader(t, members, 10*time.Second)
		m.store.fail.Store(true)
		if _, err := apply(t, m, "x", 5*time.Second); !errors.Is(err, ErrAmbiguous) {
			t.Errorf("Apply on a failing disk: %v", err)
		}
		waitFault(t, m)
		time.Sleep(10 * time.Second) // elections with a failing disk panic without the guard
		if _, err := apply(t, m, "x", time.Second); !errors.Is(err, ErrClosed) || !errors.Is(err, wal.ErrFailed) {
			t.Errorf("Apply after the fault: %v", err)
		}
	})
}

func TestEntryOfTheFutureStopsTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, nil)
		defer closeAll(t, members)
		m := leader(t, members, 10*time.Second)
		if _, err := apply(t, m, "poison", 5*time.Second); !errors.Is(err, ErrAmbiguous) || !errors.Is(err, errPoison) {
			t.Errorf("Apply = %v", err)
		}
		waitFault(t, m)
		if !errors.Is(m.Fault(), ErrCannotApply) || m.Leading() {
			t.Errorf("fault %v, leading %v", m.Fault(), m.Leading())
		}
	})
}

// hashicorp/raft#697: a snapshot installed over a longer log of another history
// is installed again and again.
func TestRestoreLoopIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := divergentPair(t)
		defer closeAll(t, members)
		follower := members[1]
		waitFault(t, follower)
		if !errors.Is(follower.Fault(), ErrRestoreLoop) {
			t.Errorf("fault %v", follower.Fault())
		}
	})
}

// divergentPair is a leader whose log begins after a snapshot at 50, and a
// follower with 200 entries of an older term.
func divergentPair(t *testing.T) []*node {
	t.Helper()
	conf := raft.Configuration{Servers: []raft.Server{{ID: "0", Address: "0"}, {ID: "1", Address: "1"}}}
	members := make([]*node, 2)
	for i := range members {
		_, net := raft.NewInmemTransport(raft.ServerAddress(strconv.Itoa(i)))
		members[i] = &node{fsm: &counter{}, store: &sickStore{Store: wal.Memory()}, net: net, reg: &measure.Registry{}}
	}
	connect(members, 0)
	leads, follows := members[0], members[1]
	must(t, follows.store.SetUint64([]byte("CurrentTerm"), 1), leads.store.SetUint64([]byte("CurrentTerm"), 2))
	must(t, follows.store.StoreLogs([]*raft.Log{{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}}))
	for i := uint64(2); i <= 200; i++ {
		must(t, follows.store.StoreLogs([]*raft.Log{{Index: i, Term: 1, Type: raft.LogCommand, Data: []byte("x")}}))
	}
	snapshots := raft.NewInmemSnapshotStore()
	sink, err := snapshots.Create(raft.SnapshotVersionMax, 50, 2, conf, 1, leads.net)
	must(t, err)
	_, err = (&counter{sum: 7, applied: 50}).Snapshot().WriteTo(sink)
	must(t, err, sink.Close())
	for i := uint64(51); i <= 60; i++ {
		must(t, leads.store.StoreLogs([]*raft.Log{{Index: i, Term: 2, Type: raft.LogCommand, Data: []byte("x")}}))
	}
	for i, m := range members {
		cfg := Config{
			Name: "test", NodeID: strconv.Itoa(i), Store: m.store, Snapshots: raft.NewInmemSnapshotStore(),
			Transport: m.net, Registry: m.reg,
		}
		if m == leads {
			cfg.Snapshots = snapshots
		}
		m.Group, err = Open(t.Context(), cfg, m.fsm)
		must(t, err)
	}
	return members
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestRestoresThatBringSomethingAreNoLoop(t *testing.T) {
	a := &adapter[uint64]{fsm: &counter{}, samples: &sampler{every: 1}, events: silence(), fault: func(_ string, err error) { t.Error(err) }}
	for i := range uint64(100) {
		state := (&counter{sum: i, applied: i + 1}).Snapshot()
		var buf bytes.Buffer
		for range maxBarrenRestores - 1 {
			_, err := state.WriteTo(&buf)
			must(t, err)
			must(t, a.Restore(io.NopCloser(&buf)))
			state = (&counter{sum: i, applied: i + 1}).Snapshot()
		}
	}
}

// hashicorp/raft#696: the mark of a leadership transfer can outlive it.
func TestStuckTransferIsNoticed(t *testing.T) {
	w := transferWatch{limit: 5 * time.Second}
	now := time.Now()
	refused := func(after time.Duration) bool {
		now = now.Add(after)
		return errors.Is(w.seen(now), ErrTransferStuck)
	}
	for range 10 { // whoever was stopped in between knows of no series
		if refused(longestSilence + time.Millisecond) {
			t.Fatal("tripped after it was stopped")
		}
	}
	w.clear()
	for range 6 {
		if refused(time.Second) {
			t.Fatal("tripped within the limit")
		}
	}
	if !refused(time.Second) {
		t.Error("a transfer without end is not noticed")
	}
}

func TestRefusalsThatEndAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, nil)
		defer closeAll(t, members)
		m := leader(t, members, 10*time.Second)
		for range 30 { // the group itself proposes something in between
			if err := m.proposeError(raft.ErrLeadershipTransferInProgress); !errors.Is(err, ErrTransferring) {
				t.Errorf("refusal %v", err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		if m.Fault() != nil || m.transfer.suspicious() {
			t.Errorf("fault %v", m.Fault())
		}
	})
}

// The library blocks on its notifications; a slow OnLead must not reach it.
func TestSlowOnLeadDoesNotBlockTheLibrary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		members := cluster(t, 3, func(_ int, c *Config) {
			c.OnLead = func(context.Context) error {
				<-release // deaf to its context
				return nil
			}
		})
		defer closeAll(t, members)
		defer close(release)
		for range 12 { // the library blocks at the second loss of a node
			time.Sleep(10 * time.Second)
			lead := -1
			for i, m := range members {
				if m.Status().State == "Leader" {
					lead = i
				}
				if m.Leading() {
					t.Error("leading before OnLead was done")
				}
			}
			if lead < 0 {
				t.Fatal("no leader: a main loop hangs")
			}
			isolate(members, lead)
			time.Sleep(10 * time.Second)
			if s := members[lead].Status().State; s == "Leader" {
				t.Fatal("the isolated leader did not step down")
			}
			connect(members, lead)
		}
	})
}

func TestOnLeadIsRepeatedUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		members := cluster(t, 1, func(_ int, c *Config) {
			c.OnLead = func(context.Context) error {
				if calls.Add(1) < 3 {
					return errors.New("not yet")
				}
				return nil
			}
		})
		defer closeAll(t, members)
		leader(t, members, 10*time.Second)
		if calls.Load() != 3 {
			t.Errorf("OnLead was called %d times", calls.Load())
		}
	})
}

func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, func(_ int, c *Config) { c.WriteDeadline = time.Hour })
		m := leader(t, members, 10*time.Second)
		hang := make(chan struct{})
		m.store.hang.Store(&hang)
		if _, err := apply(t, m, "x", time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Apply = %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if err := m.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close = %v", err)
		}
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("Close took %v", d)
		}
		close(hang)
		time.Sleep(time.Minute)
	})
}

func TestProposalsInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := cluster(t, 1, func(_ int, c *Config) { c.WriteDeadline = time.Hour })
		defer closeAll(t, members)
		m := leader(t, members, 10*time.Second)
		hang := make(chan struct{})
		m.store.hang.Store(&hang)
		var busy atomic.Int32
		var wg sync.WaitGroup
		for range maxInFlight + 10 {
			wg.Go(func() {
				if _, err := m.Apply(t.Context(), []byte("x")); errors.Is(err, ErrBusy) {
					busy.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := busy.Load(); n != 10 {
			t.Errorf("%d refused, want 10", n)
		}
		m.store.hang.Store(nil)
		close(hang)
		wg.Wait()
		if len(m.slots) != 0 {
			t.Errorf("%d slots were not given back", len(m.slots))
		}
	})
}

// hashicorp/raft#695, on the library's own network: while the main loop waits
// for the disk, a heartbeat of a newer term must not raise the term, and one of
// the same term must still be answered.
func TestHeartbeatDoesNotRaiseTheTermBehindTheMainLoop(t *testing.T) {
	follower, peer := networked(t)
	store, addr := follower.store, follower.trans.LocalAddr()
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("peer"), Addr: []byte("peer")}
	beat := func(term uint64) error {
		req := &raft.AppendEntriesRequest{RPCHeader: header, Term: term}
		return peer.AppendEntries("f", addr, req, &raft.AppendEntriesResponse{})
	}
	must(t, beat(5))

	hang := make(chan struct{})
	store.hang.Store(&hang)
	stored := make(chan error, 1)
	go func() {
		req := &raft.AppendEntriesRequest{
			RPCHeader: header, Term: 5, PrevLogEntry: 1, PrevLogTerm: 1,
			Entries: []*raft.Log{{Index: 2, Term: 5, Type: raft.LogNoop}},
		}
		stored <- peer.AppendEntries("f", addr, req, &raft.AppendEntriesResponse{})
	}()
	for end := time.Now().Add(10 * time.Second); !store.hung.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the main loop did not reach the disk")
		}
	}
	must(t, beat(5))

	newer := make(chan error, 1)
	go func() { newer <- beat(6) }()
	time.Sleep(300 * time.Millisecond)
	if term := follower.Status().Term; term != 5 {
		t.Errorf("a heartbeat raised the term to %d while the main loop was in term 5", term)
	}
	close(hang)
	must(t, <-stored, <-newer)
	if term := follower.Status().Term; term != 6 {
		t.Errorf("term %d after the main loop went on, want 6", term)
	}
}

// networked is a follower on loopback TCP and a peer the test speaks through.
func networked(t *testing.T) (*node, *raft.NetworkTransport) {
	t.Helper()
	listen := func() *raft.NetworkTransport {
		n, err := raft.NewTCPTransportWithLogger("127.0.0.1:0", nil, 3, 10*time.Second, NewHCLog(discard))
		must(t, err)
		return n
	}
	net, peer := listen(), listen()
	t.Cleanup(func() { _ = peer.Close() })
	m := &node{fsm: &counter{}, store: &sickStore{Store: wal.Memory()}, reg: &measure.Registry{}}
	conf := raft.Configuration{Servers: []raft.Server{{ID: "f", Address: net.LocalAddr()}, {ID: "peer", Address: peer.LocalAddr()}}}
	snapshots := raft.NewInmemSnapshotStore()
	rc := raft.DefaultConfig()
	rc.LocalID, rc.Logger = "f", NewHCLog(discard)
	must(t, raft.BootstrapCluster(rc, m.store, m.store, snapshots, net, conf))
	var err error
	m.Group, err = Open(t.Context(), Config{
		Name: "test", NodeID: "f", Store: m.store, Snapshots: snapshots, Transport: net,
		Heartbeat: time.Minute, WriteDeadline: time.Minute, Registry: m.reg,
	}, m.fsm)
	must(t, err)
	t.Cleanup(func() { closeAll(t, []*node{m}) })
	return m, peer
}

func TestHCLog(t *testing.T) {
	var _ transport.Node = (*raft.Raft)(nil)
	var buf bytes.Buffer
	l := NewHCLog(textLogger(&buf)).Named("raft").With("node", 1)
	l.Warn("heartbeat timeout", "last", raftFormat("%d of %d", 1, 2))
	l.Error("failed")
	for _, want := range []string{"level=DEBUG", "heartbeat timeout", `last="1 of 2"`, "component=raft", "node=1", "level=WARN"} {
		if !bytes.Contains(buf.Bytes(), []byte(want)) {
			t.Errorf("%q is not in %s", want, buf.String())
		}
	}
}

var discard = slog.New(slog.DiscardHandler)

func textLogger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func raftFormat(args ...any) any { return hclog.Fmt(args[0].(string), args[1:]...) }
