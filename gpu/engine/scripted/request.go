package scripted

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/mix"
)

// Limits of one request.
const (
	maxChoices = 128
	maxStops   = 64
)

// apiRequest is the part of a chat or completion request that the engine acts
// on. Other fields are accepted and ignored.
type apiRequest struct {
	Model               string         `json:"model"`
	Messages            []apiMessage   `json:"messages"`
	Prompt              jsontext.Value `json:"prompt"`
	Stream              bool           `json:"stream"`
	StreamOptions       streamOptions  `json:"stream_options"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	MinTokens           int            `json:"min_tokens"`
	N                   *int           `json:"n"`
	Stop                jsontext.Value `json:"stop"`
	Seed                *int64         `json:"seed"`
	Temperature         *float64       `json:"temperature"`
	IgnoreEOS           bool           `json:"ignore_eos"`
	CacheSalt           string         `json:"cache_salt"`
	ContinueFinal       bool           `json:"continue_final_message"`
	ReturnTokenIDs      bool           `json:"return_token_ids"`
	KV                  jsontext.Value `json:"kv_transfer_params"`
	Continue            *continuation  `json:"yardmaster_continue"` // engine.ContinueField
}

// continuation is the output so far of a stream that another engine began.
type continuation struct {
	TokenIDs []uint32 `json:"token_ids"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats"`
}

type apiMessage struct {
	Role    string         `json:"role"`
	Content jsontext.Value `json:"content"`
}

// prompt is one prompt of a request, as text and as ids. Of a stream that
// another engine began, ids go on with its output; own are the prompt's.
type prompt struct {
	text string
	ids  []uint32
	own  int
}

// job is a checked request.
type job struct {
	api       *apiRequest
	chat      bool
	id        string // of the response
	prompts   []prompt
	choices   int // per prompt
	maxNew    int // per choice
	byLimit   bool
	stops     []string
	seed      uint64
	stopEvery int
	poisoned  bool   // KV of another prompt: the answer will be wrong
	shown     string // text that another engine sent; the answer goes on behind it
}

// problem is a request's fault, told as an engine tells it.
type problem struct {
	status               int
	kind, message, param string
}

func (p *problem) Error() string { return p.message }

func badRequest(param, format string, args ...any) error {
	return &problem{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...), param}
}

// parseJob reads and checks a request body.
func (x *exchange) parseJob(chat bool) (*job, error) {
	api := &apiRequest{}
	if err := json.Unmarshal(x.body, api, jsontext.AllowDuplicateNames(true)); err != nil {
		return nil, decodeProblem(err)
	}
	o := &x.engine().opts
	if err := checkModel(o, api.Model); err != nil {
		return nil, err
	}
	j := &job{api: api, chat: chat, choices: 1, stopEvery: o.StopEvery}
	if err := j.readPrompts(); err != nil {
		return nil, err
	}
	if err := j.readSampling(); err != nil {
		return nil, err
	}
	if err := j.fit(o); err != nil {
		return nil, err
	}
	return j, j.goOn()
}

// goOn takes another engine's output as given.
func (j *job) goOn() error {
	c := j.api.Continue
	if c == nil {
		return nil
	}
	if !j.api.Stream || j.choices*len(j.prompts) != 1 {
		return badRequest(engine.ContinueField, "only one stream can be continued")
	}
	if len(c.TokenIDs) >= j.maxNew {
		return badRequest(engine.ContinueField, "the answer to be continued has all its tokens")
	}
	j.shown = Detokenize(c.TokenIDs)
	p := &j.prompts[0]
	p.own = len(p.ids)
	p.ids = append(p.ids, c.TokenIDs...)
	return nil
}

func decodeProblem(err error) error {
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		return badRequest(strings.TrimPrefix(string(e.JSONPointer), "/"), "1 validation error: %s has the wrong type", e.JSONPointer)
	}
	return badRequest("body", "1 validation error: JSON decode error")
}

func checkModel(o *Options, model string) error {
	for _, m := range o.models() {
		if model == "" || model == m {
			return nil
		}
	}
	return &problem{
		http.StatusNotFound, "NotFoundError",
		fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(o.models(), ", ")), "model",
	}
}

func (j *job) readPrompts() error {
	if !j.chat {
		p, err := parsePrompts(j.api.Prompt)
		j.prompts = p
		return err
	}
	text, err := renderChat(j.api.Messages, j.api.ContinueFinal)
	j.prompts = []prompt{{text: text, ids: Tokenize(text)}}
	return err
}

// renderChat joins messages by the chat template.
func renderChat(messages []apiMessage, open bool) (string, error) {
	if len(messages) == 0 {
		return "", badRequest("messages", "messages must not be empty")
	}
	turns := make([]message, 0, len(messages))
	for i, m := range messages {
		text, ok := contentText(m.Content)
		if !ok {
			return "", badRequest("messages", "messages[%d].content is neither text nor a list of parts", i)
		}
		turns = append(turns, message{m.Role, text})
	}
	return render(turns, open), nil
}

