package call

import (
	"bufio"
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/transport"
)

const (
	// perPeer is how many connections of a peer are served. With one more the oldest
	// ends: a peer that comes anew has given its old one up.
	perPeer = 4
	// maxHeld bounds the bytes of the calls of one connection that are under way.
	maxHeld = 64 << 20
)

// Handler takes a call in. It runs where calls are read and must not block: what
// may take time it does by [Incoming.Go], or later. Every call must be answered,
// once.
type Handler func(*Incoming)

// Server answers calls that come in on a listener.
type Server struct {
	listener net.Listener
	handle   Handler
	ctx      context.Context
	cancel   context.CancelFunc
	tasks    sync.WaitGroup

	mu    sync.Mutex
	conns map[string][]*serverConn // by peer, oldest first
}

// NewServer serves the port's calls until Close. It owns the listener.
func NewServer(port *transport.Port, handle Handler) *Server {
	s := &Server{listener: port.Listener(transport.ProtoCall), handle: handle, conns: map[string][]*serverConn{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.tasks.Go(s.accept)
	return s
}

// Stop lets nothing in any more and ends all connections: callers learn that their
// calls are lost. It does not block, and may be called again.
func (s *Server) Stop() {
	_ = s.listener.Close()
	s.cancel()
}

// Close is Stop, and waits until nothing of the server runs, and no handler.
func (s *Server) Close() {
	s.Stop()
	s.tasks.Wait()
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		if ours, ok := c.(*transport.Conn); ok {
			s.tasks.Go(func() { s.serve(ours) })
		}
	}
}

// serve reads calls until the connection ends.
func (s *Server) serve(conn *transport.Conn) {
	c := &serverConn{conn: conn}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	defer c.cancel()
	c.out = outbox{conn: conn, tasks: &c.tasks, broken: func(error) { c.cancel() }}
	s.enter(c)
	defer s.leave(c)
	c.tasks.Go(func() {
		<-c.ctx.Done()
		_ = conn.Close()
	})
	c.tasks.Go(func() {
		c.out.fail(c.receive(s.handle))
		c.cancel()
	})
	c.tasks.Wait()
}

func (s *Server) enter(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.conns[c.conn.PeerID]
	if len(list) >= perPeer {
		list[0].cancel()
		list = list[1:]
	}
	s.conns[c.conn.PeerID] = append(list, c)
}

func (s *Server) leave(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.conn.PeerID
	list := slices.DeleteFunc(s.conns[id], func(other *serverConn) bool { return other == c })
	if s.conns[id] = list; len(list) == 0 {
		delete(s.conns, id)
	}
}

// serverConn is a connection of a peer that asks.
type serverConn struct {
	conn   *transport.Conn
	out    outbox
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu    sync.Mutex
	calls int // not answered
	held  int // bytes of theirs
}

func (c *serverConn) receive(handle Handler) error {
	in := bufio.NewReaderSize(c.conn, 16<<10)
	for {
		frame, err := transport.ReadFrame(in, maxFrame)
		if err != nil {
			return err
		}
		q, err := parseRequest(frame)
		if err != nil {
			return err
		}
		r := &Incoming{
			Peer: c.conn.PeerID, Kind: q.kind, Cluster: q.cluster, Body: q.body,
			conn: c, number: q.number, size: len(frame), due: time.Now().Add(q.left),
		}
		if !c.begin(r.size) {
			r.Answer(Busy, []byte("too many calls of yours are under way"))
			continue
		}
		handle(r)
	}
}

// begin counts a call, and reports whether there is room for it.
func (c *serverConn) begin(size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	c.held += size
	return c.calls <= underway && c.held <= maxHeld
}

func (c *serverConn) finish(size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	c.held -= size
}

// Incoming is a call that came in.
type Incoming struct {
	Peer    string // who asks, as its certificate says
	Kind    Kind
	Cluster string // the peer's, as it says
	Body    []byte // the handler's

	conn   *serverConn
	number uint64
	size   int
	due    time.Time
}

// Answer answers the call; the body is a sentence unless the outcome is Done, and
// may be used again afterwards. It may be called by any goroutine, also when the
// connection or the server has ended, and may wait for a peer that does not read,
// for some seconds.
func (r *Incoming) Answer(o Outcome, body []byte) {
	r.conn.finish(r.size)
	err := r.conn.out.put(func(b []byte) []byte { return appendAnswer(b, r.number, o, body) }, true)
	if err != nil {
		r.conn.cancel() // it asks and does not read
	}
}

// Go runs what takes time on a goroutine that the server waits for. The context
// ends with the time that the caller has, and with the connection. It must be
// called by the handler.
func (r *Incoming) Go(work func(ctx context.Context)) {
	r.conn.tasks.Go(func() {
		ctx, cancel := context.WithDeadline(r.conn.ctx, r.due)
		defer cancel()
		work(ctx)
	})
}
