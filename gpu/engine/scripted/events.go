package scripted

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/yardmaster/yardmaster/core/wire/kvevent"
)

type publisher struct{}

func newPublisher(context.Context, *Engine, int, EventsScript) (*publisher, error) {
	return &publisher{}, nil
}
func (p *publisher) publish([]kvevent.Event) {}
func (p *publisher) close() error            { return nil }
func (p *publisher) setScript(EventsScript)  {}
func (p *publisher) addrs() (string, string) { return "", "" }

// rankAddr is addr with the rank added to a non-zero port.
func rankAddr(addr string, rank int) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("port of %q is no number", addr)
	}
	if n > 0 {
		n += uint64(rank)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}
