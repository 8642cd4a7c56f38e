package raftstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/raftstore/call"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// clusterKey is the metadata key under which callers name their cluster.
const clusterKey = "ym-cluster"

// maxHints bounds what others say of nodes that were not met yet.
const maxHints = 256

// pace is how fast nodes look after one another. It follows the heartbeat
// timeout: whoever slows that down has a slow network.
type pace struct {
	hello  time.Duration // between two greetings of a peer, and two looks of the leader
	answer time.Duration // that a greeting may take
	lately time.Duration // a node that was met since counts as alive
	twin   time.Duration // that a node may take to show that it lives
}

func paceOf(heartbeat time.Duration) pace {
	hello := 10 * heartbeat / 3
	return pace{hello: hello, answer: hello * 4 / 5, lately: 5 * hello, twin: heartbeat}
}

// network is what a node speaks to its peers with, beside Raft.
type network struct {
	book   *peer.Book
	pool   *peer.Pool
	server *grpc.Server
	served chan struct{}

	calls *call.Caller // what pool is for, where it must be quick
	taken *call.Server // nil: they are not served
}

func (s *Store) openNetwork() {
	n := &network{
		book:   peer.NewBook(),
		served: make(chan struct{}),
	}
	n.calls = call.NewCaller(s.cfg.Port)
	n.pool = peer.NewPool(s.cfg.Port, grpc.WithUnaryInterceptor(s.nameOurselves))
	options := append(transport.GRPCServerOptions(), grpc.UnaryInterceptor(s.knowCaller), grpc.MaxConcurrentStreams(256), grpc.WaitForHandlers(true))
	n.server = grpc.NewServer(options...)
	peer.RegisterPeerServer(n.server, service{store: s})
	ln := s.cfg.Port.Listener(transport.ProtoPeer)
	s.net = n
	go func() {
		defer close(n.served)
		// It ends with close, or with the port; then peers notice.
		_ = n.server.Serve(ln)
	}()
	if s.cfg.noCalls {
		return
	}
	n.taken = call.NewServer(s.cfg.Port, s.take)
	s.tasks.Go("the end of calls", func() {
		select {
		case <-s.faulted: // those who have asked are told that no answer will come
			n.taken.Stop()
		case <-s.ctx.Done():
		}
	})
}

func (n *network) close() {
	n.server.Stop()
	<-n.served
	if n.taken != nil {
		n.taken.Close()
	}
	n.pool.Close()
	n.calls.Close()
}

// nameOurselves tells the called node which cluster is meant.
func (s *Store) nameOurselves(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(metadata.AppendToOutgoingContext(ctx, clusterKey, s.ClusterID()), method, req, reply, conn, opts...)
}

