package hub

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/traffic"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

var (
	// ErrNotLeader means that the node's hub adds nothing up, because the node does
	// not lead.
	ErrNotLeader = errors.New("this node does not lead")

	errSilent   = errors.New("silent for too long")
	errStalled  = errors.New("takes no messages")
	errIdentity = errors.New("the gateway is not who it says it is")
	errClosing  = errors.New("the hub closes")
)

// ServerConfig says how the leader's side serves. Leading, View and Registry are
// required.
type ServerConfig struct {
	// Leading reports whether this node leads.
	Leading func() bool
	// View is the fleet from memory.
	View func() *fleet.View
	// Samples is what workers last said of themselves; nil passes none on.
	Samples func() *fleet.Samples
	// Traffic gets what gateways have counted; nil keeps it from everybody.
	Traffic *traffic.Book
	// Peer is the proven name of the node at the other end of a call; nil believes
	// gateways, as tests do.
	Peer func(ctx context.Context) (id string, ok bool)
	// Options are gRPC options beside the hub's, e.g. credentials that make Peer
	// work. Where both say something the hub's count.
	Options  []grpc.ServerOption
	Registry *measure.Registry
	Clock    clock.Clock  // nil means the machine's
	Logger   *slog.Logger // nil discards
}

const (
	// maxMessage has room for a whole vector and a sample of every worker.
	maxMessage = 2 << 20
	maxName    = 128
)

// Server is the leader's side of the hub.
type Server struct {
	cfg      ServerConfig
	merger   *load.Merger
	samples  source
	grpc     *grpc.Server
	closing  chan struct{}
	stop     sync.Once
	running  sync.WaitGroup // what streams have started
	sent     measure.Counter
	received measure.Counter

	mu    sync.Mutex
	since time.Time // when this node was first seen to lead; zero when it does not
}

// NewServer is a server that has no listener yet.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Leading == nil || cfg.View == nil || cfg.Registry == nil {
		return nil, errors.New("server/hub: leading, view and registry are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Traffic == nil {
		cfg.Traffic = traffic.NewBook()
	}
	s := &Server{
		cfg: cfg, merger: load.NewMerger(), samples: source{read: cfg.Samples}, closing: make(chan struct{}),
		sent:     cfg.Registry.Counter(measure.HubMessages, "leader", "sent"),
		received: cfg.Registry.Counter(measure.HubMessages, "leader", "received"),
	}
	s.grpc = grpc.NewServer(append(slices.Clone(cfg.Options), // the last one of a kind counts, as a whole
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(2),
		grpc.MaxHeaderListSize(16<<10),
		grpc.ConnectionTimeout(patience),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 10 * patience, Time: 5 * patience, Timeout: 5 * patience}),
		grpc.WaitForHandlers(true),
	)...)
	hub.RegisterHubServer(s.grpc, exchanges{server: s})
	return s, nil
}

