package scripted

import (
	"cmp"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/core/engine"
)

// The response shapes are those of vLLM 0.32, null fields included.

type apiUsage struct {
	Prompt     int           `json:"prompt_tokens"`
	Total      int           `json:"total_tokens"`
	Completion int           `json:"completion_tokens"`
	Details    *usageDetails `json:"prompt_tokens_details,omitzero"`
}

type usageDetails struct {
	Cached int `json:"cached_tokens"`
}

type apiChoice struct {
	Index        int        `json:"index"`
	Message      *apiAnswer `json:"message,omitzero"`
	Delta        *apiDelta  `json:"delta,omitzero"`
	Text         *string    `json:"text,omitzero"`
	Logprobs     *struct{}  `json:"logprobs"`
	FinishReason *string    `json:"finish_reason"`
	StopReason   *string    `json:"stop_reason"`
	TokenIDs     []uint32   `json:"token_ids,omitzero"`
}

type apiAnswer struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

type apiDelta struct {
	Role    string  `json:"role,omitzero"`
	Content *string `json:"content,omitzero"`
}

type apiResponse struct {
	ID                string         `json:"id"`
	Object            string         `json:"object"`
	Created           int64          `json:"created"`
	Model             string         `json:"model"`
	Choices           []apiChoice    `json:"choices"`
	SystemFingerprint string         `json:"system_fingerprint,omitzero"`
	Usage             *apiUsage      `json:"usage,omitzero"`
	KV                jsontext.Value `json:"kv_transfer_params,omitzero"`
}

// writer turns the choices of a job into a response.
type writer struct {
	x       *exchange
	j       *job
	r       *rank
	kv      *kvLeg
	choices []*choice
	base    apiResponse
	tokens  int  // written
	ids     bool // of the tokens go with each event
}

// write answers with the choices, as a stream or whole.
func (x *exchange) write(r *rank, j *job, kv *kvLeg, choices []*choice) error {
	x.stage = "writing"
	w := &writer{x: x, j: j, r: r, kv: kv, choices: choices}
	prefix, object := "cmpl-", "text_completion"
	if j.chat {
		prefix, object = "chatcmpl-", "chat.completion"
	}
	w.base = apiResponse{
		ID: x.name(prefix), Object: object, Created: x.rec.Time.Unix(),
		Model: cmp.Or(j.api.Model, x.engine().opts.Model),
	}
	j.id = w.base.ID
	kv.describe(x)
	if c := j.api.Continue; c != nil || j.api.Stream && x.r.Header.Get(engine.HeaderContinue) == engine.ContinueIDs {
		taken := 0
		if c != nil {
			taken = len(c.TokenIDs)
		}
		w.ids = true
		x.w.Header().Set(engine.HeaderContinue, strconv.Itoa(taken))
	}
	if !j.api.Stream {
		return w.whole()
	}
	if j.chat {
		w.base.Object += ".chunk"
	}
	return w.stream()
}

// each calls write with every token of every choice, interleaved by choice.
func (w *writer) each(write func(c *choice, text, finish string) error) error {
	pace := pacer{w.x, w.x.act.Generate}
	for n := 0; ; n++ {
		if err := pace.before(w.r, w.choices, n); err != nil {
			return err
		}
		open := false
		for _, c := range w.choices {
			if c.done {
				continue
			}
			text, finish, err := w.x.next(w.r, c)
			if err != nil {
				return err
			}
			w.tokens++
			if err := write(c, text, w.finish(finish)); err != nil {
				return err
			}
			open = open || !c.done
		}
		if !open {
			return nil
		}
	}
}

// finish is the finish reason as the script wants it.
func (w *writer) finish(reason string) string {
	if g := w.x.act.Generate; g != nil && reason != "" && g.Finish != "" {
		return g.Finish
	}
	return reason
}

func (w *writer) note() {
	cached, prompt := w.cached(), w.prompt()
	w.x.engine().record.update(w.x.rec, func(r *Record) {
		r.Tokens, r.Cached, r.Prompt = w.tokens, cached, prompt
	})
}

func (w *writer) prompt() int {
	n := 0
	for _, p := range w.j.prompts {
		if w.j.api.Continue != nil {
			n += p.own
			continue
		}
		n += len(p.ids)
	}
	return n
}

// output is the tokens generated, here and by the engine that began.
func (w *writer) output() int {
	n := w.tokens
	for _, c := range w.choices {
		n += c.before
	}
	return n
}

// cached sums the cached tokens of each prompt's first choice.
func (w *writer) cached() int {
	n := 0
	for i := 0; i < len(w.choices); i += w.j.choices {
		p := w.r.peek(w.choices[i].seq)
		n += p.cached
	}
	return n + w.kv.extraCached()
}

// usage counts, bent as the script wants.
func (w *writer) usage(final bool) *apiUsage {
	u := &apiUsage{Prompt: w.prompt(), Completion: w.output()}
	if final {
		u.Details = &usageDetails{Cached: w.cached()}
		if w.j.api.Continue != nil {
			u.Details.Cached = min(u.Details.Cached, u.Prompt)
		}
	}
	if f := w.fault(); f != nil {
		if f.Prompt != nil {
			u.Prompt = *f.Prompt
		}
		if f.Completion != nil {
			u.Completion = *f.Completion
		}
		if f.Cached != nil && final {
			u.Details.Cached = *f.Cached
		}
	}
	u.Total = u.Prompt + u.Completion
	return u
}

