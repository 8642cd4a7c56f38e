package transport

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// ErrClosed means that the transport was closed, by a shutdown or by a guard.
var ErrClosed = errors.New("raft transport is closed")

// Inner is what Guard wraps: the library's in-memory and network transports
// both qualify.
type Inner interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// Node is the part of a Raft node the guard looks at. *raft.Raft fulfils it.
type Node interface {
	State() raft.RaftState
	CurrentTerm() uint64
}

// Guarded is a transport that keeps heartbeats from changing the node's term
// behind its main loop.
//
// The library hands heartbeats to a callback on the network's goroutine, so
// that a main loop waiting for the disk does not look dead. That callback also
// adopts newer terms, at a moment when the main loop may be voting or leading
// in the old one, and logs can diverge (hashicorp/raft#695). Here the callback
// runs only when it cannot change anything but the time of last contact: the
// node is a follower and the terms are equal. Every other heartbeat queues for
// the main loop.
type Guarded struct {
	inner Inner
	node  atomic.Pointer[Node]
	sieve atomic.Pointer[Sieve]
	await atomic.Pointer[func(index uint64) error] // see Hold
	pace  atomic.Pointer[func(raft.ServerID) time.Duration]
	// queue is what the library consumes: inner's requests and the heartbeats
	// that were not let through.
	queue chan raft.RPC
	acks  acks
	done  chan struct{}
	pump  sync.WaitGroup
	close sync.Once
	err   error
}

// Guard wraps inner and owns it from now on. The caller must Close it.
func Guard(inner Inner) *Guarded {
	g := &Guarded{inner: inner, queue: make(chan raft.RPC), done: make(chan struct{})}
	if d, ok := inner.(deliverer); ok {
		d.Deliver(g.pass)
	} else {
		g.pump.Go(g.forward)
	}
	return g
}

// deliverer is an inner transport that saves a hop through its Consumer.
type deliverer interface{ Deliver(to func(raft.RPC)) }

// Watch names the node whose state decides about heartbeats. Until then all of
// them queue.
func (g *Guarded) Watch(n Node) { g.node.Store(&n) }

// Sieve sees a peer's request before the library does. It passes it on, at once or
// later, or answers it. It must not block.
type Sieve func(rpc raft.RPC, pass func(raft.RPC))

// Screen has every request go through s, but for heartbeats, which are let by.
func (g *Guarded) Screen(s Sieve) { g.sieve.Store(&s) }

// Hold keeps from the library what a peer answers to entries until await has
// returned for the last of them. After an error the answer is lost. See
// wal.Guarded.Behind for why.
func (g *Guarded) Hold(await func(index uint64) error) { g.await.Store(&await) }

// hold returns when a peer's answer to entries may be heard.
func (g *Guarded) hold(entries []*raft.Log) error {
	await := g.await.Load()
	if await == nil || len(entries) == 0 {
		return nil
	}
	return (*await)(entries[len(entries)-1].Index)
}

// Pace has the stream to a peer rest for as long as pause says after each request
// with entries, so that the next one has more of them.
func (g *Guarded) Pace(pause func(id raft.ServerID) time.Duration) { g.pace.Store(&pause) }

func (g *Guarded) pause(id raft.ServerID) time.Duration {
	if pace := g.pace.Load(); pace != nil {
		return (*pace)(id)
	}
	return 0
}

func (g *Guarded) forward() {
	for {
		select {
		case rpc := <-g.inner.Consumer():
			g.pass(rpc)
		case <-g.done:
			return
		}
	}
}

// pass lets a request through to the library.
func (g *Guarded) pass(rpc raft.RPC) {
	if s := g.sieve.Load(); s != nil {
		(*s)(rpc, g.enqueue)
		return
	}
	g.enqueue(rpc)
}

func (g *Guarded) enqueue(rpc raft.RPC) {
	select {
	case g.queue <- rpc:
	case <-g.done:
		refuse(rpc)
	}
}

// refuse answers with an error. The library's in-memory pipeline wants a
// response beside it.
func refuse(rpc raft.RPC) {
	var resp any
	if _, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
		resp = &raft.AppendEntriesResponse{}
	}
	rpc.Respond(resp, ErrClosed)
}

// SetHeartbeatHandler installs the library's callback behind the guard.
func (g *Guarded) SetHeartbeatHandler(cb func(raft.RPC)) {
	g.inner.SetHeartbeatHandler(func(rpc raft.RPC) {
		if cb != nil && g.harmless(rpc) {
			cb(rpc)
			return
		}
		g.enqueue(rpc)
	})
}

func (g *Guarded) harmless(rpc raft.RPC) bool {
	req, ok := rpc.Command.(*raft.AppendEntriesRequest)
	node := g.node.Load()
	return ok && node != nil && (*node).State() == raft.Follower && (*node).CurrentTerm() == req.Term
}

// Consumer is where the library takes its requests.
func (g *Guarded) Consumer() <-chan raft.RPC { return g.queue }

// LocalAddr is the inner transport's.
func (g *Guarded) LocalAddr() raft.ServerAddress { return g.inner.LocalAddr() }

// EncodePeer is the inner transport's.
func (g *Guarded) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return g.inner.EncodePeer(id, addr)
}

// DecodePeer is the inner transport's.
func (g *Guarded) DecodePeer(b []byte) raft.ServerAddress { return g.inner.DecodePeer(b) }

// AppendEntriesPipeline opens a pipeline to a peer.
func (g *Guarded) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if g.closed() {
		return nil, ErrClosed
	}
	inner, err := g.inner.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	if s, ok := inner.(*stream); ok {
		s.hold = g.hold
		s.pause = func() time.Duration { return g.pause(id) }
		return s, nil
	}
	return newPipeline(inner, g.hold), nil
}

// AppendEntries calls a peer.
func (g *Guarded) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if g.closed() {
		return ErrClosed
	}
	call := g.acks.calls.Add(1)
	if err := g.inner.AppendEntries(id, target, args, resp); err != nil {
		return err
	}
	if err := g.hold(args.Entries); err != nil {
		return err
	}
	if resp.Term == args.Term {
		g.acks.note(id, args.Term, call)
	}
	return nil
}

// RequestVote calls a peer.
func (g *Guarded) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if g.closed() {
		return ErrClosed
	}
	return g.inner.RequestVote(id, target, args, resp)
}

// RequestPreVote calls a peer.
func (g *Guarded) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if g.closed() {
		return ErrClosed
	}
	return g.inner.RequestPreVote(id, target, args, resp)
}

// InstallSnapshot calls a peer.
func (g *Guarded) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if g.closed() {
		return ErrClosed
	}
	return g.inner.InstallSnapshot(id, target, args, resp, data)
}

// TimeoutNow calls a peer.
func (g *Guarded) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	if g.closed() {
		return ErrClosed
	}
	return g.inner.TimeoutNow(id, target, args, resp)
}

// Close ends the transport: peers are neither called nor answered any more. It
// may be called again.
func (g *Guarded) Close() error {
	g.close.Do(func() {
		close(g.done)
		g.err = g.inner.Close()
		g.pump.Wait()
	})
	return g.err
}

func (g *Guarded) closed() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}
