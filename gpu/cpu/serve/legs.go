package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/wire/openai"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// leg is the part of a disaggregated request that a call is.
type leg struct {
	kind     engine.Leg
	transfer uint64
	peer     engine.Peer
}

// parseLeg reads the leg headers. They come from a gateway; a fault in them is
// a bad request all the same.
func (h *Handler) parseLeg(r *http.Request) (leg, error) {
	bad := func(what string) error {
		return &errs.Error{Kind: errs.BadRequest, Client: what, Code: engine.ReasonBadLeg}
	}
	var l leg
	switch name := r.Header.Get(engine.HeaderLeg); name {
	case "", engine.Aggregated.String():
		return leg{}, nil
	case engine.Prefill.String():
		l.kind = engine.Prefill
	case engine.Decode.String():
		l.kind = engine.Decode
	default:
		return leg{}, bad("the leg header names no leg")
	}
	var err error
	if l.transfer, err = strconv.ParseUint(r.Header.Get(engine.HeaderTransfer), 16, 64); err != nil || l.transfer == 0 {
		return leg{}, bad("the transfer header is no transfer id")
	}
	if l.peer, err = engine.ParsePeer(r.Header.Get(engine.HeaderPeer)); err != nil {
		return leg{}, bad("the peer header names no peer")
	}
	if h.opt.Legs == nil {
		return leg{}, &errs.Error{
			Kind: errs.BadRequest, Client: "this worker takes no part in disaggregated requests", Code: engine.ReasonLegsUnsupported,
		}
	}
	return l, nil
}

// turnAway tells the other leg of a call that is refused before it began: it
// would wait, holding blocks, until its patience ends.
func (h *Handler) turnAway(l leg) {
	switch l.kind {
	case engine.Prefill:
		h.opt.Legs.Refuse(l.transfer, transfer.ReasonCanceled)
	case engine.Decode:
		h.opt.Legs.Import(l.transfer, l.peer).Cancel()
	case engine.Aggregated:
	}
}

// prefill computes the prompt, sends its KV to the peer and answers when the
// peer has it.
func (c *call) prefill(ctx context.Context, w http.ResponseWriter) error {
	exporter, err := c.h.opt.Legs.Export(ctx, c.leg.transfer, c.leg.peer, c.prompts[0])
	c.begun = true
	if failed, ok := errors.AsType[*transfer.Error](err); ok && failed.Why == transfer.ReasonNotNeeded {
		c.answerPrefilled(w, openai.Usage{Prompt: len(c.prompts[0])})
		return nil
	}
	if err != nil {
		return transferFailed(err)
	}
	req := c.request(0)
	req.Export = exporter
	stream, err := c.h.opt.Engine.Submit(ctx, req)
	if err != nil {
		exporter.Abort(err, func() {}) // the engine has not touched it and holds no pages for it
		return err
	}
	for {
		ev, err := stream.Recv(ctx)
		if err != nil {
			return fmt.Errorf("engine stream: %w", err)
		}
		switch ev.Finish {
		case "":
		case batch.FinishPrefilled:
			u := stream.Usage()
			c.answerPrefilled(w, openai.Usage{Prompt: u.Prompt, Cached: u.Cached})
			return nil
		case batch.FinishStop, batch.FinishLength, batch.FinishAbort, batch.FinishError:
			return endError(&ev)
		}
	}
}

func (c *call) answerPrefilled(w http.ResponseWriter, u openai.Usage) {
	c.h.write(w, http.StatusOK, c.head.AppendPrefilled(nil, u))
}

// transferFailed is the answer to a transfer that could not begin.
func transferFailed(err error) error {
	failed, ok := errors.AsType[*transfer.Error](err)
	if !ok {
		if _, ok := errors.AsType[*errs.Error](err); ok || errors.Is(err, context.Canceled) {
			return err
		}
		failed = transfer.Failure("failed", err)
	}
	return &errs.Error{
		Kind: errs.Upstream, Client: "the KV transfer could not begin", Code: "transfer_" + failed.Reason(), Cause: err,
	}
}
