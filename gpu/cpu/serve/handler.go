package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/wire/openai"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// Handler serves the API. Create it with New.
type Handler struct {
	opt     Options
	mux     *http.ServeMux
	created int64
	bos     string
	eos     string

	mu       sync.Mutex
	running  int
	draining bool
	idle     chan struct{} // made by Drain, closed when nothing runs
}

// New makes a handler. Errors wrap ErrOptions.
func New(opt Options) (*Handler, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	h := &Handler{opt: opt.withDefaults(), mux: http.NewServeMux()}
	h.created = h.opt.Clock.Now().Unix()
	bos, _ := h.opt.Tokenizer.BOS()
	h.bos = string(h.opt.Tokenizer.Piece(bos))
	h.eos = string(h.opt.Tokenizer.Piece(h.opt.Tokenizer.EOS()))
	h.route(http.MethodPost, "/v1/chat/completions", h.generation(openai.ParseChat))
	h.route(http.MethodPost, "/v1/completions", h.generation(openai.ParseCompletion))
	h.route(http.MethodPost, "/tokenize", h.work(h.tokenize))
	h.route(http.MethodPost, "/detokenize", h.work(h.detokenize))
	h.route(http.MethodGet, "/v1/models", h.models)
	h.route(http.MethodGet, "/health", h.health)
	h.route(http.MethodGet, "/version", h.version)
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, &errs.Error{Kind: errs.NotFound, Client: "no such route", Code: "route_not_found"})
	})
	return h, nil
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// Running is the number of requests being served.
func (h *Handler) Running() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running
}

// Drain refuses new work, with status 503 and reason draining, and waits until
// what runs has ended or ctx has; then it returns ctx's error. It may be called
// again.
func (h *Handler) Drain(ctx context.Context) error {
	h.mu.Lock()
	h.draining = true
	idle := h.idle
	if idle == nil {
		idle = make(chan struct{})
		if h.running == 0 {
			close(idle)
		} else {
			h.idle = idle
		}
	}
	h.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *Handler) isDraining() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.draining
}

func (h *Handler) enter() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running++
}

func (h *Handler) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.running == 0 && h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
}

// route serves one method of a path and refuses the others in the API's shape.
func (h *Handler) route(method, path string, serve http.HandlerFunc) {
	h.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			h.failStatus(w, r, http.StatusMethodNotAllowed, &errs.Error{
				Kind: errs.BadRequest, Client: "the method must be " + method, Code: "method_not_allowed",
			})
			return
		}
		serve(w, r)
	})
}

// work counts what counts as work, and writes its errors.
func (h *Handler) work(serve func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if id := requestID(r); id != "" {
			w.Header().Set(engine.HeaderRequestID, id)
		}
		h.enter()
		defer h.leave()
		if err := serve(w, r); err != nil {
			h.fail(w, r, err)
		}
	}
}

var errDraining = &errs.Error{
	Kind: errs.NoCapacity, Client: "this worker is shutting down", Code: engine.ReasonDraining, RetryAfter: time.Second,
}

func (h *Handler) checkEpoch(r *http.Request) error {
	text := r.Header.Get(engine.HeaderEpoch)
	if text == "" || text == "0" {
		return nil
	}
	meant, err := strconv.ParseUint(text, 10, 64)
	if err != nil || !h.opt.Own.Is(r.Context(), fleet.Epoch(meant)) {
		return &errs.Error{
			Kind: errs.NoCapacity, Client: "this is not the worker meant", Code: engine.ReasonStaleEpoch,
		}
	}
	return nil
}

