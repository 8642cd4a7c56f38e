package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// fleet is Raft transports of one group that know one another.
type fleet struct {
	*cluster
	net   *faultnet.Net
	ports map[string]*Port
	rafts map[string]Inner

	mu    sync.Mutex
	addrs map[string]string
}

func newFleet(t testing.TB, ids ...string) *fleet {
	t.Helper()
	f := &fleet{
		cluster: newCluster(t), net: faultnet.New(1),
		ports: map[string]*Port{}, rafts: map[string]Inner{}, addrs: map[string]string{},
	}
	t.Cleanup(f.net.Close)
	for _, id := range ids {
		f.start(id)
	}
	return f
}

func (f *fleet) start(id string, edit ...func(*PortConfig)) {
	f.t.Helper()
	f.ports[id] = f.port(id, append(edit, func(c *PortConfig) { c.Dialer = f.net.Dialer(id) })...)
	f.move(id, f.ports[id].addr())
	f.net.Add(id, f.ports[id].addr())
	n := f.ports[id].Raft(ProtoCore, f.where, f.ports[id].addr())
	f.t.Cleanup(func() { _ = n.Close() })
	f.rafts[id] = n
}

func (f *fleet) where(id string) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	addr, ok := f.addrs[id]
	return addr, ok
}

func (f *fleet) move(id, addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addrs[id] = addr
}

// stop ends a node; its address may then be taken by another start.
func (f *fleet) stop(id string) {
	f.t.Helper()
	if err := errors.Join(f.rafts[id].Close(), f.ports[id].Close()); err != nil {
		f.t.Error(err)
	}
}

// on makes a node listen at an address again.
func on(t testing.TB, addr string) func(*PortConfig) {
	return func(c *PortConfig) {
		_ = c.Listener.Close()
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Listener = l
	}
}

func (f *fleet) vote(from, to string, term uint64) error {
	var resp raft.RequestVoteResponse
	err := f.rafts[from].RequestVote(raft.ServerID(to), "", &raft.RequestVoteRequest{RPCHeader: header(from), Term: term}, &resp)
	if err == nil && (!resp.Granted || resp.Term != term) {
		return fmt.Errorf("got %+v", resp)
	}
	return err
}

// answer serves requests with their counterparts until the test ends.
func answer(t testing.TB, n Inner, body func(io.Reader)) {
	t.Helper()
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			select {
			case rpc := <-n.Consumer():
				switch req := rpc.Command.(type) {
				case *raft.AppendEntriesRequest:
					rpc.Respond(&raft.AppendEntriesResponse{Term: req.Term, Success: true, LastLog: uint64(len(req.Entries))}, nil)
				case *raft.RequestVoteRequest:
					rpc.Respond(&raft.RequestVoteResponse{Term: req.Term, Granted: true}, nil)
				case *raft.RequestPreVoteRequest:
					rpc.Respond(&raft.RequestPreVoteResponse{Term: req.Term, Granted: true}, nil)
				case *raft.TimeoutNowRequest:
					rpc.Respond(&raft.TimeoutNowResponse{}, nil)
				case *raft.InstallSnapshotRequest:
					body(rpc.Reader)
					rpc.Respond(&raft.InstallSnapshotResponse{Term: req.Term, Success: true}, nil)
				}
			case <-stop:
				return
			}
		}
	}()
}

// header is what node id says of itself.
func header(id string) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: []byte(id), Addr: []byte("somewhere")}
}

