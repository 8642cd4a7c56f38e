package hub

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/traffic"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

// DefaultSampleTTL is how long a worker's word counts after it was said.
const DefaultSampleTTL = 3 * time.Second

// LinkConfig says how a gateway follows the leader. Gateway, Table, View, Leader,
// Dial and Registry are required.
type LinkConfig struct {
	// Gateway is the node's name; Incarnation rises with each start of it.
	Gateway     string
	Incarnation uint64
	// Table is what this gateway has in flight.
	Table *load.Table
	// Traffic is what this gateway has counted; nil tells nothing of it.
	Traffic func() []traffic.Totals
	// View is the fleet from memory.
	View func() *fleet.View
	// Leader is the node that leads, and whether it is this one; id is empty while
	// nobody is known to lead. It is asked often.
	Leader func() (id, addr string, self bool)
	// Dial opens a secured connection to a node's hub.
	Dial func(ctx context.Context, id, addr string) (net.Conn, error)
	// Server is this node's own leader's side; nil where the node never leads.
	Server *Server
	// SampleTTL is how long a worker's word counts after it was said: the time of
	// its lease. 0 means DefaultSampleTTL.
	SampleTTL time.Duration
	Registry  *measure.Registry
	Clock     clock.Clock  // nil means the machine's
	Logger    *slog.Logger // nil discards
}

// Link is a gateway's side of the hub.
type Link struct {
	cfg   LinkConfig
	inbox inbox
	fresh *silence // of the leader, whoever it is
	self  atomic.Bool

	mu      sync.Mutex
	session *session // the one whose words count; nil when none does

	age, gateways  measure.Gauge
	sent, received measure.Counter
}

// session is one connection to a leader.
type session struct {
	leader string
	cancel context.CancelCauseFunc
	joined bool // the leader said something; guarded by Link.mu
}

// NewLink is a link that is not running.
func NewLink(cfg LinkConfig) (*Link, error) {
	if cfg.Gateway == "" || cfg.Table == nil || cfg.View == nil || cfg.Leader == nil || cfg.Dial == nil || cfg.Registry == nil {
		return nil, errors.New("server/hub: gateway, table, view, leader, dial and registry are required")
	}
	if cfg.SampleTTL <= 0 {
		cfg.SampleTTL = DefaultSampleTTL
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Link{
		cfg: cfg, inbox: inbox{ttl: cfg.SampleTTL, rows: map[uint64]word{}},
		age: cfg.Registry.Gauge(measure.HubAge), gateways: cfg.Registry.Gauge(measure.HubGateways),
		sent:     cfg.Registry.Counter(measure.HubMessages, "gateway", "sent"),
		received: cfg.Registry.Counter(measure.HubMessages, "gateway", "received"),
	}
	l.fresh = newSilence(cfg.Clock, l.forget)
	return l, nil
}

// Samples is what workers last said of themselves: this node's own leases' word
// where it leads, else what the leader passed on. It is cheap, and the same set
// while nothing is new.
func (l *Link) Samples() *fleet.Samples {
	if l.self.Load() {
		return l.cfg.Server.samples.at(l.cfg.Clock.Now())
	}
	return l.inbox.samples(l.cfg.View())
}

// leader is where the link goes.
type leader struct {
	id, addr string
	self     bool
}

func (l *Link) leader() leader {
	id, addr, self := l.cfg.Leader()
	return leader{id, addr, self && l.cfg.Server != nil}
}

// Run follows the leader until ctx ends. What others have is then forgotten.
func (l *Link) Run(ctx context.Context) {
	changes := l.cfg.Table.Changes()
	changes.Open()
	defer changes.Close()
	defer l.forget()
	defer l.fresh.stop()
	retries := 0
	for ctx.Err() == nil {
		to, began := l.leader(), l.cfg.Clock.Now()
		var err error
		switch {
		case to.self:
			err = l.lead(ctx)
		case to.id != "":
			err = l.follow(ctx, to)
		}
		if ctx.Err() != nil {
			return
		}
		lasted := l.cfg.Clock.Now().Sub(began)
		if retries++; lasted > patience {
			retries = 1
		}
		if err != nil {
			l.cfg.Logger.Debug("load hub: link ended", "leader", to.id, "after", lasted, "error", err)
		}
		l.pause(ctx, to, retries)
	}
}

const (
	firstPause   = 10 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// pause waits before the next attempt: longer after each that failed, and by
// chance, so that gateways do not come all at once. Another leader ends it.
func (l *Link) pause(ctx context.Context, from leader, retries int) {
	wait := longestPause
	if retries < 5 {
		wait = firstPause << retries
	}
	wait = wait/2 + rand.N(wait/2) //nolint:gosec // spreads attempts
	until := l.cfg.Clock.Now().Add(wait)
	timer := l.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		now := l.cfg.Clock.Now()
		l.tick(now)
		if !now.Before(until) || l.leader() != from {
			return
		}
		timer.Reset(min(until.Sub(now), firstPause))
	}
}

// tick does what time alone asks for.
func (l *Link) tick(now time.Time) {
	l.age.Set(l.fresh.age().Seconds())
	l.inbox.expire(now)
}

// forget makes others' load unknown, for want of a leader's word. The session, if
// there is one, ends: what it has told is gone.
func (l *Link) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.session.cancel(errSilent)
		l.session = nil
	}
	l.cfg.Table.ForgetOthers()
	if l.gateways.Value() > 1 {
		l.cfg.Logger.Warn("load hub: others' load is not known any more; routing by own load alone")
	}
	l.gateways.Set(0)
}

