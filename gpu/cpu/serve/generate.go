package serve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/wire/openai"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

// generation serves a route that generates, whose body parse reads.
func (h *Handler) generation(parse func(body []byte) (*openai.Request, error)) http.HandlerFunc {
	return h.work(func(w http.ResponseWriter, r *http.Request) error {
		l, err := h.parseLeg(r)
		if err != nil {
			return err
		}
		c := &call{h: h, leg: l}
		if err = c.admitted(r); err == nil {
			err = c.serve(w, r, parse)
		}
		if err != nil && !c.begun {
			h.turnAway(l)
		}
		return err
	})
}

// call is one request on its way through the handler.
type call struct {
	h       *Handler
	req     *openai.Request
	head    openai.Head
	leg     leg
	prompts [][]int32
	begun   bool // the other leg knows of this one, or will be told by the engine
	asked   bool // the gateway may want to continue the stream elsewhere
	seed    uint64
	answers []*answer // prompt·n + i, in order
}

// admitted says whether this worker takes work at all.
func (c *call) admitted(r *http.Request) error {
	if c.h.isDraining() {
		return errDraining
	}
	return c.h.checkEpoch(r)
}

// serve answers the call.
func (c *call) serve(w http.ResponseWriter, r *http.Request, parse func(body []byte) (*openai.Request, error)) error {
	body, err := c.h.body(w, r)
	if err != nil {
		return err
	}
	if c.req, err = parse(body); err != nil {
		return err
	}
	if c.req.Model != c.h.opt.Model {
		return openai.ModelNotFound(c.req.Model)
	}
	if c.leg.kind != engine.Aggregated && len(c.req.Prompts) > 1 {
		return &errs.Error{Kind: errs.BadRequest, Client: "a disaggregated request has one prompt", Code: engine.ReasonBadLeg}
	}
	c.seed = rand.Uint64()
	if c.req.Seed != nil {
		c.seed = uint64(*c.req.Seed)
	}
	if c.prompts, err = c.h.prompts(r.Context(), c.req); err != nil {
		return err
	}
	if err := c.h.checkIDs(engine.ContinueField, c.req.Continue); err != nil {
		return err
	}
	// What another worker generated is computed like a prompt, and counted as
	// output all the same.
	c.prompts[0] = append(c.prompts[0], c.req.Continue...)
	c.head = c.h.head(r, c.req)
	c.asked = c.req.Stream && r.Header.Get(engine.HeaderContinue) == engine.ContinueIDs

	// Whatever way this returns, the engine stops computing for it.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if c.leg.kind == engine.Prefill {
		return c.prefill(ctx, w)
	}
	if err := c.submit(ctx); err != nil {
		return err
	}
	if c.leg.kind == engine.Decode {
		// The fate of the transfer belongs into the header, so the first event must
		// be here before it goes out.
		if err := c.answers[0].peek(ctx); err != nil {
			return err
		}
		if kv := c.answers[0].stream.KV(); kv != "" {
			w.Header().Set(engine.HeaderKV, kv)
		}
		if err := c.submitRest(ctx); err != nil {
			return err
		}
	}
	if c.req.Stream {
		return c.stream(ctx, w, r)
	}
	return c.whole(ctx, w)
}

func (h *Handler) head(r *http.Request, req *openai.Request) openai.Head {
	id := requestID(r)
	if id == "" {
		id = fmt.Sprintf("%016x", rand.Uint64())
	}
	prefix := "cmpl-"
	if req.Chat {
		prefix = "chatcmpl-"
	}
	return openai.Head{
		Chat: req.Chat, ID: prefix + id, Model: req.Model, Created: h.opt.Clock.Now().Unix(),
		Fingerprint: "yardmaster-" + h.opt.Version,
	}
}

