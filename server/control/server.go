package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/lead"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/wire/control/rpc"
)

// Planner is the replicated state. raftstore.Store fulfils it.
type Planner interface {
	// Propose brings a command into force, or says why it could not; a refusal
	// by the state machine is in the result.
	Propose(ctx context.Context, cmd planner.Command) (planner.Result, error)
	// View is the fleet from memory.
	View() *fleet.View
	// Leading reports whether this node leads.
	Leading() bool
	// ClusterID names the cluster.
	ClusterID() string
}

// Config says how to serve. Planner and Leases are required.
type Config struct {
	Planner Planner
	Leases  *lead.Leases
	Prefix  Prefix // nil refuses feeds of KV events
	// Leader, where there are several planners, is the control service of the one
	// that leads, over a connection between members; false while none is known or
	// this node leads. Workers then may call any planner: what only the leader can
	// answer is handed on to it. What it is given must not outlive Close.
	Leader func() (rpc.ControlClient, bool)
	// PeerOptions are gRPC's for ServePeers: credentials of connections that are
	// secured already. Where the server has an option of the kind its own counts.
	PeerOptions []grpc.ServerOption
	Clock       clock.Clock  // nil means the machine's; the one that core/lead runs on
	Logger      *slog.Logger // nil discards
	TLS         *tls.Config  // nil serves plain text, on loopback only
	// AllowPlaintext permits plain text beyond loopback, on a network that is
	// trusted: whoever reaches the port can register a worker and be sent
	// prompts.
	AllowPlaintext bool
}

// ErrPlaintext means that a listener beyond loopback was given without TLS.
var ErrPlaintext = errors.New("the control port needs TLS beyond loopback")

const (
	maxMessage  = planner.MaxEntry
	maxConns    = 16384
	maxStreams  = 64
	callTimeout = 5 * time.Second
)

// Server serves workers.
type Server struct {
	cfg     Config
	grpc    *grpc.Server
	peers   *grpc.Server // for other planners
	service *service
	stop    sync.Once
}

// New is a server that does not listen yet.
func New(cfg Config) (*Server, error) {
	if cfg.Planner == nil || cfg.Leases == nil {
		return nil, errors.New("server/control: planner and leases are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg}
	opts := []grpc.ServerOption{
		grpc.UnaryInterceptor(s.bound),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(callTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 15 * time.Second, Timeout: callTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Stop waits for handlers, so that none outlives the planner it uses.
		grpc.WaitForHandlers(true),
	}
	s.service = &service{Config: cfg, closing: make(chan struct{})}
	s.peers = grpc.NewServer(append(slices.Clone(cfg.PeerOptions), opts...)...) // the last one of a kind counts, as a whole
	rpc.RegisterControlServer(s.peers, handedOn{s.service})
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s.grpc = grpc.NewServer(opts...)
	rpc.RegisterControlServer(s.grpc, s.service)
	return s, nil
}

// Serve accepts workers on ln until Close, and then returns nil. It owns ln.
// Errors wrap ErrPlaintext or the network's.
func (s *Server) Serve(ln net.Listener) error {
	if s.cfg.TLS == nil && !s.cfg.AllowPlaintext && !loopback(ln.Addr()) {
		return errors.Join(fmt.Errorf("%w: %v", ErrPlaintext, ln.Addr()), ln.Close())
	}
	err := s.grpc.Serve(netutil.LimitListener(ln, maxConns))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// ServePeers accepts other planners, who hand on what workers ask of them, on ln
// until Close, and then returns nil. It owns ln, whose connections are secured and
// bounded in number; they stay as they come, for the credentials to know them.
func (s *Server) ServePeers(ln net.Listener) error {
	err := s.peers.Serve(ln)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Close stops accepting, ends feeds, lets calls under way finish and returns
// when they have. When ctx ends first their connections are cut.
func (s *Server) Close(ctx context.Context) {
	s.stop.Do(func() { close(s.service.closing) })
	defer s.service.receivers.Wait()
	var stopped sync.WaitGroup
	for _, one := range []*grpc.Server{s.grpc, s.peers} {
		stopped.Go(one.GracefulStop)
	}
	done := make(chan struct{})
	go func() {
		stopped.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		s.peers.Stop()
		<-done
	}
}

// loopback reports whether only this machine reaches addr.
func loopback(addr net.Addr) bool {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	default:
		return a.Network() == "bufconn"
	}
}

// bound gives every call a deadline and keeps a panic in one call.
func (s *Server) bound(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Logger.Error("panic in a control call", "method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return handle(ctx, req)
}