// body reads a request's body within its limit.
func (h *Handler) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, &errs.Error{Kind: errs.BadRequest, Client: "compressed bodies are not read", Code: "unsupported_encoding"}
	}
	if ct := r.Header.Get("Content-Type"); ct != "" {
		if kind, _, err := mime.ParseMediaType(ct); err != nil || kind != "application/json" {
			return nil, &errs.Error{Kind: errs.BadRequest, Client: "the body must be application/json", Code: "unsupported_media_type"}
		}
	}
	tooLarge := &errs.Error{
		Kind: errs.TooLarge, Code: "body_too_large",
		Client: "the body is larger than " + strconv.FormatInt(h.opt.MaxBody, 10) + " bytes",
	}
	if r.ContentLength > h.opt.MaxBody {
		return nil, tooLarge
	}
	control := http.NewResponseController(w)
	patience := h.patience(r.ContentLength)
	_ = control.SetReadDeadline(time.Now().Add(patience)) // of the machine's clock, which sockets know
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.opt.MaxBody))
	_, over := errors.AsType[*http.MaxBytesError](err)
	switch {
	case err == nil:
		// From here on the server watches for the client's leaving, and a deadline
		// looks like that.
		_ = control.SetReadDeadline(time.Time{})
		return b, nil
	case over:
		return nil, tooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &errs.Error{
			Kind: errs.BadRequest, Code: "body_timeout",
			Client: "the body did not arrive within " + patience.String(),
		}
	}
	return nil, &errs.Error{Kind: errs.Canceled, Client: "the body did not arrive", Cause: err}
}

// A body has bodyGrace and its size at slowest, in bytes a second, to arrive, as
// at a gateway: a connection that claims little is not held long.
const (
	bodyGrace = 10 * time.Second
	slowest   = 64 << 10
)

// patience is how long a body of that length may take; less than zero is unknown.
func (h *Handler) patience(length int64) time.Duration {
	if length < 0 {
		return h.opt.BodyTimeout
	}
	return min(h.opt.BodyTimeout, bodyGrace+time.Duration(length/slowest)*time.Second)
}

// failure finds the client's side of an error of the engine or the tokenizer.
func failure(err error) *errs.Error {
	if e, ok := errors.AsType[*errs.Error](err); ok {
		return e
	}
	if long, ok := errors.AsType[*batch.TooLongError](err); ok {
		return tooLong(long)
	}
	if raised, ok := errors.AsType[*tokens.RaisedError](err); ok {
		return &errs.Error{Kind: errs.BadRequest, Client: raised.Message, Param: "messages", Code: "chat_template_refused"}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &errs.Error{Kind: errs.Canceled, Client: "the request was canceled", Cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &errs.Error{Kind: errs.Timeout, Client: "the request took too long", Cause: err}
	case errors.Is(err, batch.ErrBusy):
		return &errs.Error{
			Kind: errs.Saturated, Client: "the engine's queue is full", Code: "queue_full", RetryAfter: time.Second, Cause: err,
		}
	case errors.Is(err, batch.ErrClosed):
		return errDraining
	case errors.Is(err, batch.ErrRequest), errors.Is(err, sample.ErrParams):
		return &errs.Error{Kind: errs.BadRequest, Client: err.Error(), Code: "invalid_value"}
	case errors.Is(err, tokens.ErrTemplateBudget), errors.Is(err, tokens.ErrTemplate):
		return &errs.Error{
			Kind: errs.BadRequest, Client: "the chat template cannot render these messages", Param: "messages",
			Code: "chat_template_failed", Cause: err,
		}
	}
	return errs.As(err)
}

func tooLong(e *batch.TooLongError) *errs.Error {
	out := openai.PromptTooLong(e.Prompt, e.Limit)
	if e.Output > 1 {
		out.Client = "this model's maximum context length is " + strconv.Itoa(e.Limit) + " tokens, but " +
			strconv.Itoa(e.Prompt+e.Output) + " were asked for: " + strconv.Itoa(e.Prompt) + " in the prompt and " +
			strconv.Itoa(e.Output) + " for the answer"
		out.Param = "max_tokens"
	}
	return out
}

// fail answers with an error. A client that left gets nothing.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := failure(err)
	status := openai.Status(e.Kind)
	if e.Code == engine.ReasonStaleEpoch {
		status = engine.StatusStaleEpoch
	}
	h.failStatus(w, r, status, e)
}

