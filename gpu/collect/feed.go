package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Link is one open stream to a planner. A gRPC client stream fulfils it. It
// ends with the context that it was opened with.
type Link interface {
	Send(*control.FeedRequest) error
	Recv() (*control.FeedResponse, error)
	CloseSend() error
}

// Config says whose events go where. Worker, Epoch, Open and Sources are
// required.
type Config struct {
	Worker fleet.WorkerID
	// Epoch is the worker's present incarnation, 0 for none. It must not block.
	Epoch func() fleet.Epoch
	// Open opens a stream to the planner that leads.
	Open func(context.Context) (Link, error)
	// Scope is the engine's: its base model and compatibility group.
	Scope   prefix.Scope
	Sources []Source
	// MaxBlocks bounds the blocks followed; 0 means 4 million.
	MaxBlocks int

	Clock    clock.Clock       // nil means the machine's
	Registry *measure.Registry // nil counts nowhere
	Logger   *slog.Logger      // nil discards
}

const (
	// flushEvery is how long changes are gathered before they are sent.
	flushEvery = 5 * time.Millisecond
	// window is the frames sent and not acknowledged, 1 MiB at the most. While it
	// is full, changes gather in the mirror.
	window = 64
	// linkTimeout bounds each wait for the planner: for a position, for an
	// acknowledgement, for room to send.
	linkTimeout = 10 * time.Second
	// epochPoll is how soon a new epoch is noticed without any event.
	epochPoll              = 100 * time.Millisecond
	minBackoff, maxBackoff = 50 * time.Millisecond, 2 * time.Second
)

// Feed carries the events of one worker's engine to the planner.
type Feed struct {
	cfg    Config
	mirror *Mirror
	sent   []prefix.Frame // not acknowledged, oldest first
	mended uint64         // the number of the last repair

	frames, repairs, refused measure.Counter

	held  measure.Gauge
	shown uint64 // of the refused blocks
}

