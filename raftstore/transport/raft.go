package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// defaultRPCTimeout bounds dialling, each request and its answer. It is far
	// above a follower's write deadline and far below the library's ten seconds:
	// a link that lost packets is best left for a new one.
	defaultRPCTimeout = 3 * time.Second
	// maxPool is idle connections kept for a peer.
	maxPool = 3
	// forgetAfter is how long idle connections to a peer are kept.
	forgetAfter = 10 * time.Minute
)

// The library asks for connections by address alone. Ours names more: what the
// connection is for, the peer's id and where it is.
const (
	useRPC      = "rpc"      // requests; the library pools these connections
	usePipeline = "pipeline" // never pooled, so always fresh
	useSnapshot = "snapshot" // the same; with deadlines of its own
)

const keySeparator = "|"

// Raft is a Raft transport over the port, under protocol proto. resolve tells
// where a node listens now, and may be asked at any time; where it does not
// know, the address in Raft's configuration is used. advertise is this node's
// own address as others see it.
//
// Every request is checked: the id in its header must be that of the
// certificate. The caller must Close the transport, which ends the protocol's
// connections; closing the port ends the transport's use, too.
func (p *Port) Raft(proto string, resolve func(id string) (addr string, ok bool), advertise string) Inner {
	r := &raftNet{
		port: p, proto: proto, resolve: resolve, advertise: advertise,
		listener: p.listen(proto),
		requests: make(chan raft.RPC),
		keys:     map[raft.ServerAddress]*keyState{},
	}
	r.ctx, r.cancel = context.WithCancel(p.ctx)
	r.out = newLibrary(&outStream{net: r, done: r.ctx.Done()}, maxPool, p.cfg.RPCTimeout)
	r.tasks.Go(r.accept)
	r.tasks.Go(r.sweep)
	return r
}

func newLibrary(stream raft.StreamLayer, pool int, timeout time.Duration) *raft.NetworkTransport {
	return raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: stream, MaxPool: pool, Timeout: timeout, Logger: hclog.NewNullLogger(), MsgpackUseNewTimeFormat: true,
	})
}

// raftNet is one Raft group's transport. The library's own transport encodes
// and decodes: one instance for all outgoing requests, and one for each
// incoming connection, because the library does not say which connection a
// request came from, and so from whom.
type raftNet struct {
	port      *Port
	proto     string
	resolve   func(string) (string, bool)
	advertise string
	listener  *listener
	out       *raft.NetworkTransport

	requests  chan raft.RPC
	direct    atomic.Pointer[func(raft.RPC)] // where requests go instead, see Deliver
	heartbeat atomic.Pointer[func(raft.RPC)]

	mu   sync.Mutex
	keys map[raft.ServerAddress]*keyState

	ctx    context.Context // the transport's life
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	close  sync.Once
}

// keyState is what is known of the connections under one key.
type keyState struct {
	used time.Time
	// stale counts connections that had served before and then were found ended.
	stale  uint64
	conns  map[*outConn]struct{}
	ending bool // being forgotten
}

func (r *raftNet) Consumer() <-chan raft.RPC { return r.requests }

// Deliver has requests given to to, which may block while the transport is open, and
// not to the Consumer.
func (r *raftNet) Deliver(to func(raft.RPC)) { r.direct.Store(&to) }

func (r *raftNet) LocalAddr() raft.ServerAddress { return raft.ServerAddress(r.advertise) }

func (r *raftNet) SetHeartbeatHandler(cb func(raft.RPC)) {
	if cb == nil {
		r.heartbeat.Store(nil)
		return
	}
	r.heartbeat.Store(&cb)
}

func (r *raftNet) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(r.where(id, addr))
}

func (r *raftNet) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

func (r *raftNet) where(id raft.ServerID, configured raft.ServerAddress) string {
	if string(id) == r.port.NodeID() {
		return r.advertise
	}
	if addr, ok := r.resolve(string(id)); ok {
		return addr
	}
	return string(configured)
}