func TestRaftCarriesEveryRequest(t *testing.T) {
	m := newFleet(t, "a", "b").rafts
	var got bytes.Buffer
	answer(t, m["b"], func(r io.Reader) { _, _ = io.Copy(&got, r) })

	var entered raft.AppendEntriesResponse
	entries := []*raft.Log{{Index: 1, Data: []byte("x"), AppendedAt: time.Now()}}
	if err := m["a"].AppendEntries("b", "", &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 7, Entries: entries}, &entered); err != nil || entered.Term != 7 || entered.LastLog != 1 {
		t.Errorf("AppendEntries: %+v, %v", entered, err)
	}
	var vote raft.RequestVoteResponse
	if err := m["a"].RequestVote("b", "", &raft.RequestVoteRequest{RPCHeader: header("a"), Term: 8}, &vote); err != nil || !vote.Granted {
		t.Errorf("RequestVote: %+v, %v", vote, err)
	}
	var pre raft.RequestPreVoteResponse
	if err := m["a"].RequestPreVote("b", "", &raft.RequestPreVoteRequest{RPCHeader: header("a"), Term: 8}, &pre); err != nil || !pre.Granted {
		t.Errorf("RequestPreVote: %+v, %v", pre, err)
	}
	if err := m["a"].TimeoutNow("b", "", &raft.TimeoutNowRequest{RPCHeader: header("a")}, &raft.TimeoutNowResponse{}); err != nil {
		t.Errorf("TimeoutNow: %v", err)
	}
	var install raft.InstallSnapshotResponse
	data := bytes.Repeat([]byte("snapshot "), 100_000)
	if err := m["a"].InstallSnapshot("b", "", &raft.InstallSnapshotRequest{RPCHeader: header("a"), Term: 9, Size: int64(len(data))}, &install, bytes.NewReader(data)); err != nil || !install.Success {
		t.Errorf("InstallSnapshot: %+v, %v", install, err)
	}
	if !bytes.Equal(got.Bytes(), data) {
		t.Errorf("%d bytes of the snapshot arrived, want %d", got.Len(), len(data))
	}
	pipe, err := m["a"].AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	for range 3 {
		f, err := pipe.AppendEntries(&raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 10, Entries: entries}, &raft.AppendEntriesResponse{})
		if err != nil {
			t.Fatal(err)
		}
		if done := <-pipe.Consumer(); done.Error() != nil || f.Response().Term != 10 {
			t.Errorf("pipeline: %+v, %v", f.Response(), done.Error())
		}
	}
}

