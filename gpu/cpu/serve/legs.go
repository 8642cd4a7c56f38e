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
)

// leg is the part of a disaggregated request that a call is.
type leg struct {
	kind     engine.Leg
	transfer uint64
	peer     engine.Peer
}

// parseLeg reads the leg headers. They come from a gateway; a fault in them is
// a bad request all the same.
func (h *Handler) parseLeg(r *http.Request, req *openai.Request) (leg, error) {
	bad := func(what string) error {
		return &errs.Error{Kind: errs.BadRequest, Client: what, Code: "bad_leg"}
	}
	var l leg
	switch name := r.Header.Get(engine.HeaderLeg); name {
	case "", engine.Aggregated.String():
		return l, nil
	case engine.Prefill.String():
		l.kind = engine.Prefill
	case engine.Decode.String():
		l.kind = engine.Decode
	default:
		return l, bad("the leg header names no leg")
	}
	var err error
	if l.transfer, err = strconv.ParseUint(r.Header.Get(engine.HeaderTransfer), 16, 64); err != nil || l.transfer == 0 {
		return l, bad("the transfer header is no transfer id")
	}
	if l.peer, err = engine.ParsePeer(r.Header.Get(engine.HeaderPeer)); err != nil {
		return l, bad("the peer header names no peer")
	}
	switch {
	case h.opt.Legs == nil:
		return l, &errs.Error{
			Kind: errs.BadRequest, Client: "this worker takes no part in disaggregated requests", Code: "legs_unsupported",
		}
	case len(req.Prompts) > 1:
		return l, bad("a disaggregated request has one prompt")
	}
	return l, nil
}

// prefill computes the prompt, sends its KV to the peer and answers when the
// peer has it.
func (c *call) prefill(ctx context.Context, w http.ResponseWriter) error {
	exporter, err := c.h.opt.Legs.Export(ctx, c.leg.transfer, c.leg.peer, c.prompts[0])
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
			body := c.head.AppendPrefilled(nil, openai.Usage{Prompt: u.Prompt, Cached: u.Cached})
			c.h.write(w, http.StatusOK, body)
			return nil
		default:
			return endError(&ev)
		}
	}
}

// transferFailed is the answer to a transfer that could not begin.
func transferFailed(err error) error {
	if _, ok := errors.AsType[*errs.Error](err); ok ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &errs.Error{
		Kind: errs.Upstream, Client: "the KV transfer could not begin", Code: "transfer_failed", Cause: err,
	}
}
