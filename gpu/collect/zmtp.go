package collect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/wire/kvevent"
	"github.com/yardmaster/yardmaster/gpu/zmtp"
)

// ZMTP reads the events of an engine that publishes them on a ZeroMQ socket, as
// vLLM, SGLang and TensorRT-LLM do: one for each data-parallel rank.
//
// Messages are numbered. One that is missing is asked for on the replay socket,
// from which an engine sends what it remembers; so is everything at first. If
// it no longer remembers, or has no such socket, the belief of what it holds is
// cleared and begins anew. So it does when another process may have come to the
// address and no replay shows that it has the old one's messages.
type ZMTP struct {
	// Publish is the endpoint of the events, tcp://host:port or ipc://path. We
	// connect to it, or with Bind listen for the engine to connect.
	Publish string
	Bind    bool
	Replay  string // endpoint; empty when the engine has none
	Topic   string // prefix of the topics to hear; empty hears all

	Options  zmtp.Options
	Clock    clock.Clock       // nil means the machine's
	Registry *measure.Registry // nil counts nowhere
}

const (
	// quiet is the silence after which the engine is asked whether there was more:
	// nothing else tells that the last message of a burst got lost.
	quiet = 400 * time.Millisecond
	// probeEvery is how often a silent engine is asked.
	probeEvery = 30 * time.Second
	// replayStep and replayWhole bound a replay's wait for each message and for all.
	replayStep, replayWhole = 3 * time.Second, time.Minute
	// minPause is the time without replays after one that did not reach the engine
	// or that it did not finish, e.g. because it died; it doubles up to maxPause.
	minPause, maxPause = time.Second, 30 * time.Second
)

// Run hears the engine until ctx ends. Errors are of the endpoints.
func (z ZMTP) Run(ctx context.Context, t *Translator) error {
	if z.Clock == nil {
		z.Clock = clock.Real{}
	}
	if z.Registry == nil {
		z.Registry = &measure.Registry{}
	}
	z.Options.Announce = true // a new connection may be of a new process, also when it is silent
	sub := zmtp.NewSub(z.Options, z.Topic)
	defer sub.Close() //nolint:errcheck // it cannot fail
	if err := z.attach(ctx, sub); err != nil {
		return fmt.Errorf("collect: KV events: %w", err)
	}
	r := &reader{ZMTP: z}
	return r.read(ctx, sub, newBelief(t, z.Registry, r.recall))
}

func (z *ZMTP) attach(ctx context.Context, sub *zmtp.Sub) error {
	if z.Bind {
		_, err := sub.Bind(ctx, z.Publish)
		return err
	}
	return sub.Connect(z.Publish)
}

// reader reads one source. It leaves an engine alone for a while that does not
// answer, or whose answers do not help.
type reader struct {
	ZMTP
	pause  time.Duration // the last one
	paused time.Time     // its end
}

// read keeps b up to what comes by sub.
func (r *reader) read(ctx context.Context, sub *zmtp.Sub, b *belief) error {
	probe := quiet
	for {
		wait, cancel := context.WithTimeout(ctx, probe)
		in, err := sub.Recv(wait)
		cancel()
		switch {
		case err == nil:
			r.inbound(ctx, in, b)
			probe = quiet // there may have been more, before we were heard or lost since
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			b.replay(ctx)
			probe = probeEvery
			if left := r.paused.Sub(r.Clock.Now()); left > 0 {
				probe = min(left, probeEvery)
			}
		default:
			return fmt.Errorf("collect: KV events: %w", err)
		}
	}
}

func (r *reader) inbound(ctx context.Context, in zmtp.Inbound, b *belief) {
	if in.Announces() {
		r.paused = time.Time{} // nobody has met the silence of who is there now
		b.meet(ctx, in.Peer)
		return
	}
	if helped := b.hear(ctx, in); !helped {
		// Who replays may be another than who publishes. It is not asked at each message.
		r.rest(minPause)
	}
}

// rest asks for nothing for a while.
func (r *reader) rest(d time.Duration) {
	if end := r.Clock.Now().Add(d); end.After(r.paused) {
		r.paused = end
	}
}

// errNobody means that nobody can be asked, or not now; errMoved that the one who
// was asked has gone.
var (
	errNobody = errors.New("collect: no replay")
	errMoved  = errors.New("collect: connection lost over a replay")
)

// recall is a [memory].
func (r *reader) recall(ctx context.Context, from uint64, each func(*kvevent.Message) bool) error {
	if r.Replay == "" || r.Clock.Now().Before(r.paused) {
		return errNobody
	}
	ctx, cancel := context.WithTimeout(ctx, replayWhole)
	defer cancel()
	// A new socket for each replay: no answer to an earlier one comes in between.
	dealer := zmtp.NewDealer(r.Options)
	defer dealer.Close() //nolint:errcheck // it cannot fail
	if err := r.ask(ctx, dealer, from, each); err != nil {
		r.pause = min(max(2*r.pause, minPause), maxPause)
		r.rest(r.pause)
		return err
	}
	r.pause = 0
	return nil
}

func (r *reader) ask(ctx context.Context, dealer *zmtp.Dealer, from uint64, each func(*kvevent.Message) bool) error {
	if err := dealer.Connect(r.Replay); err != nil {
		return err
	}
	if err := step(ctx, func(ctx context.Context) error { return dealer.Send(ctx, kvevent.Replay(from)...) }); err != nil {
		return err
	}
	for met := false; ; {
		var in zmtp.Inbound
		if err := step(ctx, func(ctx context.Context) (err error) { in, err = dealer.Recv(ctx); return err }); err != nil {
			return err
		}
		if in.Announces() {
			if met {
				return errMoved // to a process that has not been asked
			}
			met = true
			continue
		}
		m, err := kvevent.ParseMessage(in.Frames)
		if err != nil {
			continue
		}
		if m.IsEnd() || !each(&m) {
			return nil
		}
	}
}

// step bounds one wait of a replay.
func step(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, replayStep)
	defer cancel()
	return f(ctx)
}