// NewFeed checks the configuration. Nothing runs yet.
func NewFeed(cfg Config) (*Feed, error) {
	if cfg.Worker == "" || cfg.Epoch == nil || cfg.Open == nil || len(cfg.Sources) == 0 {
		return nil, errors.New("collect: a feed needs a worker, its epoch, a planner and sources")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Registry == nil {
		cfg.Registry = &measure.Registry{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Feed{
		cfg: cfg, mirror: NewMirror(cfg.MaxBlocks),
		frames:  cfg.Registry.Counter(measure.FeedFrames),
		repairs: cfg.Registry.Counter(measure.FeedRepairs),
		refused: cfg.Registry.Counter(measure.FeedRefused),
		held:    cfg.Registry.Gauge(measure.FeedBlocks),
	}, nil
}

// Mirror is what the engine is believed to hold.
func (f *Feed) Mirror() *Mirror { return f.mirror }

// Run follows the sources and feeds the planner until ctx ends. An absent
// planner is no error: changes gather until it is back.
func (f *Feed) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, s := range f.cfg.Sources {
		t := NewTranslator(f.mirror, f.cfg.Scope)
		tasks.Go(func() { f.follow(ctx, s, t) })
	}
	pause := minBackoff
	for complaint := ""; ctx.Err() == nil; {
		epoch := f.cfg.Epoch()
		if epoch == 0 {
			f.sleep(ctx, epochPoll)
			continue
		}
		began := f.cfg.Clock.Now()
		err := f.session(ctx, epoch)
		switch {
		case ctx.Err() != nil, err == nil:
			continue // at an end, or another epoch
		case f.cfg.Clock.Now().Sub(began) > maxBackoff:
			pause, complaint = minBackoff, ""
		}
		if err.Error() != complaint {
			complaint = err.Error()
			f.cfg.Logger.Info("no feed of KV events to the planner; trying again", "worker", f.cfg.Worker, "error", err)
		}
		f.sleep(ctx, pause/2+rand.N(pause/2+1))
		pause = min(2*pause, maxBackoff)
	}
}

// follow runs a source, again and again should it fail.
func (f *Feed) follow(ctx context.Context, s Source, t *Translator) {
	for ctx.Err() == nil {
		if err := s.Run(ctx, t); err != nil && ctx.Err() == nil {
			f.cfg.Logger.Warn("KV events of the engine cannot be read; trying again", "worker", f.cfg.Worker, "error", err)
			t.Apply(Event{Kind: Cleared})
			f.sleep(ctx, maxBackoff)
		}
	}
}

func (f *Feed) sleep(ctx context.Context, d time.Duration) {
	timer := f.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

// session feeds one planner under one epoch. It returns nil when the epoch is
// over.
func (f *Feed) session(ctx context.Context, epoch fleet.Epoch) error {
	ctx, cancel := context.WithCancel(ctx)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer cancel()
	link, err := f.cfg.Open(ctx)
	if err != nil {
		return err
	}
	s := &session{Feed: f, link: link, epoch: epoch, cancel: cancel, answers: make(chan *control.FeedResponse, window), broken: make(chan error, 1)}
	receiver.Go(func() { s.receive(ctx) })
	return s.run(ctx)
}

// session is one open link.
type session struct {
	*Feed
	link    Link
	epoch   fleet.Epoch
	cancel  context.CancelFunc
	answers chan *control.FeedResponse
	broken  chan error
	mends   int // repairs in a row that were not acknowledged
}

func (s *session) receive(ctx context.Context) {
	for {
		m, err := s.link.Recv()
		if err != nil {
			s.broken <- err
			return
		}
		select {
		case s.answers <- m:
		case <-ctx.Done():
			return
		}
	}
}

// maxMends is how many repairs in a row may fail before the feed pauses.
const maxMends = 3

// errNoAgreement means that repairs do not bring the planner to the worker's
// state.
var errNoAgreement = errors.New("collect: the planner stays of another mind after repairs")

// errSilent means that the planner did not answer in time.
var errSilent = errors.New("collect: the planner does not answer")

func (s *session) run(ctx context.Context) error {
	hello := &control.FeedHello{Worker: string(s.cfg.Worker), Epoch: uint64(s.epoch)}
	if err := s.send(&control.FeedRequest{Body: &control.FeedRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	poll := s.cfg.Clock.NewTimer(epochPoll)
	defer poll.Stop()
	heard := s.cfg.Clock.Now() // when something was last acknowledged, or nothing was due
	for {
		wake := s.mirror.wake
		if len(s.sent) >= window {
			wake = nil
		}
		if len(s.sent) == 0 {
			heard = s.cfg.Clock.Now()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.broken:
			return err
		case m := <-s.answers:
			heard = s.cfg.Clock.Now()
			if err := s.answer(m); err != nil {
				return err
			}
		case <-wake:
			s.sleep(ctx, flushEvery)
			if err := s.flush(); err != nil {
				return err
			}
		case <-poll.C():
			poll.Reset(epochPoll)
			s.show()
			if s.cfg.Epoch() != s.epoch {
				return s.link.CloseSend()
			}
			if s.cfg.Clock.Now().Sub(heard) > linkTimeout {
				return errSilent
			}
		}
	}
}

// show sets the gauges.
func (f *Feed) show() {
	stats := f.mirror.Stats()
	f.held.Set(float64(stats.Held))
	f.refused.Add(float64(stats.Refused - f.shown))
	f.shown = stats.Refused
}

// open waits for the first position.
func (s *session) open(ctx context.Context) error {
	timer := s.cfg.Clock.NewTimer(linkTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-s.broken:
		return err
	case <-timer.C():
		return errSilent
	case m := <-s.answers:
		if m.GetPosition() == nil {
			return fmt.Errorf("%w: no position at first", prefix.ErrMalformed)
		}
		return s.answer(m)
	}
}

func (s *session) answer(m *control.FeedResponse) error {
	if m.GetPosition() == nil {
		s.mends = 0
		s.acknowledge(m.GetApplied())
		return s.flush()
	}
	p, err := control.ToPosition(m.GetPosition())
	if err != nil {
		return err
	}
	return s.resume(&p)
}

func (s *session) acknowledge(last uint64) {
	n := 0
	for n < len(s.sent) && s.sent[n].Last <= last {
		n++
	}
	s.sent = append(s.sent[:0], s.sent[n:]...)
}

// resume goes on from a position: with the frames sent since, if they are still
// here and the planner's belief was right, else with a repair.
func (s *session) resume(p *prefix.Position) error {
	s.acknowledge(p.Last)
	next := len(s.sent) > 0 && s.sent[0].First == p.Last+1 && s.sent[0].Epoch == s.epoch
	if !p.Exact || (!next && (len(s.sent) > 0 || !s.mirror.at(p.Last))) {
		return s.mend(p)
	}
	for i := range s.sent {
		if err := s.sendFrame(&s.sent[i]); err != nil {
			return err
		}
	}
	return s.flush()
}

// flush sends what has changed, as far as the window allows.
func (s *session) flush() error {
	for len(s.sent) < window {
		frame, ok := s.mirror.next()
		if !ok {
			return nil
		}
		frame.Worker, frame.Epoch = s.cfg.Worker, s.epoch
		s.sent = append(s.sent, frame)
		if err := s.sendFrame(&frame); err != nil {
			return err
		}
	}
	return nil
}

// mend tells the buckets in which the planner's belief differs. Its end is
// acknowledged like a frame, so it stands among them; it cannot be resent, which
// its First, 0, says.
func (s *session) mend(p *prefix.Position) error {
	if s.mends++; s.mends > maxMends {
		return errNoAgreement
	}
	r := s.mirror.repair(&p.Sums)
	s.mended = max(s.mended, p.Repair) + 1
	s.repairs.Inc()
	s.cfg.Logger.Info("telling the planner what the engine holds", "worker", s.cfg.Worker,
		"buckets", r.buckets.Len(), "blocks", len(r.blocks))
	frame := prefix.Frame{Kind: prefix.FrameBegin, Worker: s.cfg.Worker, Epoch: s.epoch, Repair: s.mended, Buckets: r.buckets}
	if err := s.sendFrame(&frame); err != nil {
		return err
	}
	frame.Buckets = prefix.Buckets{}
	for ; len(r.blocks) > 0; frame.Part++ {
		n := min(len(r.blocks), prefix.MaxFrameBlocks)
		frame.Kind, frame.Stores, r.blocks = prefix.FramePart, r.blocks[:n], r.blocks[n:]
		if err := s.sendFrame(&frame); err != nil {
			return err
		}
	}
	frame.Kind, frame.Stores, frame.Last, frame.Sum = prefix.FrameEnd, nil, r.last, r.sum
	s.sent = append(s.sent[:0], frame)
	return s.sendFrame(&frame)
}

func (s *session) sendFrame(f *prefix.Frame) error {
	s.frames.Inc()
	return s.send(&control.FeedRequest{Body: &control.FeedRequest_Frame{Frame: control.FromFrame(f)}})
}

// send waits for room in the stream no longer than linkTimeout.
func (s *session) send(m *control.FeedRequest) error {
	watch := s.cfg.Clock.AfterFunc(linkTimeout, s.cancel)
	defer watch.Stop()
	return s.link.Send(m)
}