// prompts are the token ids of each prompt, known to fit.
func (h *Handler) prompts(ctx context.Context, req *openai.Request) ([][]int32, error) {
	if req.Chat {
		ids, err := h.render(ctx, req)
		if err == nil {
			err = h.checkLength(len(ids), req)
		}
		return [][]int32{ids}, err
	}
	var out [][]int32
	for _, p := range req.Prompts {
		ids := p.IDs
		if ids == nil {
			if err := h.checkBytes(len(p.Text)); err != nil {
				return nil, err
			}
			ids = h.encode(p.Text, req.AddSpecialTokens)
		} else if err := h.checkIDs("prompt", ids); err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			return nil, &errs.Error{
				Kind: errs.BadRequest, Client: "the prompt has no tokens", Param: "prompt", Code: "invalid_value",
			}
		}
		if err := h.checkLength(len(ids), req); err != nil {
			return nil, err
		}
		out = append(out, ids)
	}
	return out, nil
}

// encode is a plain prompt's ids. Special tokens in it are parsed, as the
// reference engines do.
func (h *Handler) encode(text string, addSpecial bool) []int32 {
	var ids []int32
	if bos, add := h.opt.Tokenizer.BOS(); add && addSpecial {
		ids = append(ids, bos)
	}
	return h.opt.Tokenizer.Encode(ids, text, true)
}

// render is a chat's ids. The template writes the special tokens itself.
func (h *Handler) render(ctx context.Context, req *openai.Request) ([]int32, error) {
	if h.opt.Template == nil {
		return nil, &errs.Error{
			Kind: errs.BadRequest, Client: "this model has no chat template; use /v1/completions", Code: "no_chat_template",
		}
	}
	chat := &tokens.Chat{
		AddGenerationPrompt: req.AddGenerationPrompt, BOS: h.bos, EOS: h.eos, Extra: req.TemplateArgs, Now: h.opt.Clock.Now(),
	}
	size := 0
	for _, m := range req.Messages {
		chat.Messages = append(chat.Messages, tokens.Message{Role: m.Role, Content: m.Content, Fields: m.Fields})
		size += len(m.Content)
	}
	if err := h.checkBytes(size); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, h.opt.RenderTimeout)
	defer cancel()
	text, err := h.opt.Template.Render(ctx, chat)
	if err != nil {
		return nil, err
	}
	return h.opt.Tokenizer.Encode(nil, text, true), nil
}

// checkBytes refuses, before any work, a text that cannot fit however well it
// is tokenised.
func (h *Handler) checkBytes(n int) error {
	if least := n / h.opt.Tokenizer.LongestPiece(); least >= h.opt.MaxModelLen {
		return openai.PromptTooLong(least, h.opt.MaxModelLen)
	}
	return nil
}

func (h *Handler) checkLength(prompt int, req *openai.Request) error {
	if prompt >= h.opt.MaxModelLen || prompt+req.MaxTokens > h.opt.MaxModelLen {
		return &batch.TooLongError{Prompt: prompt, Output: max(req.MaxTokens, 1), Limit: h.opt.MaxModelLen}
	}
	return nil
}

func (h *Handler) checkIDs(param string, ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= h.opt.Tokenizer.Size() {
			return &errs.Error{
				Kind: errs.BadRequest, Param: param, Code: "invalid_value",
				Client: "token " + strconv.Itoa(int(id)) + " at " + strconv.Itoa(i) + " is not in the vocabulary of " +
					strconv.Itoa(h.opt.Tokenizer.Size()),
			}
		}
	}
	return nil
}

// submit hands the engine all answers, or, on a decode leg, the first, whose KV
// the others will find in the cache.
func (c *call) submit(ctx context.Context) error {
	c.answers = make([]*answer, len(c.prompts)*c.req.N)
	if c.leg.kind == engine.Decode {
		importer := c.h.opt.Legs.Import(c.leg.transfer, c.leg.peer)
		c.begun = true
		if err := c.start(ctx, 0, importer); err != nil {
			importer.Cancel() // the engine has not touched it
			return err
		}
		return nil
	}
	return c.submitRest(ctx)
}