// Serve accepts gateways on ln until Close, and then returns nil. It owns ln,
// whose connections are secured, and bounded in number by whoever made it: they
// stay as they come, for the credentials to know them. It may be called for
// several listeners.
func (s *Server) Serve(ln net.Listener) error {
	err := s.grpc.Serve(ln)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Close ends all streams, and returns when they have ended. When ctx ends first
// their connections are cut.
func (s *Server) Close(ctx context.Context) {
	s.stop.Do(func() { close(s.closing) })
	defer s.running.Wait()
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
}

// Gateways is how many are added up.
func (s *Server) Gateways() int { return s.merger.Gateways() }

// leading reports whether this node leads and is not closing, and whether it has
// led for long enough to know the gateways.
//
// When that ends gateways leave one by one. Whoever has taken sums asks again
// before they are told: else the last to leave would hear that the others are idle.
func (s *Server) leading(now time.Time) (leads, settled bool) {
	leads = s.cfg.Leading()
	select {
	case <-s.closing:
		leads = false
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !leads:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	return leads, leads && now.Sub(s.since) >= settle
}

// exchanges is the gRPC service.
type exchanges struct {
	hub.UnimplementedHubServer
	server *Server
}

// Exchange serves one gateway until either side ends or breaks the rules.
func (e exchanges) Exchange(stream grpc.BidiStreamingServer[hub.ExchangeRequest, hub.ExchangeResponse]) error {
	s := e.server
	if leads, _ := s.leading(s.cfg.Clock.Now()); !leads {
		return refusal(ErrNotLeader)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	x := &exchange{
		server: s, stream: stream, cancel: cancel,
		heard: newSilence(s.cfg.Clock, func() { cancel(errSilent) }),
		taken: newSilence(s.cfg.Clock, func() { cancel(errStalled) }),
	}
	defer x.heard.stop()
	defer x.taken.stop()
	x.heard.heard()
	// Send and Recv return at the latest when this handler has; Close waits.
	s.running.Go(func() { x.guard(func() error { return x.receive(ctx) }) })
	select {
	case <-ctx.Done():
	case <-s.closing:
		cancel(errClosing)
	}
	err := context.Cause(ctx)
	x.leave()
	if reason := reasonOf(err); reason != "" {
		s.cfg.Registry.Counter(measure.HubCuts, "leader", reason).Inc()
		s.cfg.Logger.Info("load hub: stream cut", "gateway", x.gateway(), "reason", reason, "error", err)
	}
	return refusal(err)
}

// exchange is one gateway's stream at the leader.
type exchange struct {
	server       *Server
	stream       hub.Hub_ExchangeServer
	cancel       context.CancelCauseFunc
	heard, taken *silence
	words        atomic.Uint64 // of the gateway that were taken in

	mu     sync.Mutex
	name   string
	member *load.Member
	page   *traffic.Page
	ended  bool
}

// guard runs one half of the stream, keeps a panic in it, and ends the stream
// when it returns.
func (x *exchange) guard(half func() error) {
	defer func() {
		if p := recover(); p != nil {
			x.server.cfg.Logger.Error("panic in the load hub", "gateway", x.gateway(), "panic", p, "stack", string(debug.Stack()))
			x.cancel(status.Error(codes.Internal, "internal error"))
		}
	}()
	x.cancel(half())
}

func (x *exchange) gateway() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.name
}

// receive takes the gateway's words. Its error says why there are no more.
func (x *exchange) receive(ctx context.Context) error {
	s := x.server
	var member *load.Member
	for {
		m, err := x.stream.Recv()
		if err != nil {
			return err
		}
		x.heard.heard()
		s.received.Inc()
		v, err := toVector(m.GetLoads(), 1)
		if err != nil {
			return err
		}
		news, err := toTotals(m.GetTraffic())
		if err != nil {
			return err
		}
		s.merger.Follow(s.cfg.View())
		switch {
		case member == nil:
			member, err = x.hello(ctx, m, &v)
		case m.GetHello() != nil:
			err = malformed("a second hello")
		case m.GetLoads() != nil:
			x.words.Add(1) // before tell is woken
			err = member.Update(&v)
		}
		if err == nil && m.GetTraffic() != nil {
			err = x.page.Update(s.cfg.Clock.Now(), news)
		}
		if err != nil {
			return err
		}
	}
}

// hello makes the gateway a member, and begins to tell it of the others.
func (x *exchange) hello(ctx context.Context, m *hub.ExchangeRequest, v *load.Vector) (*load.Member, error) {
	s, name := x.server, m.GetHello().GetGateway()
	if name == "" || len(name) > maxName || !v.Whole {
		return nil, malformed("no hello with a whole vector at first")
	}
	if s.cfg.Peer != nil {
		if id, ok := s.cfg.Peer(ctx); !ok || id != name {
			return nil, errIdentity
		}
	}
	member, err := s.merger.Join(name, m.GetHello().GetIncarnation(), v)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	x.name, x.member, x.page = name, member, s.cfg.Traffic.Open(name, m.GetHello().GetIncarnation())
	ended := x.ended
	x.mu.Unlock()
	if ended {
		member.Leave()
		x.page.Close()
		return nil, context.Cause(ctx)
	}
	x.words.Store(1)
	x.taken.heard()
	s.running.Go(func() { x.guard(func() error { return x.tell(ctx, member) }) })
	return member, nil
}

// leave takes the gateway's load out at once, before Recv has noticed the end.
func (x *exchange) leave() {
	x.mu.Lock()
	member, page := x.member, x.page
	x.ended = true
	x.mu.Unlock()
	if member != nil {
		member.Leave()
		page.Close()
	}
}

// tell sends the gateway what the others have and what workers said.
func (x *exchange) tell(ctx context.Context, member *load.Member) error {
	s := x.server
	p := newPace(s.cfg.Clock)
	defer p.stop()
	var (
		vector load.Vector
		loads  hub.Loads
		words  hub.Samples
		m      hub.ExchangeResponse
		told   *fleet.Samples
		first  = true
	)
	for {
		now, err := p.next(ctx, member.Ready(), nil, func(now time.Time) (bool, error) {
			leads, settled := s.leading(now)
			if !leads {
				return false, ErrNotLeader
			}
			return settled && (first || s.samples.at(now) != told), nil
		})
		if err != nil {
			return err
		}
		// The message and its columns are used again: gRPC has encoded them when Send
		// returns.
		m.Loads, m.Samples, m.Gateways = nil, nil, uint32(s.merger.Gateways())
		if _, settled := s.leading(now); !settled {
			continue // a keep-alive would pass for news of gateways that are not here yet
		}
		first = false
		m.Heard = x.words.Load()
		s.merger.Follow(s.cfg.View())
		news, err := member.Take(&vector)
		if err != nil {
			return err
		}
		if news {
			m.Loads = fromVector(&vector, &loads)
		}
		if leads, _ := s.leading(now); !leads {
			return ErrNotLeader
		}
		if latest := s.samples.at(now); latest != told {
			emptySamples(&words)
			addNew(&words, told, latest, now)
			m.Samples, told = &words, latest
		}
		if err := x.stream.Send(&m); err != nil {
			return err
		}
		x.taken.heard()
		s.sent.Inc()
	}
}

type malformedError string

func malformed(what string) error { return malformedError(what) }

func (e malformedError) Error() string        { return "malformed message: " + string(e) }
func (e malformedError) Is(target error) bool { return target == load.ErrVector }

// reasonOf is why a stream was cut, in metrics; empty when the other side ended
// it.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, load.ErrVector), errors.Is(err, traffic.ErrReport):
		return "malformed"
	case errors.Is(err, load.ErrReplaced):
		return "replaced"
	case errors.Is(err, load.ErrTooMany):
		return "too_many"
	case errors.Is(err, errSilent):
		return "silent"
	case errors.Is(err, errStalled):
		return "stalled"
	case errors.Is(err, errIdentity):
		return "identity"
	case errors.Is(err, ErrNotLeader):
		return "not_leader"
	}
	return ""
}

// refusal is err as the gateway gets it.
func refusal(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, load.ErrVector), errors.Is(err, traffic.ErrReport):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, load.ErrReplaced):
		return status.Error(codes.Aborted, err.Error())
	case errors.Is(err, load.ErrTooMany):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, errSilent), errors.Is(err, errStalled):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, errIdentity):
		return status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, ErrNotLeader), errors.Is(err, errClosing):
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}
