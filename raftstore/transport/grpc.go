package transport

import (
	"context"
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
)

const (
	// pingEvery and pingTimeout find a peer that is gone without a word, also
	// while nothing is called.
	pingEvery   = 5 * time.Second
	pingTimeout = 5 * time.Second
	// window is how much may be under way without the reader's leave. That it is given
	// keeps the library from measuring the connection, by a ping and its answer for
	// almost every call.
	window = 1 << 20
)

// GRPCServerOptions let a gRPC server run on a Listener of the port. Who calls
// is PeerID of the call's context.
func GRPCServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(secured{}),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery / 2, PermitWithoutStream: true}),
	}
}

// GRPCDialOptions let a gRPC client dial peerID over the port, "" for any
// member. The target of grpc.NewClient is "passthrough:///" and the address.
func GRPCDialOptions(p *Port, peerID, proto string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(secured{}),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return p.Dial(ctx, peerID, addr, proto)
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 2 * pingEvery, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			// The library's own waits up to two minutes; a leader is missed earlier.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithNoProxy(),
	}
}

// PeerID is the node at the other end of a gRPC call, as its certificate says.
// ok is false for a call that did not come over a port.
func PeerID(ctx context.Context) (id string, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", false
	}
	info, ok := p.AuthInfo.(authInfo)
	return info.peer, ok
}

type authInfo struct {
	credentials.CommonAuthInfo
	peer string
}

func (authInfo) AuthType() string { return "yardmaster" }

// secured are credentials for connections that are secure already.
type secured struct{}

var errNotOurs = errors.New("connection did not come from a peer port")

func (secured) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return vouch(c)
}

func (secured) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) { return vouch(c) }

func vouch(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	ours, ok := c.(*Conn)
	if !ok {
		return nil, nil, errNotOurs
	}
	return c, authInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, peer: ours.PeerID,
	}, nil
}

func (secured) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (secured) Clone() credentials.TransportCredentials { return secured{} }

func (secured) OverrideServerName(string) error { return nil }