// submitRest hands the engine the answers it does not have yet. After an error
// the caller's cancel ends those it got.
func (c *call) submitRest(ctx context.Context) error {
	for i, a := range c.answers {
		if a != nil {
			continue
		}
		if err := c.start(ctx, i, nil); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) start(ctx context.Context, i int, importer batch.Importer) error {
	req := c.request(i)
	req.Import = importer
	stream, err := c.h.opt.Engine.Submit(ctx, req)
	if err != nil {
		return err
	}
	c.answers[i] = newAnswer(c, i, stream)
	return nil
}

// request is what the engine is asked for answer i.
func (c *call) request(i int) *batch.Request {
	s := &c.req.Sampling
	seed := c.seed + uint64(i%c.req.N) // each of n answers draws its own numbers
	params := sample.Params{
		Temperature: float32(s.Temperature), TopK: s.TopK, TopP: sample.Narrow(s.TopP), MinP: sample.Narrow(s.MinP),
		RepetitionPenalty: sample.Narrow(s.RepetitionPenalty), PresencePenalty: float32(s.PresencePenalty),
		FrequencyPenalty: float32(s.FrequencyPenalty), Seed: seed,
		LogProbs: s.Logprobs >= 0, TopLogProbs: max(s.Logprobs, 0),
	}
	if len(s.LogitBias) > 0 {
		params.LogitBias = make(map[int32]float32, len(s.LogitBias))
		for _, b := range s.LogitBias {
			params.LogitBias[b.Token] = float32(b.Value)
		}
	}
	given := len(c.req.Continue)
	return &batch.Request{
		ID: c.head.ID, Prompt: c.prompts[i/c.req.N], Given: given, Sampling: params,
		MaxTokens: max(s.MaxTokens-given, 0), MinTokens: max(s.MinTokens-given, 0),
		EOS: c.h.opt.Tokenizer.EOG(), IgnoreEOS: s.IgnoreEOS, StopIDs: s.StopTokenIDs, Salt: c.req.CacheSalt,
	}
}

// usage sums what all answers have taken so far. A prompt counts once, whatever
// its n.
func (c *call) usage() openai.Usage {
	var u openai.Usage
	for i, a := range c.answers {
		u.Completion += a.count
		if i%c.req.N == 0 {
			u.Prompt += len(a.prompt)
			u.Cached += min(a.stream.Usage().Cached, len(a.prompt))
		}
	}
	return u
}

// whole answers when all is there. The answers are read side by side: the engine
// pauses a request whose events nobody takes.
func (c *call) whole(ctx context.Context, w http.ResponseWriter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	choices := make([]openai.Choice, len(c.answers))
	var wg sync.WaitGroup
	for i, a := range c.answers {
		wg.Go(func() {
			var err error
			if choices[i], err = a.rest(ctx); err != nil {
				cancel(err) // the first failure ends the others
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var promptIDs []int32
	if c.req.ReturnTokenIDs {
		promptIDs = c.prompts[0]
	}
	c.h.write(w, http.StatusOK, c.head.AppendResponse(nil, choices, c.usage(), promptIDs))
	return nil
}

// failed says whether ev ends a stream that is not complete.
func failed(ev *batch.Event) bool {
	return ev.Finish == batch.FinishAbort || ev.Finish == batch.FinishError
}

// endError is the failure that ended a stream.
func endError(ev *batch.Event) error {
	switch {
	case ev.Err != nil && (errors.Is(ev.Err, batch.ErrClosed) || errors.Is(ev.Err, context.Canceled)):
		return ev.Err
	case ev.Err != nil:
		return &errs.Error{Kind: errs.Upstream, Client: "the engine failed to compute the answer", Code: "engine_failed", Cause: ev.Err}
	}
	return &errs.Error{Kind: errs.Upstream, Client: "the engine failed to compute the answer", Code: "engine_failed"}
}
