package zmtp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrPeer means that the connection to answer by is gone.
var ErrPeer = errors.New("zmtp: no such peer")

// Sub receives what publishers send under its topics.
type Sub struct{ *socket }

// NewSub makes a subscriber to every message whose first frame begins with one
// of topics; the empty topic is all.
func NewSub(o Options, topics ...string) *Sub {
	s := &Sub{newSocket("SUB", o)}
	s.joined = func(p *peer) {
		for _, t := range topics {
			// Before 3.1 a subscription is a message, since then a command.
			if p.minor < 1 {
				p.hello = appendFrame(p.hello, append([]byte{1}, t...), 0)
			} else {
				p.hello = appendCommand(p.hello, "SUBSCRIBE", []byte(t))
			}
		}
	}
	return s
}

// Recv waits for the next message. It fails with ErrClosed or ctx's error.
func (s *Sub) Recv(ctx context.Context) (Inbound, error) { return s.recv(ctx) }

// Pub sends to all subscribers and waits for none.
type Pub struct {
	*socket
	dropped atomic.Uint64
}

// NewPub makes a publisher.
func NewPub(o Options) *Pub {
	o.Announce = false // nobody would receive it
	p := &Pub{socket: newSocket("PUB", o)}
	p.receive = func(from *peer, frames [][]byte) bool {
		if len(frames) == 1 && len(frames[0]) > 0 {
			switch topic := string(frames[0][1:]); frames[0][0] {
			case 1:
				from.subscribe(topic)
			case 0:
				from.unsubscribe(topic)
			}
		}
		return false
	}
	return p
}

// Publish sends a message to every subscriber whose queue has room. It does not
// wait, and keeps the frames: the caller must not change them.
func (p *Pub) Publish(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, to := range p.peers {
		if !to.wants(frames[0]) {
			continue
		}
		select {
		case to.out <- frames:
		default:
			p.dropped.Add(1)
		}
	}
}

// Dropped counts the messages that a subscriber did not get because it was slow.
func (p *Pub) Dropped() uint64 { return p.dropped.Load() }

// Subscribers is the number of connections that want messages with this first
// frame.
func (p *Pub) Subscribers(topic string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, to := range p.peers {
		if to.wants([]byte(topic)) {
			n++
		}
	}
	return n
}

// Dealer sends to and receives from any peer it is connected to.
type Dealer struct{ *socket }

// NewDealer makes a dealer.
func NewDealer(o Options) *Dealer { return &Dealer{newSocket("DEALER", o)} }

// Send hands the message to a connection, waiting for one to come up and to have
// room. That it was sent does not mean that it arrived. The caller must not
// change the frames. It fails with ErrClosed or ctx's error.
func (d *Dealer) Send(ctx context.Context, frames ...[]byte) error {
	for {
		p, changed := d.find(0)
		if p == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return ctx.Err()
			case <-d.ctx.Done():
				return ErrClosed
			}
		}
		err := d.send(ctx, p, frames)
		if !errors.Is(err, ErrPeer) {
			return err
		}
	}
}

// Recv waits for the next message. It fails with ErrClosed or ctx's error.
func (d *Dealer) Recv(ctx context.Context) (Inbound, error) { return d.recv(ctx) }

// Router receives from many peers and answers each.
type Router struct{ *socket }

// NewRouter makes a router.
func NewRouter(o Options) *Router { return &Router{newSocket("ROUTER", o)} }

// Recv waits for the next message. It fails with ErrClosed or ctx's error.
func (r *Router) Recv(ctx context.Context) (Inbound, error) { return r.recv(ctx) }

// Send answers by the connection that a message came by, waiting for room. It
// fails with ErrPeer when that is gone, with ErrClosed or ctx's error. The caller
// must not change the frames.
func (r *Router) Send(ctx context.Context, peer uint64, frames ...[]byte) error {
	p, _ := r.find(peer)
	if p == nil || peer == 0 {
		return fmt.Errorf("%w: %d", ErrPeer, peer)
	}
	return r.send(ctx, p, frames)
}

func (s *socket) send(ctx context.Context, p *peer, frames [][]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("%w: a message without frames", ErrProtocol)
	}
	select {
	case p.out <- frames:
		return nil
	case <-p.gone:
		return fmt.Errorf("%w: %d", ErrPeer, p.id)
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return ErrClosed
	}
}
