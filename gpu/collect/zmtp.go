package collect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

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
// cleared and begins anew. A number that goes backwards, with other content than
// before, means that the engine has restarted.
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
	// remembered is how many recent messages are told from others of the same
	// number. Engines remember 10,000 unless told otherwise.
	remembered = 1 << 14
)

// Run hears the engine until ctx ends. Errors are of the endpoints.
func (z ZMTP) Run(ctx context.Context, t *Translator) error {
	if z.Clock == nil {
		z.Clock = clock.Real{}
	}
	if z.Registry == nil {
		z.Registry = &measure.Registry{}
	}
	sub := zmtp.NewSub(z.Options, z.Topic)
	defer sub.Close() //nolint:errcheck // it cannot fail
	if err := z.attach(ctx, sub); err != nil {
		return fmt.Errorf("collect: KV events: %w", err)
	}
	r := &reader{ZMTP: z, t: t, group: anyGroup, recent: make([]seen, remembered)}
	return r.run(ctx, sub)
}

func (z *ZMTP) attach(ctx context.Context, sub *zmtp.Sub) error {
	if z.Bind {
		_, err := sub.Bind(ctx, z.Publish)
		return err
	}
	return sub.Connect(z.Publish)
}

// reader is the state of one source.
type reader struct {
	ZMTP
	t     *Translator
	batch kvevent.Batch
	group int // the KV-cache group that is followed, or anyGroup

	begun  bool
	next   uint64        // number of the message that is due
	peer   uint64        // the connection that was heard last
	heard  uint64        // and the number that came by it last
	recent []seen        // by number modulo its length
	pause  time.Duration // the last one
	paused time.Time     // its end
	// owing says that another process may have been heard while nobody could be asked:
	// what came before is not known.
	owing bool
}

// anyGroup means that no group has been seen yet.
const anyGroup = -2

// seen remembers a message.
type seen struct {
	seq, sum uint64
	ok       bool
}

func (r *reader) run(ctx context.Context, sub *zmtp.Sub) error {
	r.replayAll(ctx)
	probe := quiet // soon: something may have been published before we were heard
	for {
		wait, cancel := context.WithTimeout(ctx, probe)
		in, err := sub.Recv(wait)
		cancel()
		switch {
		case err == nil:
			r.hear(ctx, in)
			probe = quiet
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded):
			r.probe(ctx)
			probe = probeEvery
			if left := r.paused.Sub(r.Clock.Now()); left > 0 {
				probe = min(left, probeEvery)
			}
		default:
			return fmt.Errorf("collect: KV events: %w", err)
		}
	}
}

// hear takes one published message.
func (r *reader) hear(ctx context.Context, in zmtp.Inbound) {
	m, err := kvevent.ParseMessage(in.Frames)
	if err != nil || m.IsEnd() {
		return // no message of an engine; if it was to be one, its number is missing
	}
	if r.peer != in.Peer && (r.peer != 0 || r.begun) { // what was begun by a replay was of nobody that is heard
		r.paused = time.Time{} // it may be another process, whose silence nobody has met
		if r.probe(ctx); r.unanswered() {
			// Its numbers may go on where the other's ended, and mean other blocks.
			r.forget()
			r.group, r.owing = anyGroup, true
		}
	}
	// A publisher counts upwards: a number that does not exceed the one heard
	// before it is of a publisher that began anew.
	backwards := r.peer == in.Peer && m.Seq <= r.heard
	r.peer, r.heard = in.Peer, m.Seq
	switch {
	case r.begun && m.Seq == r.next, !r.begun && m.Seq == 0:
		r.take(&m)
	case r.repeated(&m):
	case !r.begun || m.Seq > r.next:
		r.fill(ctx)
		r.catchUp(ctx, &m)
	case backwards:
		r.restart(ctx)
		r.catchUp(ctx, &m)
	default: // a replay has gone beyond it
	}
}

// catchUp takes m after what was missing before it has been asked for. If some
// is missing still, the belief begins anew.
func (r *reader) catchUp(ctx context.Context, m *kvevent.Message) {
	if r.begun && m.Seq > r.next {
		r.forget()
		r.replayAll(ctx)
	}
	if !r.begun || m.Seq == r.next {
		r.take(m)
	} else if m.Seq > r.next {
		r.forget()
		r.take(m)
	}
}

// repeated reports whether exactly this message has been taken before.
func (r *reader) repeated(m *kvevent.Message) bool {
	s := r.recent[m.Seq%remembered]
	return s.ok && s.seq == m.Seq && s.sum == xxhash.Sum64(m.Payload)
}

// take applies a message, the next or the first of a new beginning.
func (r *reader) take(m *kvevent.Message) {
	unread := r.batch.Decode(m.Payload)
	if unread != nil {
		r.forget() // blocks may have gone with it
	}
	r.begun, r.next = true, m.Seq+1
	r.recent[m.Seq%remembered] = seen{m.Seq, xxhash.Sum64(m.Payload), true}
	if unread != nil {
		return
	}
	events := make([]Event, 0, len(r.batch.Events))
	for i := range r.batch.Events {
		if e, ok := r.event(&r.batch.Events[i]); ok {
			events = append(events, e)
		}
	}
	r.t.Apply(events...)
}

