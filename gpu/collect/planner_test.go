package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const self = fleet.WorkerID("w")

var scope = prefix.Scope{Base: "m", Compat: "c"}

// planner is the other end of feeds: a prefix state behind a link that can lose,
// repeat and swap frames, break, and be replaced by an empty one.
type planner struct {
	mu     sync.Mutex
	rng    *rand.Rand
	faults float64 // chance of a fault with each frame
	state  *prefix.State
	epoch  fleet.Epoch // that it takes feeds of
	links  map[*pipe]struct{}
	log    []string
	// lose says which frames to lose; nil loses by chance only.
	lose func(*prefix.Frame) bool
}

func newPlanner(seed uint64) *planner {
	return &planner{
		rng: rand.New(rand.NewPCG(seed, 1)), state: prefix.NewState(prefix.Options{}),
		epoch: 1, links: map[*pipe]struct{}{},
	}
}

func (p *planner) locked(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// restart forgets everything and cuts all links.
func (p *planner) restart() {
	p.mu.Lock()
	p.state = prefix.NewState(prefix.Options{})
	p.mu.Unlock()
	p.cut()
}

func (p *planner) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.end(errors.New("cut"))
	}
}

// pipe is one link. Its planner's half runs inside Send.
type pipe struct {
	p       *planner
	ctx     context.Context //nolint:containedctx // a stream ends with its context
	answers chan *control.FeedResponse
	once    sync.Once
	done    chan struct{}
	err     error

	epoch fleet.Epoch
	asked bool
	held  *prefix.Frame // to be sent after its successor
}

func (p *planner) open(ctx context.Context) (Link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &pipe{p: p, ctx: ctx, answers: make(chan *control.FeedResponse, 4096), done: make(chan struct{})}
	p.links[l] = struct{}{}
	return l, nil
}

func (l *pipe) end(err error) {
	l.once.Do(func() { l.err = err; close(l.done) })
}

func (l *pipe) Recv() (*control.FeedResponse, error) {
	select {
	case m := <-l.answers:
		return m, nil
	case <-l.done:
		return nil, l.err
	case <-l.ctx.Done():
		return nil, l.ctx.Err()
	}
}

func (l *pipe) CloseSend() error { l.end(io.EOF); return nil }

func (l *pipe) Send(m *control.FeedRequest) error {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	select {
	case <-l.done:
		return io.EOF
	case <-l.ctx.Done():
		return l.ctx.Err()
	default:
	}
	if h := m.GetHello(); h != nil {
		l.hello(h)
		return nil
	}
	f, err := control.ToFrame(m.GetFrame())
	if err != nil {
		l.end(err)
		return nil
	}
	l.deliver(&f)
	return nil
}

func (l *pipe) hello(h *control.FeedHello) {
	l.epoch = fleet.Epoch(h.GetEpoch())
	if l.epoch != l.p.epoch {
		l.end(errors.New("no such epoch"))
		return
	}
	l.p.state.Apply(&prefix.Frame{Kind: prefix.FrameAttach, Worker: self, Epoch: l.epoch})
	l.position()
}

func (l *pipe) position() {
	p, ok := l.p.state.Position(self, l.epoch)
	if !ok {
		l.end(errors.New("not attached"))
		return
	}
	l.asked = !p.Exact
	l.answer(&control.FeedResponse{Body: &control.FeedResponse_Position{Position: control.FromPosition(&p)}})
}

func (l *pipe) answer(m *control.FeedResponse) {
	select {
	case l.answers <- m:
	default:
		l.end(errors.New("answers are not read"))
	}
}

// deliver applies a frame, unless a fault befalls it.
func (l *pipe) deliver(f *prefix.Frame) {
	p := l.p
	lost := p.lose != nil && p.lose(f)
	if p.rng.Float64() < p.faults {
		switch p.rng.IntN(4) {
		case 0:
			lost = true
		case 1:
			l.apply(f)
		case 2:
			if l.held == nil {
				l.held = f
				return
			}
		case 3:
			l.end(errors.New("broken"))
			return
		}
	}
	if !lost {
		l.apply(f)
	}
	if late := l.held; late != nil {
		l.held = nil
		l.apply(late)
	}
}

// apply does what server/control does with a frame.
func (l *pipe) apply(f *prefix.Frame) {
	if f.Kind == prefix.FrameBegin {
		l.asked = false
	}
	out := l.p.state.Apply(f)
	l.p.log = append(l.p.log, fmt.Sprint(f, " ", out))
	switch {
	case out == prefix.Unattached:
		l.end(errors.New("unattached"))
	case out == prefix.Gap || out == prefix.Mismatch || out == prefix.Inexact:
		if !l.asked {
			l.position()
		}
	case f.Kind == prefix.FrameDelta || f.Kind == prefix.FrameEnd:
		l.answer(&control.FeedResponse{Body: &control.FeedResponse_Applied{Applied: f.Last}})
	}
}

// holds is what the state believes of the worker, and whether it is sure.
func (p *planner) holds(epoch fleet.Epoch) (blocks []prefix.Hash, exact bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.state.Table()
	row, ok := t.Find(self, epoch)
	if !ok {
		return nil, false
	}
	t.Index.Each(row.Worker, func(h prefix.Hash) { blocks = append(blocks, h) })
	slices.Sort(blocks)
	return blocks, row.Exact
}

func (m *Mirror) list() (blocks []prefix.Hash) {
	m.Each(func(h prefix.Hash) { blocks = append(blocks, h) })
	slices.Sort(blocks)
	return blocks
}
