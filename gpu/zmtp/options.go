package zmtp

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Options bound a socket. The zero value of each field means its default.
type Options struct {
	// MaxMessage bounds a received message in bytes (64 MiB), MaxFrames its frames
	// (64). A peer beyond either is disconnected.
	MaxMessage, MaxFrames int
	// Queue is the messages that wait, received ones per socket and unsent ones per
	// connection; default 1000.
	Queue int
	// MaxPeers bounds accepted connections; default 1024.
	MaxPeers int
	// DialTimeout, HandshakeTimeout and WriteTimeout bound what their names say;
	// default 5, 5 and 10 seconds.
	DialTimeout, HandshakeTimeout, WriteTimeout time.Duration
	// ReconnectMin is the pause after the first lost connection; it doubles up to
	// ReconnectMax. Default 100 ms and 5 s, each ± 25 %.
	ReconnectMin, ReconnectMax time.Duration
	// Heartbeat is the silence after which a 3.1 peer is pinged; one that has
	// answered pings before is given up after three times as long. Default 10 s.
	Heartbeat time.Duration
	// Announce has Recv also return a message without frames for each connection
	// that comes up, before those that it brings. A Pub, which receives nothing,
	// ignores it.
	Announce bool
}

func (o Options) withDefaults() Options {
	setDefault(&o.MaxMessage, 64<<20)
	setDefault(&o.MaxFrames, 64)
	setDefault(&o.Queue, 1000)
	setDefault(&o.MaxPeers, 1024)
	setDefault(&o.DialTimeout, 5*time.Second)
	setDefault(&o.HandshakeTimeout, 5*time.Second)
	setDefault(&o.WriteTimeout, 10*time.Second)
	setDefault(&o.ReconnectMin, 100*time.Millisecond)
	setDefault(&o.ReconnectMax, 5*time.Second)
	setDefault(&o.Heartbeat, 10*time.Second)
	return o
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// ErrEndpoint means an endpoint that is neither tcp://host:port nor ipc://path.
var ErrEndpoint = errors.New("zmtp: bad endpoint")

// parseEndpoint gives net's names for an endpoint. To bind, the host may be *.
func parseEndpoint(endpoint string, bind bool) (network, address string, err error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return "unix", path, nil
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", "", fmt.Errorf("%w: %q is neither tcp:// nor ipc://", ErrEndpoint, endpoint)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return "", "", fmt.Errorf("%w: %q has no host and port", ErrEndpoint, endpoint)
	}
	if host == "*" {
		if !bind {
			return "", "", fmt.Errorf("%w: cannot connect to %q", ErrEndpoint, endpoint)
		}
		host = ""
	}
	return "tcp", net.JoinHostPort(host, port), nil
}