// A member may not speak in another's name, whatever it says.
func TestImpostor(t *testing.T) {
	f := newFleet(t, "a", "b")
	n := f.rafts["a"]
	f.rafts["b"].SetHeartbeatHandler(func(raft.RPC) { t.Error("an impostor's heartbeat came through") })
	answer(t, f.rafts["b"], func(io.Reader) { t.Error("an impostor's snapshot came through") })
	body := bytes.Repeat([]byte{1}, 1<<20)
	for name, call := range map[string]func() error{
		"heartbeat": func() error {
			return n.AppendEntries("b", "", &raft.AppendEntriesRequest{RPCHeader: header("c"), Term: 7}, &raft.AppendEntriesResponse{})
		},
		"entries": func() error {
			return n.AppendEntries("b", "", &raft.AppendEntriesRequest{RPCHeader: header("c"), Term: 7, PrevLogEntry: 1}, &raft.AppendEntriesResponse{})
		},
		"stream": func() error {
			p, err := n.AppendEntriesPipeline("b", "")
			if err != nil {
				return err
			}
			defer p.Close() //nolint:errcheck // nothing is lost
			if _, err := p.AppendEntries(&raft.AppendEntriesRequest{RPCHeader: header("c"), Term: 7, PrevLogEntry: 1, LeaderCommitIndex: 1}, &raft.AppendEntriesResponse{}); err != nil {
				return err
			}
			return (<-p.Consumer()).Error()
		},
		"vote": func() error {
			return n.RequestVote("b", "", &raft.RequestVoteRequest{RPCHeader: header("c")}, &raft.RequestVoteResponse{})
		},
		"no name": func() error {
			return n.RequestPreVote("b", "", &raft.RequestPreVoteRequest{RPCHeader: header("")}, &raft.RequestPreVoteResponse{})
		},
		"snapshot": func() error {
			return n.InstallSnapshot("b", "", &raft.InstallSnapshotRequest{RPCHeader: header("c"), Size: int64(len(body))}, &raft.InstallSnapshotResponse{}, bytes.NewReader(body))
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), ErrImpostor.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := f.ports["b"].cfg.Registry.Counter(measure.PeerRefusals, "impostor").Value(); got != 6 {
		t.Errorf("counted %v", got)
	}
	if err := f.vote("a", "b", 9); err != nil {
		t.Errorf("an honest request afterwards: %v", err)
	}
}

// hashicorp/raft#212: what a group leaves of a snapshot must not be taken for
// requests, and the sender must learn why.
func TestRefusedSnapshotIsDrained(t *testing.T) {
	f := newFleet(t, "a", "b")
	go func() {
		rpc := <-f.rafts["b"].Consumer()
		_, _ = io.CopyN(io.Discard, rpc.Reader, 10)
		rpc.Respond(nil, errors.New("not today"))
	}()
	// A body that is a request, over and over.
	var request bytes.Buffer
	request.WriteByte(1)
	body := bytes.Repeat(append(request.Bytes(), 0x80), 1<<20)
	err := f.rafts["a"].InstallSnapshot("b", "", &raft.InstallSnapshotRequest{RPCHeader: header("a"), Size: int64(len(body))}, &raft.InstallSnapshotResponse{}, bytes.NewReader(body))
	if err == nil || err.Error() != "not today" {
		t.Errorf("the sender learns %v", err)
	}
	if n := f.ports["b"].cfg.Registry.Counter(measure.PeerRefusals, "impostor").Value(); n != 0 {
		t.Errorf("the snapshot's bytes became %v requests", n)
	}
}

// A sender that stops in the middle ends the transfer, for the group's main
// loop reads it.
func TestStalledSnapshotEnds(t *testing.T) {
	f := newFleet(t, "a")
	f.start("b", func(c *PortConfig) { c.stall = 200 * time.Millisecond })
	got := make(chan error, 1)
	go func() {
		rpc := <-f.rafts["b"].Consumer()
		_, err := io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(nil, err)
		got <- err
	}()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		sent <- f.rafts["a"].InstallSnapshot("b", "", &raft.InstallSnapshotRequest{RPCHeader: header("a"), Size: 1 << 30}, &raft.InstallSnapshotResponse{}, r)
	}()
	_, _ = w.Write(make([]byte, 1<<20))
	select {
	case err := <-got:
		if err == nil {
			t.Error("the group takes half a snapshot for a whole")
		}
	case <-time.After(hang):
		t.Error("the group hangs")
	}
	_ = w.CloseWithError(errors.New("over"))
	if err := <-sent; err == nil {
		t.Error("half a snapshot was sent without an error")
	}
}

