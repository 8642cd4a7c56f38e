package dispatch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/core/wire/eventstream"
)

const (
	// streamBuffer is what a stream holds in memory while its events fit.
	streamBuffer = 4 << 10
	// keepBuffer is the largest buffer worth keeping for the next stream.
	keepBuffer = 64 << 10
	// maxTail bounds what is read and thrown away after the end marker.
	maxTail = 64 << 10
)

// Codes of streams that did not reach their end.
const (
	codeBroken    = "engine_broken"
	codeTruncated = "stream_truncated"
)

// begin opens the answer, unless an earlier attempt has.
func (l *Life) begin(h Head) error {
	if l.begun {
		return nil
	}
	l.begun, l.status = true, h.Status
	if err := l.sink.Begin(h); err != nil {
		return gone(err)
	}
	return nil
}

// write delivers p. However long the client takes, it is not the engine's
// silence.
func (l *Life) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	l.dog.pause(l.d.deps.Clock.Now())
	l.vigil.Block()
	err := l.sink.Write(p)
	now := l.d.deps.Clock.Now()
	l.vigil.Unblock(now)
	l.dog.resume(now)
	if err != nil {
		return gone(err)
	}
	return nil
}

func gone(err error) error {
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e
	}
	return &errs.Error{Kind: errs.Canceled, Client: "the client left", Cause: err}
}

// collect passes a whole answer on.
func (l *Life) collect(ctx context.Context, resp *engine.Response) error {
	body, err := l.readAll(resp.Body, resp.Length, l.d.cfg.MaxAnswer)
	defer func() { l.pass.Free(unit.Bytes(cap(body))) }()
	switch {
	case errors.Is(err, errTooLong):
		return &errs.Error{Kind: errs.Upstream, Client: "the engine's answer is too long", Code: "answer_too_long", Cause: err}
	case ctx.Err() != nil:
		return causeOf(ctx)
	case err != nil:
		if e, ok := errors.AsType[*errs.Error](err); ok {
			return e
		}
		return broken(err)
	}
	usage, ok, failed := edge.Answer(body)
	if !ok {
		return &errs.Error{Kind: errs.Upstream, Client: "the engine's answer is not what was asked for", Code: "bad_answer"}
	}
	if !l.keep() {
		return errPrefillLost
	}
	l.watch.Usage = usage
	if failed != nil {
		return failed
	}
	return l.whole(Head{Status: resp.Status, ContentType: "application/json", Placement: l.placement}, body)
}

// whole delivers an answer that is not a stream.
func (l *Life) whole(h Head, body []byte) error {
	if err := l.begin(h); err != nil {
		return err
	}
	return l.write(body)
}

// relay passes a stream on, event by event.
func (l *Life) relay(ctx context.Context, resp *engine.Response) error {
	if !strings.HasPrefix(resp.ContentType, "text/event-stream") {
		return &errs.Error{Kind: errs.Upstream, Client: "the engine did not answer with a stream", Code: "bad_answer"}
	}
	l.dog.expect(l.d.deps.Clock.Now(), l.d.cfg.Deadlines.FirstToken, stageFirstToken)
	if l.trail.on = l.asksIDs() && resp.Continues != ""; l.trail.on {
		l.server.Continuing()
	}
	if err := l.begin(Head{Status: resp.Status, ContentType: resp.ContentType, Stream: true, Placement: l.placement}); err != nil {
		return err
	}
	buf := l.d.buffers.Get().(*[]byte)
	r := eventstream.NewReader(*buf, int(l.d.cfg.MaxEvent))
	var held unit.Bytes // for events longer than most, against the gate's budget
	r.Grow = func(n int) error {
		err := l.hold(unit.Bytes(n))
		if err == nil {
			held += unit.Bytes(n)
		}
		return err
	}
	defer func() {
		if *buf = r.Buffer(); cap(*buf) <= keepBuffer {
			l.d.buffers.Put(buf)
		}
		l.pass.Free(held)
	}()
	for {
		readErr := r.Fill(resp.Body)
		done, err := l.forward(r)
		switch {
		case err != nil:
			return err
		case done:
			return l.drain(r, resp.Body, readErr)
		case readErr == nil:
			continue
		}
		return l.endOf(ctx, r, readErr)
	}
}

