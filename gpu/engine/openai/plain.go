package openai

import (
	"context"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/engine/h1"
)

// doPlain calls an http:// engine.
func (a *Adapter) doPlain(ctx context.Context, p *pool, head []byte, call *engine.Call) (*engine.Response, error) {
	target := p.path + call.Path
	if target == "" {
		target = "/"
	}
	resp, err := p.client.Post(ctx, &h1.Request{Target: target, Host: p.base.Host, Head: head, Body: call.Body})
	if err != nil {
		return nil, err
	}
	out := a.answer(resp.Status, resp.Header)
	out.Length, out.Body = resp.Length(), resp
	return out, nil
}