func (r *raftNet) key(use string, id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	key := raft.ServerAddress(strings.Join([]string{use, string(id), r.where(id, addr)}, keySeparator))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state(key).used = time.Now()
	return key
}

// state finds or makes a key's. The lock is held.
func (r *raftNet) state(key raft.ServerAddress) *keyState {
	s := r.keys[key]
	if s == nil {
		s = &keyState{conns: map[*outConn]struct{}{}}
		r.keys[key] = s
	}
	return s
}

// request sends one over a pooled connection. The peer may have been restarted
// since the connection was last used, which shows only now. Every request of
// Raft may be repeated, so the next connection is tried, at last a new one:
// an election need not fail for that.
func (r *raftNet) request(id raft.ServerID, addr raft.ServerAddress, send func(key raft.ServerAddress) error) error {
	key := r.key(useRPC, id, addr)
	before := r.stale(key)
	err := send(key)
	for range maxPool {
		now := r.stale(key)
		if err == nil || now == before {
			return err
		}
		before = now
		err = send(key)
	}
	return err
}

func (r *raftNet) stale(key raft.ServerAddress) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state(key).stale
}

func (r *raftNet) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return r.request(id, target, func(key raft.ServerAddress) error { return r.out.AppendEntries(id, key, args, resp) })
}

func (r *raftNet) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return r.request(id, target, func(key raft.ServerAddress) error { return r.out.RequestVote(id, key, args, resp) })
}

func (r *raftNet) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return r.request(id, target, func(key raft.ServerAddress) error { return r.out.RequestPreVote(id, key, args, resp) })
}

func (r *raftNet) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return r.request(id, target, func(key raft.ServerAddress) error { return r.out.TimeoutNow(id, key, args, resp) })
}

func (r *raftNet) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	conn, err := (&outStream{net: r}).dial(r.key(usePipeline, id, target), r.port.cfg.RPCTimeout)
	if err != nil {
		return nil, err
	}
	return openStream(conn, r.port.cfg.RPCTimeout)
}

func (r *raftNet) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return r.out.InstallSnapshot(id, r.key(useSnapshot, id, target), args, resp, data)
}

// Close ends the transport and the protocol's connections.
func (r *raftNet) Close() error {
	r.close.Do(func() {
		r.cancel()
		_ = r.listener.Close()
		_ = r.out.Close()
		closeAll(r.port.table.find(func(c *Conn) bool { return c.Proto == r.proto }))
		r.tasks.Wait()
	})
	return nil
}

// outStream is what the library dials with. Nobody calls in here.
type outStream struct {
	net  *raftNet
	done <-chan struct{}
}

func (s *outStream) Accept() (net.Conn, error) {
	<-s.done
	return nil, net.ErrClosed
}

func (s *outStream) Close() error { return nil } // raftNet.Close ended it

func (s *outStream) Addr() net.Addr { return s.net.port.Addr() }

var errForgotten = errors.New("the peer was forgotten")

