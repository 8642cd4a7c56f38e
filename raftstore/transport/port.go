package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/raftstore/identity"
)

// The protocols of a node's port, as negotiated by ALPN.
const (
	ProtoCore   = "ym-core/1"   // Raft, group core
	ProtoPrefix = "ym-prefix/1" // Raft, group prefix
	ProtoPeer   = "ym-peer/1"   // gRPC between members
	ProtoCall   = "ym-call/1"   // proposals and questions to a leader, package call
	ProtoHub    = "ym-hub/1"    // gRPC of the load hub
)

// PortConfig says how a port behaves. Zero bounds and durations mean the
// defaults.
type PortConfig struct {
	Listener net.Listener       // TCP; owned by the port from now on
	Identity *identity.Identity // required

	MaxConns         int           // inbound connections, all peers together, 4,096
	MaxPerPeer       int           // inbound connections of one peer, 256
	HandshakeTimeout time.Duration // from accept, or from dialling, to the first byte of a protocol, 5 s
	RPCTimeout       time.Duration // of a Raft request and its answer, 3 s

	// Dialer opens the TCP connections; nil is the machine's network. Tests put
	// faults here.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

	// stall is how long a snapshot may make no progress, stallTimeout; tests
	// have less patience.
	stall time.Duration

	Registry *measure.Registry // nil counts nowhere
	Logger   *slog.Logger      // nil is silence
}

const (
	defaultMaxConns         = 4096
	defaultMaxPerPeer       = 256
	defaultHandshakeTimeout = 5 * time.Second

	// maxHandshakes bounds connections of which nobody knows yet whose they are.
	maxHandshakes = 256
	// backlog bounds a protocol's connections that it has not accepted yet.
	backlog = 64
	// closeGrace is how long a closing connection may take to say goodbye.
	closeGrace = 250 * time.Millisecond
)

