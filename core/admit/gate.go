package admit

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/unit"
)

// ErrFull means that a bound of the gate is reached. Errors that wrap it are
// *errs.Error of kind Saturated: the client may come back.
var ErrFull = errors.New("gate is full")

// retryAfter is what a refused client is told to wait: in-flight work turns
// over within a second or the gateway is not the bottleneck.
const retryAfter = time.Second

// Config bounds a gate. A zero field takes its default.
type Config struct {
	// MaxInFlight is the most requests at once; default 8192.
	MaxInFlight int
	// MaxBodyBytes is the most memory that bodies hold, theirs and those of whole
	// answers; default 256 MiB.
	MaxBodyBytes unit.Bytes
}

// Gate admits requests. It is safe for concurrent use.
type Gate struct {
	maxRequests, maxBytes int64
	requests, bytes       atomic.Int64
}

// New makes a gate.
func New(c Config) *Gate {
	g := &Gate{maxRequests: int64(c.MaxInFlight), maxBytes: int64(c.MaxBodyBytes)}
	if g.maxRequests <= 0 {
		g.maxRequests = 8192
	}
	if g.maxBytes <= 0 {
		g.maxBytes = 256 << 20
	}
	return g
}

// Enter lets a request in to be read, or refuses it when the gate is full
// already. It takes no place among the requests in flight, which a client that
// never sends its body would keep: until Admit only what Hold counts is bounded.
// On success the Pass must be closed.
func (g *Gate) Enter() (*Pass, error) {
	if g.requests.Load() >= g.maxRequests {
		return nil, g.busy()
	}
	return &Pass{gate: g}, nil
}

func (g *Gate) busy() error {
	return full("the gateway is serving as many requests as it may", "requests in flight", g.maxRequests)
}

// InFlight is the number of requests admitted and not closed.
func (g *Gate) InFlight() int { return int(g.requests.Load()) }

// Pass is one request's admission. Its methods are called by one goroutine.
type Pass struct {
	gate     *Gate
	held     int64
	admitted bool
	closed   bool
}

// Admit takes the request's place among those in flight, once it has been read.
// Admitting again does nothing.
func (p *Pass) Admit() error {
	if p.admitted {
		return nil
	}
	if p.gate.requests.Add(1) > p.gate.maxRequests {
		p.gate.requests.Add(-1)
		return p.gate.busy()
	}
	p.admitted = true
	return nil
}

// Hold counts n more bytes of body, before the memory is taken.
func (p *Pass) Hold(n unit.Bytes) error {
	if p.gate.bytes.Add(int64(n)) > p.gate.maxBytes {
		p.gate.bytes.Add(-int64(n))
		return full("the gateway is holding as many bytes of bodies as it may", "body bytes", p.gate.maxBytes)
	}
	p.held += int64(n)
	return nil
}

// Free gives n bytes back that were held.
func (p *Pass) Free(n unit.Bytes) {
	p.gate.bytes.Add(-int64(n))
	p.held -= int64(n)
}

// Release gives the body's bytes back before the request ends.
func (p *Pass) Release() {
	p.gate.bytes.Add(-p.held)
	p.held = 0
}

// Close ends the admission. Closing again does nothing.
func (p *Pass) Close() {
	if p.closed {
		return
	}
	p.closed = true
	p.Release()
	if p.admitted {
		p.gate.requests.Add(-1)
	}
}

func full(client, what string, limit int64) error {
	return &errs.Error{
		Kind: errs.Saturated, Client: client, RetryAfter: retryAfter,
		Cause: fmt.Errorf("%w: %d %s", ErrFull, limit, what),
	}
}
