package transport

import (
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// session is one incoming connection of a Raft group.
type session struct {
	net  *raftNet
	conn *Conn
	lib  *raft.NetworkTransport

	given chan net.Conn // the connection, until the library has taken it
	ended chan struct{} // the library is done with it
	close sync.Once
}

// accept serves each connection in a goroutine of its own.
func (r *raftNet) accept() {
	for {
		c, err := r.listener.next()
		if err != nil {
			return
		}
		r.tasks.Go(func() { r.serve(c) })
	}
}

// serve finds out by the first byte what a connection is for.
func (r *raftNet) serve(c *Conn) {
	defer func() { _ = c.Close() }()
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return
	}
	if first[0] == streamMagic {
		r.serveStream(c)
		return
	}
	r.serveLibrary(c, first[0])
}

func (r *raftNet) serveLibrary(c *Conn, first byte) {
	s := &session{net: r, conn: c, given: make(chan net.Conn, 1), ended: make(chan struct{})}
	s.given <- &inConn{Conn: c, session: s, first: []byte{first}}
	s.lib = newLibrary(s, 0, r.port.cfg.RPCTimeout)
	s.lib.SetHeartbeatHandler(s.heartbeat)
	defer func() { _ = s.lib.Close() }()
	for {
		select {
		case rpc := <-s.lib.Consumer():
			s.pass(rpc)
		case <-s.ended:
			return
		case <-r.ctx.Done():
			return
		}
	}
}

// Accept gives the library its only connection.
func (s *session) Accept() (net.Conn, error) {
	select {
	case c := <-s.given:
		return c, nil
	case <-s.ended:
	case <-s.net.ctx.Done():
	}
	return nil, net.ErrClosed
}

// Close is called by the library's Close.
func (s *session) Close() error {
	s.end()
	return nil
}

func (s *session) end() { s.close.Do(func() { close(s.ended) }) }

func (s *session) Addr() net.Addr { return s.conn.LocalAddr() }

// Dial is never called: requests go out elsewhere.
func (s *session) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return nil, net.ErrClosed
}

// heartbeat runs on the library's goroutine.
func (s *session) heartbeat(rpc raft.RPC) {
	if err := s.net.from(s.conn, rpc); err != nil {
		s.refuse(rpc, err)
		return
	}
	if cb := s.net.heartbeat.Load(); cb != nil {
		(*cb)(rpc)
		return
	}
	s.net.hand(rpc)
}

// pass checks a request and hands it to the group.
func (s *session) pass(rpc raft.RPC) {
	if req, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok {
		s.snapshot(rpc, req)
		return
	}
	if err := s.net.from(s.conn, rpc); err != nil {
		s.refuse(rpc, err)
		return
	}
	s.net.hand(rpc)
}

// hand gives a request to the group.
func (r *raftNet) hand(rpc raft.RPC) {
	if to := r.direct.Load(); to != nil {
		(*to)(rpc)
		return
	}
	select {
	case r.requests <- rpc:
	case <-r.ctx.Done():
		refuse(rpc)
	}
}

func (s *session) refuse(rpc raft.RPC, err error) {
	s.net.port.refuse(s.conn.raw, s.conn.PeerID, err)
	rpc.Respond(nil, err)
}

// drainLimit is how much of a snapshot that nobody wanted is read to its end.
const drainLimit = 64 << 20

// snapshot passes a snapshot on, with a body that cannot stall: the library
// reads it on the group's main loop. Whatever was left unread is read before
// the answer (hashicorp/raft#212), else it would be taken for the next
// requests.
func (s *session) snapshot(rpc raft.RPC, req *raft.InstallSnapshotRequest) {
	body := &steadyReader{from: rpc.Reader, conn: s.conn, left: req.Size, end: time.Now().Add(snapshotTime(req.Size))}
	answer := make(chan raft.RPCResponse, 1)
	inner := raft.RPC{Command: rpc.Command, Reader: body, RespChan: answer}
	if err := s.net.from(s.conn, rpc); err != nil {
		s.refuse(inner, err)
	} else {
		s.net.hand(inner)
	}
	var result raft.RPCResponse
	select {
	case result = <-answer:
	case <-s.net.ctx.Done():
		result.Error = ErrClosed
		body.abandon()
	}
	if err := body.drain(); err != nil {
		s.end() // nothing sensible can follow
		return
	}
	_ = s.conn.SetReadDeadline(time.Time{})
	if result.Response == nil {
		result.Response = &raft.InstallSnapshotResponse{}
	}
	rpc.Respond(result.Response, result.Error)
}

// A snapshot may take slack and a second for each slowest bytes.
const (
	slack   = time.Minute
	slowest = 1 << 20
)

func snapshotTime(size int64) time.Duration {
	return slack + time.Duration(max(size, 0)/slowest)*time.Second
}

// inConn tells the session when the library is done with its connection.
type inConn struct {
	*Conn
	session *session
	first   []byte // was read already
}

func (c *inConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 && len(b) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func (c *inConn) Close() error {
	c.session.end()
	return c.Conn.Close()
}

// Write has a deadline: an answer is small, and whoever does not take it is
// gone.
func (c *inConn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.port.cfg.stall))
	return c.Conn.Write(b)
}