// knowCaller refuses nodes of other clusters. Hello and Found are for those who
// are in none yet, and judge for themselves.
func (s *Store) knowCaller(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	bound := longestCall // whatever the caller bears with
	if info.FullMethod == peer.Peer_HoldBlob_FullMethodName {
		bound = holdTime // megabytes come in meanwhile
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	switch info.FullMethod {
	case peer.Peer_Hello_FullMethodName, peer.Peer_Found_FullMethodName:
		return handle(ctx, req)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	theirs, ours := "", s.ClusterID()
	if v := md.Get(clusterKey); len(v) == 1 {
		theirs = v[0]
	}
	// A node without a cluster may ask to be let in.
	if theirs != ours && (theirs != "" || info.FullMethod != peer.Peer_Change_FullMethodName) {
		return nil, otherCluster(theirs, ours)
	}
	return handle(ctx, req)
}

func otherCluster(theirs, ours string) error {
	return status.Errorf(codes.FailedPrecondition, "you are of cluster %q, this node is of %q", theirs, ours)
}

// self is what this node says of itself.
func (s *Store) self() *peer.Node {
	n := &peer.Node{
		Id: s.cfg.NodeID, Incarnation: s.incarnation, ClusterId: s.ClusterID(),
		Addr: s.cfg.Advertise, AdminAddr: s.cfg.AdminAddr, Version: s.cfg.Version, MaxLevel: s.cfg.MaxLevel, Voter: !s.cfg.Nonvoter,
	}
	if n.GetClusterId() == "" && !s.cfg.Nonvoter {
		n.Expect = uint32(s.cfg.BootstrapExpect)
	}
	for _, r := range s.id.Load().Recovered {
		n.RecoveredFrom = append(n.RecoveredFrom, &peer.Recovered{ClusterId: r.ClusterID, At: r.At.Unix()})
	}
	return n
}

// greet says hello to the node of that id at addr, "" for whoever is there, and
// notes who it is. Errors wrap ErrIDInUse, ErrRecovered, ErrOtherCluster,
// errForgone or peer.ErrUnreachable.
func (s *Store) greet(ctx context.Context, id, addr string) (*peer.HelloResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.pace.answer)
	defer cancel()
	client, err := s.net.pool.Client(ctx, id, addr)
	if err != nil {
		return nil, err
	}
	var who grpcpeer.Peer
	resp, err := client.Hello(ctx, &peer.HelloRequest{Node: s.self()}, grpc.Peer(&who))
	switch status.Code(err) {
	case codes.OK:
	case codes.AlreadyExists:
		return nil, fmt.Errorf("%w: %s", ErrIDInUse, status.Convert(err).Message())
	case codes.FailedPrecondition:
		return nil, s.refusedBy(err, addr)
	default:
		return nil, fmt.Errorf("greet %s: %w", addr, err)
	}
	answers, _ := transport.PeerID(grpcpeer.NewContext(ctx, &who))
	n := resp.GetNode()
	if n.GetId() != answers {
		return nil, fmt.Errorf("greet %s: %q answers as %q", addr, answers, n.GetId())
	}
	switch ours, theirs := s.ClusterID(), n.GetClusterId(); {
	case n.GetId() == s.cfg.NodeID && n.GetIncarnation() == s.incarnation:
		return resp, nil // our own address
	case ours != "" && theirs != "" && ours != theirs:
		return nil, s.stranger(n, addr)
	}
	s.net.book.Meet(n, time.Now())
	return resp, nil
}

// greeting is whom to greet; the id may be empty.
type greeting struct{ id, addr string }

// answer is what came of a greeting.
type answer struct {
	greeting
	resp *peer.HelloResponse
	err  error
}

// round greets nodes, all at once.
func (s *Store) round(ctx context.Context, to []greeting) []answer {
	out := make([]answer, len(to))
	var all sync.WaitGroup
	for i, g := range to {
		all.Go(func() {
			resp, err := s.greet(ctx, g.id, g.addr)
			out[i] = answer{g, resp, err}
		})
	}
	all.Wait()
	return out
}

// peers lists whom to greet: voters where they are believed to be, and where
// others say they are, and the addresses of the configuration.
func (s *Store) peers(hints map[string]string) []greeting {
	list := map[greeting]bool{}
	for id, addr := range hints {
		list[greeting{id: id, addr: addr}] = true
	}
	for _, n := range s.net.book.Nodes(time.Time{}) {
		if n.GetVoter() {
			list[greeting{id: n.GetId(), addr: n.GetAddr()}] = true
		}
	}
	if g := s.groups.Load(); g != nil {
		for _, m := range membersOf(g.core) {
			if m.Voter {
				list[greeting{id: m.ID, addr: s.whereIs(m.ID, m.Addr)}] = true
			}
		}
	}
	var out []greeting
	known := map[string]bool{s.cfg.Advertise: true}
	for to := range list {
		if to.id != s.cfg.NodeID {
			out = append(out, to)
			known[to.addr] = true
		}
	}
	for _, addr := range s.cfg.Join {
		if !known[addr] {
			out = append(out, greeting{addr: addr})
		}
	}
	return out
}

// greetAlways keeps this node and its peers known to each other. Whoever comes
// back at another address is found again by this.
func (s *Store) greetAlways() {
	hints := map[string]string{}
	timer := time.NewTimer(s.pace.hello)
	defer timer.Stop()
	for saved := ""; ; {
		select {
		case <-timer.C:
		case <-s.faulted:
			return
		case <-s.ctx.Done():
			return
		}
		if s.groups.Load() != nil { // until then findHome greets
			answers := s.round(s.ctx, s.peers(hints))
			hints = s.hear(answers)
			s.home.strand(s.strangers(answers))
			saved = s.savePeers(saved)
		}
		timer.Reset(s.pace.hello)
	}
}

// hear draws the conclusions from a round, and returns who is to be greeted that
// was not met yet.
func (s *Store) hear(answers []answer) (hints map[string]string) {
	hints = map[string]string{}
	for _, a := range answers {
		switch {
		case a.err == nil:
			if a.resp.GetRemoved() {
				s.wasRemoved(a.resp.GetNode().GetId())
			}
			for _, n := range a.resp.GetKnown() {
				if s.unmet(n) && len(hints) < maxHints {
					hints[n.GetId()] = n.GetAddr()
				}
			}
		case errors.Is(a.err, ErrIDInUse):
			s.trip(a.err)
		case errors.Is(a.err, ErrRecovered) && !s.cfg.Nonvoter:
			s.fence(a.err)
		case errors.Is(a.err, errForgone) && s.home.isNews(a.addr):
			s.log.Warn("a peer has not heard of this cluster's recovery; it stops when it does: start it with an empty folder and --join", "addr", a.addr, "error", a.err)
		case errors.Is(a.err, ErrOtherCluster) && s.home.isNews(a.addr):
			s.log.Error("a peer is of another cluster; it is not spoken to", "addr", a.addr, "error", a.err)
		}
	}
	return hints
}

// strangers tells of a round what answered of another cluster, and whether anybody
// of this one's did.
func (s *Store) strangers(answers []answer) (foreign error, ours bool) {
	for _, a := range answers {
		n := a.resp.GetNode()
		if errors.Is(a.err, ErrOtherCluster) {
			foreign = a.err
		}
		ours = ours || a.err == nil && n.GetId() != s.cfg.NodeID && n.GetClusterId() == s.ClusterID()
	}
	return foreign, ours
}

// Stranded says since when whoever answers at the known addresses has been of
// another cluster, and nobody of this one; why is nil when that is not so. Rounds
// in which nobody answers at all change nothing. The planners were then founded
// anew, for all that this node can tell, and what it follows comes back no more.
func (s *Store) Stranded() (since time.Time, why error) {
	if now := s.home.stranded.Load(); now != nil {
		return now.since, now.why
	}
	return time.Time{}, nil
}

// unmet reports whether another node has met n in a run in which this one has
// not.
func (s *Store) unmet(n *peer.Node) bool {
	ours, theirs := s.ClusterID(), n.GetClusterId()
	stranger := ours != "" && theirs != "" && ours != theirs
	if n.GetId() == s.cfg.NodeID || n.GetAddr() == "" || !n.GetVoter() || stranger {
		return false
	}
	met, _, ok := s.net.book.Find(n.GetId())
	return !ok || met.GetIncarnation() != n.GetIncarnation()
}

// savePeers writes down where the voters are, so that the next start needs no
// addresses to join. It returns what it wrote.
func (s *Store) savePeers(before string) string {
	if s.dir == nil {
		return before
	}
	var list []group.Server
	for _, m := range membersOf(s.groups.Load().core) {
		if m.Voter && m.ID != s.cfg.NodeID {
			list = append(list, group.Server{ID: m.ID, Addr: s.whereIs(m.ID, m.Addr)})
		}
	}
	slices.SortFunc(list, func(a, b group.Server) int { return compare(a.ID, b.ID) })
	if now := fmt.Sprint(list); now != before {
		if err := writeJSON(s.dir.path, "peers.json", list); err != nil {
			s.log.Warn("addresses of peers not written down", "error", err)
			return before
		}
		return now
	}
	return before
}

func (s *Store) savedPeers() (hints map[string]string) {
	hints = map[string]string{}
	if s.dir == nil {
		return hints
	}
	var list []group.Server
	// Without the file, or with a damaged one, there is Join.
	if err := readJSON(s.dir.join("peers.json"), &list); err != nil {
		return hints
	}
	for _, p := range list {
		if len(hints) < maxHints {
			hints[p.ID] = p.Addr
		}
	}
	return hints
}