func (h *Handler) failStatus(w http.ResponseWriter, r *http.Request, status int, e *errs.Error) {
	h.report(r, e)
	if e.Kind == errs.Canceled {
		panic(http.ErrAbortHandler) // nobody reads; and if somebody does, it was no answer
	}
	head := w.Header()
	head.Set("Content-Type", "application/json")
	head.Set(engine.HeaderReason, reason(e))
	if e.RetryAfter > 0 {
		head.Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	h.write(w, status, openai.AppendError(nil, e))
}

func reason(e *errs.Error) string {
	if e.Code != "" {
		return e.Code
	}
	return e.Kind.String()
}

// report logs what is our fault. That the other side gave up is none: a gateway
// ends a prefill leg whose decode leg is over, and that is every day's work.
func (h *Handler) report(r *http.Request, e *errs.Error) {
	if e.Kind != errs.Internal && e.Kind != errs.Upstream {
		return
	}
	level := slog.LevelError
	if r.Context().Err() != nil || givenUp(e) {
		level = slog.LevelDebug
	}
	h.opt.Log.Log(r.Context(), level, "request failed", "request", requestID(r), "error", e.Error())
}

// givenUp reports whether a transfer ended because one of its legs was no longer
// wanted.
func givenUp(err error) bool {
	failed, ok := errors.AsType[*transfer.Error](err)
	return ok && (failed.Why == transfer.ReasonCanceled || failed.Why == transfer.ReasonPeerAbort)
}

// write sends a whole answer.
func (h *Handler) write(w http.ResponseWriter, status int, body []byte) {
	head := w.Header()
	if head.Get("Content-Type") == "" {
		head.Set("Content-Type", "application/json")
	}
	head.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// An error means that the client is gone: there is nobody to tell.
	_ = h.limited(http.NewResponseController(w), func() error {
		_, err := w.Write(body)
		return err
	})
}

// limited bounds how long write may block. The limit is lifted again: it must
// neither end a stream that has nothing to say for a while nor meet the next
// request of the connection. Writers that know no limits (a test's recorder) do
// not block.
func (h *Handler) limited(c *http.ResponseController, write func() error) error {
	_ = c.SetWriteDeadline(h.opt.Clock.Now().Add(h.opt.WriteTimeout))
	err := write()
	_ = c.SetWriteDeadline(time.Time{})
	return err
}

func (h *Handler) models(w http.ResponseWriter, _ *http.Request) {
	h.write(w, http.StatusOK, openai.AppendModels(nil, h.opt.Model, h.created, h.opt.MaxModelLen))
}

func (h *Handler) health(w http.ResponseWriter, r *http.Request) {
	if h.isDraining() {
		h.fail(w, r, errDraining)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (h *Handler) version(w http.ResponseWriter, _ *http.Request) {
	body := openai.AppendString([]byte(`{"version":`), h.opt.Version)
	h.write(w, http.StatusOK, append(body, '}'))
}

func (h *Handler) tokenize(w http.ResponseWriter, r *http.Request) error {
	if h.isDraining() {
		return errDraining
	}
	body, err := h.body(w, r)
	if err != nil {
		return err
	}
	req, err := openai.ParseTokenize(body)
	if err != nil {
		return err
	}
	if req.Model != "" && req.Model != h.opt.Model {
		return openai.ModelNotFound(req.Model)
	}
	var ids []int32
	if req.Chat {
		ids, err = h.render(r.Context(), &req.Request)
	} else if err = h.checkBytes(len(req.Prompt)); err == nil {
		ids = h.encode(req.Prompt, req.AddSpecialTokens)
	}
	if err != nil {
		return err
	}
	var texts []string
	if req.ReturnTokenTexts {
		texts = make([]string, len(ids))
		for i, id := range ids {
			texts[i] = h.opt.Tokenizer.Raw(id)
		}
	}
	h.write(w, http.StatusOK, openai.AppendTokenized(nil, ids, texts, h.opt.MaxModelLen))
	return nil
}

func (h *Handler) detokenize(w http.ResponseWriter, r *http.Request) error {
	if h.isDraining() {
		return errDraining
	}
	body, err := h.body(w, r)
	if err != nil {
		return err
	}
	req, err := openai.ParseDetokenize(body)
	if err != nil {
		return err
	}
	if req.Model != "" && req.Model != h.opt.Model {
		return openai.ModelNotFound(req.Model)
	}
	if err := h.checkIDs("tokens", req.Tokens); err != nil {
		return err
	}
	h.write(w, http.StatusOK, openai.AppendDetokenized(nil, h.opt.Tokenizer.Decode(nil, req.Tokens)))
	return nil
}

// requestID is the gateway's id for the request, or "" when it sent none that
// could stand in headers and logs.
func requestID(r *http.Request) string {
	id := r.Header.Get(engine.HeaderRequestID)
	if len(id) > 128 || strings.ContainsFunc(id, func(c rune) bool { return c < '!' || c > '~' || c == '"' || c == '\\' }) {
		return ""
	}
	return id
}
