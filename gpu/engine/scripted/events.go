package scripted

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/core/wire/kvevent"
	"github.com/yardmaster/yardmaster/gpu/zmtp"
)

// Bounds of what replay remembers.
const (
	defaultReplay  = 10_000
	maxReplayBytes = 64 << 20
)

// replaySend bounds the wait for a slow reader of a replay.
const replaySend = 10 * time.Second

// publisher sends one rank's KV events and replays them on request.
type publisher struct {
	engine *Engine
	rank   int
	pub    *zmtp.Pub
	router *zmtp.Router
	tasks  sync.WaitGroup
	pubAt  string // host:port
	replay string

	mu     sync.Mutex
	script EventsScript
	next   uint64 // sequence number
	ring   []kvevent.Message
	bytes  int
	late   *kvevent.Message // waits for its successor
	reset  bool             // the numbers have been restarted
}

// newPublisher binds or connects the sockets of a rank, at the addresses of the
// incarnation before when there was one.
func newPublisher(ctx context.Context, e *Engine, rank int, script EventsScript) (*publisher, error) {
	p := &publisher{engine: e, rank: rank, script: script, pub: zmtp.NewPub(zmtp.Options{})}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("scripted: KV events of rank %d: %w", rank, err), p.close())
	}
	e.keepEventAddrs(rank, p.pubAt, p.replay)
	return p, nil
}

func (p *publisher) open(ctx context.Context) (err error) {
	before := p.engine.eventAddrs(p.rank)
	if p.pubAt, err = rankAddr(p.script.Publish, p.rank); err != nil {
		return err
	}
	if p.script.Connect {
		err = p.pub.Connect("tcp://" + p.pubAt)
	} else {
		p.pubAt, err = bindAt(ctx, p.pub, orDefault(before[0], p.pubAt))
	}
	if err != nil || p.script.Replay == "" {
		return err
	}
	if p.replay, err = rankAddr(p.script.Replay, p.rank); err != nil {
		return err
	}
	p.router = zmtp.NewRouter(zmtp.Options{})
	if p.replay, err = bindAt(ctx, p.router, orDefault(before[1], p.replay)); err != nil {
		return err
	}
	p.tasks.Go(func() { p.serveReplay(ctx) })
	return nil
}

// binder is a socket that can listen.
type binder interface {
	Bind(ctx context.Context, endpoint string) (net.Addr, error)
}

// bindAt listens at addr. While the engine was away some client's connection may have
// got the port for a moment.
func bindAt(ctx context.Context, s binder, addr string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	for {
		got, err := s.Bind(ctx, "tcp://"+addr)
		if err == nil {
			return got.String(), nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-time.After(bindPause):
		}
	}
}

// bindTime is how long a port that is taken is waited for, bindPause the time between
// tries.
const bindTime, bindPause = 2 * time.Second, 20 * time.Millisecond

func (p *publisher) addrs() (publish, replay string) { return p.pubAt, p.replay }

func (p *publisher) setScript(s EventsScript) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

func (p *publisher) close() error {
	err := p.pub.Close()
	if p.router != nil {
		err = errors.Join(err, p.router.Close())
	}
	p.tasks.Wait()
	return err
}

// publish sends a step's events as one message, as the script wants it.
func (p *publisher) publish(events []kvevent.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.script
	if s.RestartAt > 0 && p.next == s.RestartAt && !p.reset {
		p.next, p.ring, p.bytes, p.reset = 0, nil, 0, true
	}
	m := kvevent.Message{Topic: []byte(s.Topic), Seq: p.next, Payload: p.encode(events)}
	p.next++
	if slices.Contains(s.Garbage, m.Seq) {
		m.Payload = []byte("garbage")
	}
	if !slices.Contains(s.Forget, m.Seq) {
		p.remember(m)
	}
	if slices.Contains(s.Swap, m.Seq) && p.late == nil {
		p.late = &m
		return
	}
	p.send(m)
	if p.late != nil {
		p.send(*p.late)
		p.late = nil
	}
}

func (p *publisher) encode(events []kvevent.Event) []byte {
	s := &p.script
	f := kvevent.Format{Array: s.Format == "array", OuterMap: s.OuterMap}
	switch s.Hashes {
	case "signed":
		f.Hashes = kvevent.Signed
	case "bytes":
		f.Hashes = kvevent.Binary
	}
	now := float64(p.engine.opts.Clock.Now().UnixNano()) / 1e9
	return kvevent.Append(nil, &kvevent.Batch{Time: now, Rank: p.rank, Events: events}, f)
}

// remember keeps m for replay, and as many before it as fit.
func (p *publisher) remember(m kvevent.Message) {
	p.ring = append(p.ring, m)
	p.bytes += len(m.Payload)
	for len(p.ring) > orDefault(p.script.Buffer, defaultReplay) || p.bytes > maxReplayBytes && len(p.ring) > 1 {
		p.bytes -= len(p.ring[0].Payload)
		p.ring[0].Payload = nil
		p.ring = p.ring[1:]
	}
}

func (p *publisher) send(m kvevent.Message) {
	if slices.Contains(p.script.Drop, m.Seq) {
		return
	}
	p.pub.Publish(m.Frames()...)
	if slices.Contains(p.script.Repeat, m.Seq) {
		p.pub.Publish(m.Frames()...)
	}
}

// serveReplay answers replay requests, one at a time, as engines do.
func (p *publisher) serveReplay(ctx context.Context) {
	for {
		in, err := p.router.Recv(ctx)
		if err != nil {
			return // closed
		}
		if from, err := kvevent.ParseReplay(in.Frames); err == nil {
			p.answer(ctx, in.Peer, from)
		}
	}
}

func (p *publisher) answer(ctx context.Context, peer, from uint64) {
	p.mu.Lock()
	frames := orDefault(p.script.ReplayFrames, 3)
	var due []kvevent.Message
	for _, m := range p.ring {
		if m.Seq >= from {
			due = append(due, m)
		}
	}
	p.mu.Unlock()
	for _, m := range append(due, kvevent.Message{Seq: kvevent.EndOfReplay}) {
		out := m.Frames()[3-frames:]
		send, cancel := context.WithTimeout(ctx, replaySend)
		err := p.router.Send(send, peer, append([][]byte{{}}, out...)...)
		cancel()
		if err != nil {
			return // the reader has left or does not read
		}
	}
}

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