// event is what an engine's event means; ok is false for one that concerns
// blocks outside the main cache.
func (r *reader) event(e *kvevent.Event) (out Event, ok bool) {
	switch e.Kind {
	case kvevent.Cleared:
		return Event{Kind: Cleared}, true
	case kvevent.Removed:
		return Event{Kind: Removed, Blocks: e.Hashes}, r.ours(e)
	case kvevent.Stored:
	default:
		return out, false
	}
	if !r.ours(e) || len(e.Hashes) == 0 {
		return out, false
	}
	out = Event{
		Kind: Stored, Blocks: e.Hashes, Parent: e.Parent, Root: e.Parent == 0,
		Adapter: e.LoRA, Salt: e.Salt, BlockTokens: e.BlockTokens, Tokens: make([]int32, len(e.Tokens)),
	}
	for i, id := range e.Tokens {
		out.Tokens[i] = int32(id) //nolint:gosec // text ids are hashes: any 32 bits will do
	}
	// A single text that the first block's hash covers is its adapter or its salt.
	// Whatever else hashes cover cannot be asked for by tokens.
	switch {
	case e.LoRA == "" && e.LoRAID != 0:
		out.Opaque = true
	case e.Salt != "" || !e.Extra || e.ExtraKey == e.LoRA && e.LoRA != "":
	case e.ExtraKey != "" && e.LoRA == "" && out.Root:
		out.Salt = e.ExtraKey
	default:
		out.Opaque = true
	}
	return out, true
}

// ours reports whether an event is of the engine's own memory and of the group
// that is followed: the first one of full attention. A hybrid model reports each
// block once for each group.
func (r *reader) ours(e *kvevent.Event) bool {
	if e.Medium != "" && e.Medium != kvevent.MediumGPU {
		return false
	}
	if r.group == anyGroup && e.Kind == kvevent.Stored && (e.Spec == "" || e.Spec == "full_attention") {
		r.group = e.Group
	}
	return e.Group == r.group || e.Group == kvevent.NoGroup
}

// forget begins anew, knowing nothing.
func (r *reader) forget() {
	r.t.Apply(Event{Kind: Cleared})
	clear(r.recent)
	r.begun, r.next = false, 0
	r.Registry.Counter(measure.FeedGaps, "cleared").Inc()
}

// fill asks for the messages from the next one on, and should the engine not
// have them any more, for all it has.
func (r *reader) fill(ctx context.Context) {
	if !r.begun {
		r.replayAll(ctx)
		return
	}
	if whole, _ := r.replay(ctx, r.next); whole {
		r.Registry.Counter(measure.FeedGaps, "replayed").Inc()
		return
	}
	r.forget()
	r.replayAll(ctx)
}

// restart follows an engine that counts anew.
func (r *reader) restart(ctx context.Context) {
	r.forget()
	r.group = anyGroup
	r.replayAll(ctx)
}

// probe asks whether there is more, and whether it is still the same engine: the
// last message must be the one that we know.
func (r *reader) probe(ctx context.Context) {
	if r.owing && r.begun {
		if r.replay(ctx, r.next-1); !r.unanswered() {
			r.owing = false
			r.restart(ctx)
		}
		return
	}
	if !r.begun || r.next == 0 {
		r.replayAll(ctx)
		return
	}
	if whole, same := r.replay(ctx, r.next-1); !whole && !same {
		r.restart(ctx)
	}
}

// unanswered reports whether the last replay did not reach the engine.
func (r *reader) unanswered() bool { return r.Replay != "" && r.Clock.Now().Before(r.paused) }

// replayAll takes what the engine remembers; what it has forgotten is not
// believed to be there.
func (r *reader) replayAll(ctx context.Context) { r.replay(ctx, 0) }

// replay takes the messages from a number on. whole is false when some are
// missing; same is false when the engine has answered and has other messages than
// those known. Where everything is asked for, whatever comes is a beginning.
func (r *reader) replay(ctx context.Context, from uint64) (whole, same bool) {
	if r.Replay == "" || r.Clock.Now().Before(r.paused) {
		return false, true
	}
	ctx, cancel := context.WithTimeout(ctx, replayWhole)
	defer cancel()
	// A new socket for each replay: no answer to an earlier one comes in between.
	dealer := zmtp.NewDealer(r.Options)
	defer dealer.Close() //nolint:errcheck // it cannot fail
	whole, same, err := r.ask(ctx, dealer, from)
	if err != nil {
		r.pause = min(max(2*r.pause, minPause), maxPause)
		r.paused = r.Clock.Now().Add(r.pause)
		return false, true
	}
	r.pause = 0
	return whole, same
}

func (r *reader) ask(ctx context.Context, dealer *zmtp.Dealer, from uint64) (whole, same bool, err error) {
	if err := dealer.Connect(r.Replay); err != nil {
		return false, true, err
	}
	step := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, replayStep)
		defer cancel()
		return f(ctx)
	}
	if err := step(func(ctx context.Context) error { return dealer.Send(ctx, kvevent.Replay(from)...) }); err != nil {
		return false, true, err
	}
	whole, same = true, true
	known := r.begun && from < r.next // the first is one that we have
	for {
		var in zmtp.Inbound
		if err := step(func(ctx context.Context) (err error) { in, err = dealer.Recv(ctx); return err }); err != nil {
			return whole, same, err
		}
		m, err := kvevent.ParseMessage(in.Frames)
		if err != nil {
			continue
		}
		if m.IsEnd() {
			return whole && !known, same && !known, nil
		}
		switch {
		case r.repeated(&m):
			known = false
		case known: // the engine has another message where we had one
			return false, false, nil
		case r.begun && m.Seq < r.next:
		case !r.begun || m.Seq == r.next:
			r.take(&m)
		default:
			whole = false
			if from > 0 {
				return false, true, nil
			}
			r.forget()
			r.take(&m)
		}
	}
}