func (c PortConfig) withDefaults() PortConfig {
	if c.MaxConns <= 0 {
		c.MaxConns = defaultMaxConns
	}
	if c.MaxPerPeer <= 0 {
		c.MaxPerPeer = defaultMaxPerPeer
	}
	if c.HandshakeTimeout <= 0 {
		c.HandshakeTimeout = defaultHandshakeTimeout
	}
	if c.RPCTimeout <= 0 {
		c.RPCTimeout = defaultRPCTimeout
	}
	if c.stall <= 0 {
		c.stall = stallTimeout
	}
	if c.Dialer == nil {
		c.Dialer = new(net.Dialer).DialContext
	}
	if c.Registry == nil {
		c.Registry = new(measure.Registry)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Port is a node's one door for its peers: a TCP port on which every protocol
// between nodes is spoken, each under its ALPN name, over mutually verified
// TLS. It is safe for concurrent use.
type Port struct {
	cfg PortConfig
	id  *identity.Identity
	log *slog.Logger

	ctx    context.Context // the port's life
	cancel context.CancelFunc
	tasks  sync.WaitGroup // accepting and shaking hands

	table    table
	waiting  waiting
	refusals limiter

	closing sync.Once
	done    error
}

// NewPort starts to accept on the listener. A protocol is refused until its
// Listener was asked for. The caller must Close the port.
func NewPort(cfg PortConfig) *Port {
	cfg = cfg.withDefaults()
	p := &Port{cfg: cfg, id: cfg.Identity, log: cfg.Logger}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.table.init(cfg)
	p.waiting.slots = make(chan struct{}, maxHandshakes)
	p.tasks.Go(p.accept)
	p.tasks.Go(p.sweep)
	return p
}

// Addr is where the port listens.
func (p *Port) Addr() net.Addr { return p.cfg.Listener.Addr() }

// NodeID is whose port it is.
func (p *Port) NodeID() string { return p.id.NodeID() }

// Conns counts the open connections, both ways.
func (p *Port) Conns() int { return p.table.size() }

// Close ends the listeners and every connection and waits until nothing of the
// port runs any more. Peers are told within a bound, then cut off; a stuck one
// holds nothing up. It may be called again.
func (p *Port) Close() error {
	p.closing.Do(func() {
		p.cancel()
		p.done = p.cfg.Listener.Close()
		p.waiting.abort()
		p.table.close()
		p.tasks.Wait()
	})
	return p.done
}

// accept takes connections off the network. It is never held up by any of them
// but for the bound on handshakes.
func (p *Port) accept() {
	pause := time.Duration(0)
	for {
		raw, err := p.cfg.Listener.Accept()
		if err != nil {
			if p.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors, most likely: it passes or it does not, and
			// spinning helps neither way.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			p.log.Error("the peer port cannot accept", "error", err, "again_in", pause)
			if !sleep(p.ctx, pause) {
				return
			}
			continue
		}
		pause = 0
		h, ok := p.waiting.enter(p.ctx, raw)
		if !ok {
			_ = raw.Close()
			return
		}
		p.tasks.Go(func() {
			defer p.waiting.leave(h)
			p.welcome(raw)
		})
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// welcome shakes hands with whoever called and gives the connection to its
// protocol.
func (p *Port) welcome(raw net.Conn) {
	deadline := time.Now().Add(p.cfg.HandshakeTimeout)
	_ = raw.SetDeadline(deadline)
	tune(raw)
	ctx, cancel := context.WithDeadline(p.ctx, deadline)
	defer cancel()
	conf := p.id.ServerTLS(p.table.protos()...)
	// The certificate is verified after the handshake, so that a refusal can
	// say why.
	conf.VerifyConnection = nil
	secured := tls.Server(raw, conf)
	if err := secured.HandshakeContext(ctx); err != nil {
		p.refuse(raw, "", explainAccept(err))
		_ = raw.Close()
		return
	}
	c, why := p.admit(raw, secured)
	if why != nil {
		p.refuse(raw, c.PeerID, why)
		_, _ = secured.Write([]byte{answerTo(why)})
		_ = c.Close()
		return
	}
	if _, err := secured.Write([]byte{answerWelcome}); err != nil {
		p.table.keep(c.listener)
		_ = c.Close()
		return
	}
	_ = secured.SetDeadline(time.Time{})
	c.listener.push(c)
}

// admit verifies who calls and finds a place for the connection. The
// connection is given in any case, to be closed.
func (p *Port) admit(raw net.Conn, secured *tls.Conn) (*Conn, error) {
	state := secured.ConnectionState()
	c := &Conn{Conn: secured, raw: raw, port: p, Proto: state.NegotiatedProtocol, inbound: true}
	peer, err := p.id.Verify(state, useClient)
	if err != nil {
		return c, err
	}
	c.PeerID, c.authority = peer.ID, peer.Authority
	if c.Proto == "" {
		return c, fmt.Errorf("%w: none was named", ErrNoProtocol)
	}
	return c, p.table.admit(c)
}

// Dial connects to a node. peerID is demanded; "" accepts any member, whose id
// is then in the connection. ctx and the handshake's timeout both bound it. An
// error is a *DialError, which says in a sentence what is wrong, and wraps a
// sentinel of this package or of package identity where one fits.
func (p *Port) Dial(ctx context.Context, peerID, addr, proto string) (*Conn, error) {
	c, err := p.dial(ctx, peerID, addr, proto)
	if err != nil {
		return nil, &DialError{Peer: peerID, Addr: addr, Proto: proto, Err: err}
	}
	return c, nil
}

func (p *Port) dial(ctx context.Context, peerID, addr, proto string) (*Conn, error) {
	ctx, cancel := p.bound(ctx)
	defer cancel()
	raw, err := p.cfg.Dialer(ctx, "tcp", addr)
	if err != nil {
		if p.ctx.Err() != nil {
			return nil, ErrClosed
		}
		return nil, err
	}
	c, err := p.greet(ctx, raw, peerID, proto)
	if err != nil {
		_ = raw.Close()
		if p.ctx.Err() != nil {
			return nil, ErrClosed
		}
		return nil, explainDial(ctx, err)
	}
	return c, nil
}

// bound ends a caller's context with the handshake's time and with the port.
func (p *Port) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	stop := context.AfterFunc(p.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// greet shakes hands with whom was dialled and reads the answer.
func (p *Port) greet(ctx context.Context, raw net.Conn, peerID, proto string) (*Conn, error) {
	tune(raw)
	secured := tls.Client(raw, p.id.ClientTLS(peerID, proto))
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	// In TLS 1.3 the dialler is done before the listener has looked at its
	// certificate. The answer makes a refusal an error here, not of the first
	// use.
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	var answer [1]byte
	_, err := secured.Read(answer[:])
	if !stop() {
		return nil, errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return nil, err
	}
	if err := refusalOf(answer[0]); err != nil {
		return nil, err
	}
	peer, err := p.id.Verify(secured.ConnectionState(), useServer)
	if err != nil {
		return nil, err
	}
	c := &Conn{Conn: secured, raw: raw, port: p, PeerID: peer.ID, Proto: proto, authority: peer.Authority}
	return c, p.table.track(c)
}