// contentText joins the text of a message's content; a part that is not text
// counts by its JSON.
func contentText(v jsontext.Value) (string, bool) {
	if len(v) == 0 || v.Kind() == 'n' {
		return "", true
	}
	var text string
	if v.Kind() == '"' {
		err := json.Unmarshal(v, &text)
		return text, err == nil
	}
	var parts []jsontext.Value
	if json.Unmarshal(v, &parts) != nil {
		return "", false
	}
	var b strings.Builder
	for _, p := range parts {
		var part struct {
			Text *string `json:"text"`
		}
		if json.Unmarshal(p, &part) == nil && part.Text != nil {
			b.WriteString(*part.Text)
		} else {
			b.Write(p)
		}
	}
	return b.String(), true
}

// parsePrompts reads a prompt: text, ids, or a list of either.
func parsePrompts(v jsontext.Value) ([]prompt, error) {
	if len(v) == 0 {
		return nil, badRequest("prompt", "prompt is missing")
	}
	if p, ok := parsePrompt(v); ok {
		return []prompt{p}, nil
	}
	var list []jsontext.Value
	wrong := badRequest("prompt", "prompt is neither text, token ids nor a list of at most %d of them", maxChoices)
	if json.Unmarshal(v, &list) != nil || len(list) == 0 || len(list) > maxChoices {
		return nil, wrong
	}
	out := make([]prompt, 0, len(list))
	for _, item := range list {
		p, ok := parsePrompt(item)
		if !ok {
			return nil, wrong
		}
		out = append(out, p)
	}
	return out, nil
}

// parsePrompt reads one prompt, text or ids.
func parsePrompt(v jsontext.Value) (prompt, bool) {
	var text string
	if v.Kind() == '"' {
		err := json.Unmarshal(v, &text)
		return prompt{text: text, ids: Tokenize(text)}, err == nil
	}
	var ids []uint32
	if json.Unmarshal(v, &ids) != nil || len(ids) == 0 {
		return prompt{}, false
	}
	return prompt{text: Detokenize(ids), ids: ids}, true
}

func (j *job) readSampling() error {
	api := j.api
	if api.N != nil {
		j.choices = *api.N
	}
	if j.choices < 1 || j.choices*len(j.prompts) > maxChoices {
		return badRequest("n", "n must be at least 1 and make at most %d choices, got %d", maxChoices, j.choices)
	}
	if t := api.Temperature; t != nil && *t < 0 {
		return badRequest("temperature", "temperature must be non-negative, got %v. (parameter=temperature, value=%v)", *t, *t)
	} else if t != nil && *t > 0 && api.Seed != nil {
		j.seed = mix.Bits(uint64(*api.Seed))
	}
	if api.IgnoreEOS {
		j.stopEvery = 0
	}
	stops, err := parseStops(api.Stop)
	j.stops = stops
	return err
}

func parseStops(v jsontext.Value) ([]string, error) {
	if len(v) == 0 || v.Kind() == 'n' {
		return nil, nil
	}
	var one string
	if json.Unmarshal(v, &one) == nil {
		return []string{one}, nil
	}
	var list []string
	if json.Unmarshal(v, &list) != nil || len(list) > maxStops {
		return nil, badRequest("stop", "stop is neither text nor a list of at most %d texts", maxStops)
	}
	return list, nil
}

// fit settles the number of tokens to generate within the context.
func (j *job) fit(o *Options) error {
	limit := int(o.MaxContext)
	longest := 0
	for _, p := range j.prompts {
		longest = max(longest, len(p.ids))
	}
	if longest == 0 {
		return badRequest("prompt", "the prompt is empty")
	}
	if longest >= limit {
		return badRequest("input_tokens", "This model's maximum context length is %d tokens. However, your prompt contains"+
			" %d input tokens, which leaves no room for output. (parameter=input_tokens, value=%d)", limit, longest, longest)
	}
	asked, param := j.api.MaxTokens, "max_tokens"
	if j.api.MaxCompletionTokens != nil {
		asked, param = j.api.MaxCompletionTokens, "max_completion_tokens"
	}
	switch {
	case asked == nil && j.chat:
		j.maxNew = min(o.AnswerTokens, limit-longest)
		j.byLimit = false
	case asked == nil:
		j.maxNew, j.byLimit = min(16, limit-longest), true // the API's default
	case *asked < 1:
		return badRequest(param, "%s must be at least 1, got %d. (parameter=%s, value=%d)", param, *asked, param, *asked)
	case longest+*asked > limit:
		return badRequest(param, "This model's maximum context length is %d tokens. However, you requested %d output tokens"+
			" and your prompt contains %d input tokens. (parameter=%s, value=%d)", limit, *asked, longest, param, *asked)
	default:
		j.maxNew, j.byLimit = *asked, true
	}
	return nil
}

// name is the response's id: the client's request id when it sent one.
func (x *exchange) name(prefix string) string {
	if id := x.r.Header.Get("X-Request-Id"); id != "" && len(id) <= 128 {
		return prefix + id
	}
	return prefix + "scripted-" + strconv.Itoa(x.rec.Seq)
}

// pinned is the rank the request asks for; -1 for none.
func (x *exchange) pinned() (int, error) {
	h := x.r.Header.Get("X-Data-Parallel-Rank")
	if h == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(h)
	if err != nil || n < 0 || n >= len(x.inc.ranks) {
		return 0, badRequest("data_parallel_rank", "data parallel rank %q is not 0 to %d", h, len(x.inc.ranks)-1)
	}
	return n, nil
}