// begin makes s the session whose words count, and end takes that away.
func (l *Link) begin(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session = s
}

func (l *Link) end(s *session) (joined bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session == s {
		l.session = nil
	}
	return s.joined
}

// take brings in what the leader said in session s: what the others have, if that
// changed, and how many words of this gateway it has heard.
func (l *Link) take(s *session, others *load.Vector, heard uint64, gateways int) {
	l.mu.Lock()
	current := l.session == s
	if current {
		if !s.joined {
			l.cfg.Logger.Info("load hub: others' load is known", "leader", s.leader, "gateways", gateways)
		}
		s.joined = true
		if others != nil {
			l.cfg.Table.SetOthers(others)
		}
		l.cfg.Table.Changes().Heard(heard, gateways)
		l.gateways.Set(float64(gateways))
	}
	l.mu.Unlock()
	if current {
		l.fresh.heard() // without the lock, which forget takes inside of fresh
	}
}

// follow exchanges with the leader until either side ends it.
func (l *Link) follow(ctx context.Context, to leader) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	me := &session{leader: to.id, cancel: cancel}
	l.begin(me)
	defer func() { l.counted(l.end(me), err) }()
	heard := newSilence(l.cfg.Clock, func() { cancel(errSilent) })
	defer heard.stop()
	heard.heard()
	conn, err := l.cfg.Dial(ctx, to.id, to.addr)
	if err != nil {
		return err
	}
	client, err := clientOver(conn)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	// The connection goes first: gRPC's farewell over one that stands still takes
	// seconds.
	defer func() { err = errors.Join(err, closed(conn), client.Close()) }()
	stream, err := hub.NewHubClient(client).Exchange(ctx)
	if err != nil {
		return err
	}
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer cancel(nil)
	receiver.Go(func() { cancel(l.receive(stream, me, heard)) })
	return l.report(ctx, stream, to)
}

func (l *Link) counted(joined bool, err error) {
	outcome := "joined"
	if !joined {
		outcome = "failed"
	}
	l.cfg.Registry.Counter(measure.HubConnects, outcome).Inc()
	if reason := reasonOf(err); reason != "" {
		l.cfg.Registry.Counter(measure.HubCuts, "gateway", reason).Inc()
	}
}

// closed closes a connection that may be closed already.
func closed(conn net.Conn) error {
	if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// clientOver speaks gRPC over one connection and never opens another.
func clientOver(conn net.Conn) (*grpc.ClientConn, error) {
	var once atomic.Bool
	return grpc.NewClient("passthrough:///hub",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if once.Swap(true) {
				return nil, net.ErrClosed
			}
			return conn, nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the connection is secured already
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)
}

// receive takes the leader's words. Its error says why there are no more.
func (l *Link) receive(stream hub.Hub_ExchangeClient, me *session, heard *silence) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errMoved
		}
		if err != nil {
			return err
		}
		heard.heard()
		l.received.Inc()
		if err := checkSamples(m.GetSamples()); err != nil {
			return err
		}
		var others *load.Vector
		if m.GetLoads() != nil {
			v, err := toVector(m.GetLoads(), load.MaxGateways)
			if err != nil {
				return err
			}
			others = &v
		}
		l.inbox.put(m.GetSamples(), l.cfg.Clock.Now())
		l.take(me, others, m.GetHeard(), int(min(m.GetGateways(), load.MaxGateways)))
	}
}

// report sends what this gateway has: all at first, then what changed.
func (l *Link) report(ctx context.Context, stream hub.Hub_ExchangeClient, to leader) error {
	changes := l.cfg.Table.Changes()
	p := newPace(l.cfg.Clock)
	defer p.stop()
	var (
		own   load.Vector
		loads hub.Loads
		m     = hub.ExchangeRequest{Hello: &hub.Hello{Gateway: l.cfg.Gateway, Incarnation: l.cfg.Incarnation}}
		words = newReports(l.cfg.Traffic)
	)
	for first := true; ; first = false {
		now, err := p.next(ctx, changes.Ready(), nil, func(now time.Time) (bool, error) {
			l.tick(now)
			if l.leader() != to {
				return false, errMoved
			}
			return false, nil
		})
		if err != nil {
			return err
		}
		// The message and its columns are used again: gRPC has encoded them when Send
		// returns.
		if first {
			changes.Whole(&own)
		} else {
			m.Hello = nil
			p.dirty = changes.Take(&own)
		}
		m.Loads = nil
		if own.Whole || own.Len() > 0 {
			m.Loads = fromVector(&own, &loads)
		}
		m.Traffic = nil
		if news, due := words.due(now); due {
			m.Traffic = fromTotals(news)
		}
		if err := stream.Send(&m); err != nil {
			<-ctx.Done() // the receiver knows why
			return context.Cause(ctx)
		}
		l.sent.Inc()
	}
}
