package faultnet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// The ports of places lie below those that systems give to clients.
const firstPort, lastPort = 12000, 30000

// Place opens a port of the loopback that a node can leave and come back to. One
// that the system chooses may be a client's by then: clients get theirs from the
// same numbers.
func Place(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	for range 100 {
		l, err := lc.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(lastPort-firstPort))) //nolint:gosec // any will do
		if err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no port is free: %w", syscall.EADDRINUSE)
}