// A receiver that stops in the middle does not hold its sender for ever.
func TestStalledReceiverEnds(t *testing.T) {
	f := newFleet(t, "b")
	f.start("a", func(c *PortConfig) { c.stall = 200 * time.Millisecond })
	reading := make(chan raft.RPC, 1)
	go func() { reading <- <-f.rafts["b"].Consumer() }() // never read
	body := io.LimitReader(zeros{}, 1<<30)
	err := f.rafts["a"].InstallSnapshot("b", "", &raft.InstallSnapshotRequest{RPCHeader: header("a"), Size: 1 << 30}, &raft.InstallSnapshotResponse{}, body)
	if !isTimeout(err) {
		t.Errorf("ended with %v", err)
	}
	<-reading
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A peer that was restarted costs no request: an election needs every one.
func TestRestartedPeerCostsNoRequest(t *testing.T) {
	f := newFleet(t, "a", "b")
	for term := range uint64(5) {
		answer(t, f.rafts["b"], nil)
		var all sync.WaitGroup // fills the pool
		for range maxPool {
			all.Go(func() {
				if err := f.vote("a", "b", term); err != nil {
					t.Errorf("term %d: %v", term, err)
				}
			})
		}
		all.Wait()
		addr := f.ports["b"].addr()
		f.stop("b")
		f.start("b", on(t, addr))
	}
}

// A node that comes back elsewhere is found by its name.
func TestPeerMoves(t *testing.T) {
	f := newFleet(t, "a", "b")
	answer(t, f.rafts["b"], nil)
	if err := f.vote("a", "b", 1); err != nil {
		t.Fatal(err)
	}
	f.stop("b")
	f.start("b")
	answer(t, f.rafts["b"], nil)
	if err := f.vote("a", "b", 2); err != nil {
		t.Fatal(err)
	}
	if got := string(f.rafts["a"].EncodePeer("b", "elsewhere:1")); got != f.ports["b"].addr() {
		t.Errorf("b is at %s", got)
	}
	if got := string(f.rafts["a"].EncodePeer("unknown", "elsewhere:1")); got != "elsewhere:1" {
		t.Errorf("unknown is at %s", got)
	}
	if got := string(f.rafts["a"].LocalAddr()); got != f.ports["a"].addr() || string(f.rafts["a"].EncodePeer("a", "x:1")) != got {
		t.Errorf("a is at %s", got)
	}
}

// Behind a black hole every request ends in time, and others are served.
func TestStalledPeer(t *testing.T) {
	f := newFleet(t, "b", "c")
	f.start("a", func(c *PortConfig) { c.RPCTimeout = 150 * time.Millisecond })
	answer(t, f.rafts["b"], nil)
	answer(t, f.rafts["c"], nil)
	for _, to := range []string{"b", "c"} {
		if err := f.vote("a", to, 1); err != nil {
			t.Fatal(err)
		}
	}
	f.net.OneWay("a", "b")
	for range maxPool + 1 { // pooled connections, then dialling
		if err := f.vote("a", "b", 2); err == nil {
			t.Error("an answer from behind a black hole")
		}
		if err := f.vote("a", "c", 2); err != nil {
			t.Error(err)
		}
	}
	f.net.Heal()
	until(t, "b stays lost", func() bool { return f.vote("a", "b", 3) == nil })
	f.net.OneWay("b", "a")
	f.stop("a") // hangs on nothing
}

// Gateways come and go under new names; nothing of them may be left.
func TestUnusedPeersAreForgotten(t *testing.T) {
	f := newFleet(t, "a", "b")
	answer(t, f.rafts["b"], nil)
	if err := f.vote("a", "b", 1); err != nil {
		t.Fatal(err)
	}
	pipe, err := f.rafts["a"].AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pipe.Close() }()
	n, _ := f.rafts["a"].(*raftNet)
	n.forget(time.Now().Add(-time.Hour))
	if len(n.keys) != 2 || f.ports["a"].Conns() != 2 {
		t.Errorf("%d keys and %d connections, want 2 and 2", len(n.keys), f.ports["a"].Conns())
	}
	n.forget(time.Now().Add(time.Hour)) // the pipeline is in use
	if len(n.keys) != 1 || f.ports["a"].Conns() != 1 {
		t.Errorf("%d keys and %d connections are left, want 1 and 1", len(n.keys), f.ports["a"].Conns())
	}
	if err := f.vote("a", "b", 2); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestClosedRaftIsSilent(t *testing.T) {
	f := newFleet(t, "a", "b")
	answer(t, f.rafts["b"], nil)
	if err := f.vote("a", "b", 1); err != nil {
		t.Fatal(err)
	}
	// The group of b hangs: a request is taken and never answered.
	stuck := make(chan error, 1)
	go func() {
		stuck <- f.rafts["b"].InstallSnapshot("a", "", &raft.InstallSnapshotRequest{RPCHeader: header("b"), Size: 1 << 20}, &raft.InstallSnapshotResponse{}, io.LimitReader(zeros{}, 1<<20))
	}()
	<-f.rafts["a"].Consumer()
	for range 2 {
		if err := f.rafts["a"].Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-stuck; err == nil {
		t.Error("a closed transport answered")
	}
	if err := f.vote("a", "b", 2); err == nil {
		t.Error("a closed transport calls")
	}
	if err := f.vote("b", "a", 2); !errors.Is(err, ErrNoProtocol) {
		t.Errorf("a closed transport is called: %v", err)
	}
	if n := f.ports["a"].Conns(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