func (w *writer) fault() *UsageFault {
	if g := w.x.act.Generate; g != nil {
		return g.Usage
	}
	return nil
}

func (w *writer) mode() string {
	if f := w.fault(); f != nil {
		return f.Mode
	}
	return ""
}

// whole writes the response that is not streamed.
func (w *writer) whole() error {
	out := make([]apiChoice, len(w.choices))
	err := w.each(func(c *choice, text, finish string) error {
		c.text.WriteString(text)
		if finish != "" {
			out[c.index] = w.wholeChoice(c, finish)
		}
		return nil
	})
	w.note()
	if err != nil {
		return err
	}
	resp := w.base
	resp.Choices = out
	if w.mode() != "omit" {
		resp.Usage = w.usage(true)
	}
	if resp.KV, err = w.kv.reply(w); err != nil {
		return err
	}
	return w.x.json(200, &resp)
}

func (w *writer) wholeChoice(c *choice, finish string) apiChoice {
	text := c.text.String()
	out := apiChoice{Index: c.index}
	if w.noFinish() {
		finish = ""
	}
	w.end(&out, c, finish)
	if w.j.chat {
		out.Message = &apiAnswer{Role: "assistant", Content: text}
	} else {
		out.Text = &text
	}
	if w.j.api.ReturnTokenIDs {
		out.TokenIDs = Tokenize(text)
	}
	return out
}

func (w *writer) noFinish() bool {
	g := w.x.act.Generate
	return g != nil && g.NoFinish
}

// end sets the finish reason of a choice.
func (w *writer) end(out *apiChoice, c *choice, finish string) {
	if finish == "" || w.noFinish() {
		return
	}
	out.FinishReason = &finish
	if c.stop.hit != "" {
		out.StopReason = &c.stop.hit
	}
}

// stream writes the response as events.
func (w *writer) stream() error {
	if err := w.x.startStream(); err != nil {
		return err
	}
	defer w.note()
	err := w.each(w.token)
	if err == nil && w.errorAfter(w.tokens) {
		return w.errorEvent()
	}
	if err == errStreamError { //nolint:errorlint // private sentinel, never wrapped
		return nil
	}
	if err != nil {
		return err
	}
	if err := w.finalUsage(); err != nil {
		return err
	}
	return w.done()
}

// token writes one token's event.
func (w *writer) token(c *choice, text, finish string) error {
	if w.errorAfter(w.tokens - 1) {
		if err := w.errorEvent(); err != nil {
			return err
		}
		return errStreamError
	}
	if c.written == 1 && w.j.chat && w.j.api.Continue == nil {
		empty := ""
		role := apiChoice{Index: c.index, Delta: &apiDelta{Role: "assistant", Content: &empty}}
		if err := w.chunk(role, 0); err != nil {
			return err
		}
	}
	out := apiChoice{Index: c.index}
	if w.j.chat {
		out.Delta = &apiDelta{Content: &text}
	} else {
		out.Text = &text
	}
	if w.j.api.ReturnTokenIDs || w.ids {
		out.TokenIDs = Tokenize(text)
	}
	w.end(&out, c, finish)
	return w.chunk(out, w.tokens)
}

// chunk writes an event with one choice.
func (w *writer) chunk(c apiChoice, tokens int) error {
	resp := w.base
	resp.Choices = []apiChoice{c}
	all := w.allDone()
	switch {
	case w.mode() == "in_choices" && all:
		resp.Usage = w.usage(true)
	case w.mode() == "continuous" || w.j.api.StreamOptions.Continuous && w.mode() == "":
		u := w.usage(false)
		if tokens == 0 {
			u.Completion, u.Total = 0, u.Prompt
		}
		resp.Usage = u
	}
	return w.event(&resp)
}

func (w *writer) allDone() bool {
	for _, c := range w.choices {
		if !c.done {
			return false
		}
	}
	return true
}

// finalUsage writes the usage event where one is due.
func (w *writer) finalUsage() error {
	switch w.mode() {
	case "omit", "in_choices":
		return nil
	case "always":
	default:
		if !w.j.api.StreamOptions.IncludeUsage {
			return nil
		}
	}
	resp := w.base
	resp.Choices = []apiChoice{}
	resp.Usage = w.usage(true)
	return w.event(&resp)
}

func (w *writer) done() error {
	if g := w.x.act.Generate; g != nil && g.Done != nil && !*g.Done {
		return nil
	}
	return w.data([]byte("[DONE]"))
}

func (w *writer) event(resp *apiResponse) error {
	b, err := json.Marshal(resp)
	if err != nil {
		return err
	}
	return w.data(b)
}

// data writes one SSE event.
func (w *writer) data(b []byte) error {
	end := "\n"
	g := w.x.act.Generate
	if g != nil && g.CRLF {
		end = "\r\n"
	}
	var out []byte
	if g != nil && g.Comment != "" {
		out = append(append(append(out, ": "...), g.Comment...), end...)
		out = append(out, end...)
	}
	out = append(append(out, "data: "...), b...)
	out = append(append(out, end...), end...)
	return w.x.out.write(out)
}