func (s *outStream) Dial(key raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := s.dial(key, timeout)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (s *outStream) dial(key raft.ServerAddress, timeout time.Duration) (*outConn, error) {
	use, rest, _ := strings.Cut(string(key), keySeparator)
	id, addr, _ := strings.Cut(rest, keySeparator)
	r := s.net
	r.mu.Lock()
	ending := r.state(key).ending
	r.mu.Unlock()
	if ending {
		return nil, errForgotten
	}

	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	c, err := r.port.Dial(ctx, id, addr, r.proto)
	if err != nil {
		return nil, err
	}
	o := &outConn{Conn: c, net: r, key: key, snapshot: use == useSnapshot}
	r.mu.Lock()
	r.state(key).conns[o] = struct{}{}
	r.mu.Unlock()
	if r.ctx.Err() != nil { // Close may have looked before this one was there
		_ = o.Close()
		return nil, ErrClosed
	}
	return o, nil
}

// outConn is a connection that the library dialled.
type outConn struct {
	*Conn
	net      *raftNet
	key      raft.ServerAddress
	snapshot bool
	served   atomic.Bool // has brought an answer
}

func (c *outConn) Close() error {
	c.net.mu.Lock()
	if s := c.net.keys[c.key]; s != nil {
		delete(s.conns, c)
	}
	c.net.mu.Unlock()
	return c.Conn.Close()
}

const (
	// stallTimeout is how long a snapshot may make no progress.
	stallTimeout = 10 * time.Second
	// restoreTimeout is how long a follower may take from the last byte of a
	// snapshot to its answer. Longer would be its disk's fault; a shorter bound
	// would send it the same snapshot again while it works on the first.
	restoreTimeout = 2 * time.Minute
)

// SetDeadline is the library's, by the size of what it sends. For a snapshot
// it would be hours: the progress counts.
func (c *outConn) SetDeadline(t time.Time) error {
	if c.snapshot {
		return nil
	}
	return c.Conn.SetDeadline(t)
}

func (c *outConn) Write(b []byte) (int, error) {
	if c.snapshot {
		_ = c.SetWriteDeadline(time.Now().Add(c.port.cfg.stall))
	}
	n, err := c.Conn.Write(b)
	c.note(0, err)
	return n, err
}

func (c *outConn) Read(b []byte) (int, error) {
	if c.snapshot {
		_ = c.SetReadDeadline(time.Now().Add(restoreTimeout))
	}
	n, err := c.Conn.Read(b)
	c.note(n, err)
	return n, err
}

// note takes down that the connection was stale. The library's errors do not
// tell: its codec makes text of them.
func (c *outConn) note(read int, err error) {
	if err != nil && c.served.Load() && !isTimeout(err) {
		c.net.mu.Lock()
		c.net.state(c.key).stale++
		c.net.mu.Unlock()
	}
	if read > 0 && !c.served.Load() {
		c.served.Store(true)
	}
}

// sweep forgets peers that are not spoken to any more. Gateways come and go
// under new names, and the library keeps idle connections, with large buffers,
// for ever.
func (r *raftNet) sweep() {
	for sleep(r.ctx, forgetAfter/4) {
		r.forget(time.Now().Add(-forgetAfter))
	}
}

func (r *raftNet) forget(before time.Time) {
	for _, key := range r.endUnused(before) {
		// The only way to get at the library's idle connections is to ask for
		// something: each, closed by now, fails at once, then dialling does.
		for range maxPool + 1 {
			err := r.out.TimeoutNow("", key, &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
			if errors.Is(err, errForgotten) {
				break
			}
		}
		r.mu.Lock()
		delete(r.keys, key)
		r.mu.Unlock()
	}
}

func (r *raftNet) endUnused(before time.Time) []raft.ServerAddress {
	var keys []raft.ServerAddress
	var conns []*outConn
	r.mu.Lock()
	for key, state := range r.keys {
		pooled := strings.HasPrefix(string(key), useRPC+keySeparator)
		if !state.used.Before(before) || !pooled && len(state.conns) > 0 {
			continue // a pipeline is asked for once and used for long
		}
		state.ending = true
		keys = append(keys, key)
		for c := range state.conns {
			conns = append(conns, c)
		}
	}
	r.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	return keys
}

// ErrImpostor means that a request of Raft bears another id than the
// certificate of the connection it came over.
var ErrImpostor = errors.New("request under another node's id")

// from checks that a request comes from whom it says.
func (r *raftNet) from(c *Conn, rpc raft.RPC) error {
	named, ok := rpc.Command.(raft.WithRPCHeader)
	if !ok {
		return fmt.Errorf("%w: %T names nobody", ErrImpostor, rpc.Command)
	}
	if id := string(named.GetRPCHeader().ID); id != c.PeerID {
		return fmt.Errorf("%w: %.64q over a connection of %s", ErrImpostor, id, c.PeerID)
	}
	return nil
}
