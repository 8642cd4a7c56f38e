package serve

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/wire/openai"
)

// events writes server-sent events, each flushed.
type events struct {
	h   *Handler
	w   io.Writer
	ctl *http.ResponseController
	buf []byte
}

// send writes one event whose payload fill appends.
func (e *events) send(fill func(dst []byte) []byte) error {
	e.buf = append(e.buf[:0], "data: "...)
	e.buf = append(fill(e.buf), "\n\n"...)
	return e.h.limited(e.ctl, func() error {
		if _, err := e.w.Write(e.buf); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if err := e.ctl.Flush(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		return nil
	})
}

// stream answers with events. Once the headers are out an error can no longer
// be a status: it becomes an event, and the connection is cut behind it.
func (c *call) stream(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	head := w.Header()
	head.Set("Content-Type", "text/event-stream")
	head.Set("Cache-Control", "no-cache")
	head.Set("X-Accel-Buffering", "no")
	if c.asked || c.req.Continue != nil {
		head.Set(engine.HeaderContinue, strconv.Itoa(len(c.req.Continue)))
	}
	e := &events{h: c.h, w: w, ctl: http.NewResponseController(w)}
	w.WriteHeader(http.StatusOK)
	err := c.sendAll(ctx, e)
	if err == nil {
		return nil
	}
	if fault := failure(err); ctx.Err() == nil && fault.Kind != errs.Canceled {
		c.h.report(r, fault)
		_ = e.send(func(dst []byte) []byte { return openai.AppendError(dst, fault) }) // cut off either way
	}
	panic(http.ErrAbortHandler)
}

func (c *call) sendAll(ctx context.Context, e *events) error {
	if err := c.opening(e); err != nil {
		return err
	}
	var err error
	if len(c.answers) == 1 {
		err = c.sendOne(ctx, e)
	} else {
		err = c.sendMany(ctx, e)
	}
	if err != nil {
		return err
	}
	if c.req.IncludeUsage {
		usage := c.usage()
		if err := e.send(func(dst []byte) []byte { return c.head.AppendUsage(dst, usage) }); err != nil {
			return err
		}
	}
	return e.send(func(dst []byte) []byte { return append(dst, "[DONE]"...) })
}

// opening sends the headers, and for a chat the chunks that name the role.
func (c *call) opening(e *events) error {
	if !c.req.Chat || c.req.Continue != nil {
		if err := e.ctl.Flush(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		return nil
	}
	var promptIDs []int32
	if c.req.ReturnTokenIDs {
		promptIDs = c.prompts[0]
	}
	for i := range c.answers {
		usage := c.running(c.answers[i])
		if err := e.send(func(dst []byte) []byte { return c.head.AppendRole(dst, i, promptIDs, usage) }); err != nil {
			return err
		}
	}
	return nil
}

// running is the usage that stands in an answer's chunks, if it was asked for.
func (c *call) running(a *answer) *openai.Usage {
	if !c.req.ContinuousUsage {
		return nil
	}
	return &openai.Usage{Prompt: len(a.prompt), Completion: a.count}
}

// sendOne forwards the only answer.
func (c *call) sendOne(ctx context.Context, e *events) error {
	a := c.answers[0]
	for first := true; ; first = false {
		p, err := a.next(ctx)
		if err != nil {
			return err
		}
		if err := c.sendPiece(e, &p, c.running(a), first); err != nil || p.Finish != "" {
			return err
		}
	}
}

func (c *call) sendPiece(e *events, p *openai.Choice, usage *openai.Usage, first bool) error {
	if first && c.req.ReturnTokenIDs && !c.req.Chat && c.req.Continue == nil {
		p.PromptIDs = c.answers[p.Index].prompt
	}
	return e.send(func(dst []byte) []byte { return c.head.AppendChunk(dst, p, usage) })
}

// sendMany forwards several answers as they come.
func (c *call) sendMany(ctx context.Context, e *events) error {
	type item struct {
		piece openai.Choice
		usage *openai.Usage
		first bool
		err   error
	}
	items := make(chan item)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, a := range c.answers {
		wg.Go(func() {
			for first := true; ; first = false {
				p, err := a.next(ctx)
				it := item{p, c.running(a), first, err}
				select {
				case items <- it:
				case <-ctx.Done():
					return
				}
				if err != nil || p.Finish != "" {
					return
				}
			}
		})
	}
	for left := len(c.answers); left > 0; {
		select {
		case it := <-items:
			if it.err != nil {
				return it.err
			}
			if err := c.sendPiece(e, &it.piece, it.usage, it.first); err != nil {
				return err
			}
			if it.piece.Finish != "" {
				left--
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