// forward delivers the whole events that one read completed, in one write. It
// reports whether the end marker was among them.
func (l *Life) forward(r *eventstream.Reader) (done bool, err error) {
	var now time.Time // of the first event with data
	for e, ok := r.Next(); ok && !done; {
		if now.IsZero() && e.Data != nil {
			now = l.d.deps.Clock.Now()
			if !l.keep() {
				return false, errPrefillLost
			}
		}
		sight := l.watch.See(e.Data)
		if failed := l.failed(sight); failed != nil {
			last := e.Raw
			if sight.Chunk {
				last = nil
			}
			if err := l.write(l.before(r, last)); err != nil {
				return false, err
			}
			return false, failed
		}
		l.trail.bill = l.trail.bill || sight.UsageOnly
		if sight.UsageOnly && l.req.AddedUsage {
			if err := l.write(l.before(r, e.Raw)); err != nil {
				return false, err
			}
			l.dropped = true
		} else if e.Data != nil {
			l.trail.shown = true
		}
		if sight.Token {
			l.token(now)
		}
		if done = sight.Done; !done {
			e, ok = r.Next()
		}
	}
	if err := l.write(l.before(r, nil)); err != nil {
		return false, err
	}
	if !now.IsZero() {
		l.dog.expect(l.d.deps.Clock.Now(), l.d.cfg.Deadlines.Idle, stageIdle)
	}
	return done, nil
}

// failed says whether an event means that the generation failed. An end marker
// after nothing at all is how some engines report it.
func (l *Life) failed(s edge.Sight) error {
	if s.Err != nil {
		return s.Err
	}
	if s.Done && !l.generated() {
		return &errs.Error{Kind: errs.Upstream, Client: "the engine ended the stream without generating anything", Code: "empty_stream"}
	}
	return nil
}

func (l *Life) generated() bool { return l.watch.Tokens > 0 || l.watch.Finished }

// before is what r has handed out since the last write, without the event last.
// After a dropped event the LF of its CRLF may come with the next read; it goes
// too.
func (l *Life) before(r *eventstream.Reader, last []byte) []byte {
	b := r.Passed()
	b = b[:len(b)-len(last)]
	if l.dropped && len(b) > 0 {
		l.dropped = false
		b = bytes.TrimPrefix(b, []byte("\n"))
	}
	return l.trace(b)
}

// token counts an event that carries output.
func (l *Life) token(now time.Time) {
	if !l.output {
		l.output = true
		if l.legs != nil { // before, the prompt was another worker's to compute
			l.vigil = l.legs.decode.Watch(now, 0)
		}
		l.reserved.FirstToken()
	}
	l.vigil.Token(now)
	if l.firstAt.IsZero() {
		l.firstAt = now
		l.model.ttft[l.path].Observe(elapsed(l.accepted, now).Seconds())
	} else {
		l.model.itl.Observe(elapsed(l.lastAt, now).Seconds())
	}
	l.lastAt = now
}

// drain reads the response to its end, so that the connection can serve again.
// The stream is complete already: nothing that happens here is a failure.
func (l *Life) drain(r *eventstream.Reader, body io.Reader, readErr error) error {
	l.dog.expect(l.d.deps.Clock.Now(), l.d.cfg.Deadlines.Tail, stageTotal)
	for total := 0; readErr == nil && total < maxTail; {
		readErr = r.Fill(body)
		for e, ok := r.Next(); ok; e, ok = r.Next() {
			total += len(e.Raw)
		}
	}
	if e, ok := r.Rest(); ok && len(e.Raw) == 0 {
		return l.write([]byte("\n")) // the second half of the marker's CRLF
	}
	return nil
}

// endOf judges a stream that ended without its marker.
func (l *Life) endOf(ctx context.Context, r *eventstream.Reader, readErr error) error {
	switch {
	case errors.Is(readErr, eventstream.ErrTooLong):
		return &errs.Error{Kind: errs.Upstream, Client: "the engine sent an event that is too long", Code: "event_too_long", Cause: readErr}
	case ctx.Err() != nil:
		return causeOf(ctx)
	case !errors.Is(readErr, io.EOF):
		if e, ok := errors.AsType[*errs.Error](readErr); ok {
			return e
		}
		return broken(readErr)
	}
	// Some engines leave out the last blank line.
	if e, ok := r.Rest(); ok && l.watch.See(e.Data).Done && l.generated() {
		if err := l.write(e.Raw); err != nil {
			return err
		}
		return l.write([]byte("\n\n"))
	}
	return &errs.Error{Kind: errs.Upstream, Client: "the engine ended the stream before it was complete", Code: codeTruncated, Cause: io.ErrUnexpectedEOF}
}
