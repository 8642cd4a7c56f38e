package openai

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
)

// Limits of a request. Bodies are limited before they come here; these keep a
// small body from asking for much.
const (
	maxMembers      = 256
	maxMessages     = 4096
	maxParts        = 4096
	maxPrompts      = 128
	maxPromptTokens = 1 << 22
	maxStops        = 16
	maxStopBytes    = 1024
	maxStopIDs      = 256
	maxBias         = 1024
	maxN            = 128
	maxTopLogprobs  = 20
	maxModelBytes   = 512
	maxSaltBytes    = 1024
	maxBatch        = 128 // prompts times n
)

// Message is one turn of a chat. Text parts are joined by newlines.
type Message struct {
	Role    string
	Content string
	Fields  map[string]any // name, tool_call_id, tool_calls, reasoning_content, if present
}

// Prompt is text, or token ids if IDs is not nil.
type Prompt struct {
	Text string
	IDs  []int32
}

// Bias is one entry of logit_bias.
type Bias struct {
	Token int32
	Value float64
}

// Sampling is how tokens are chosen and when to stop.
type Sampling struct {
	Temperature, TopP, MinP                              float64
	TopK                                                 int // 0 is off
	PresencePenalty, FrequencyPenalty, RepetitionPenalty float64
	LogitBias                                            []Bias
	Seed                                                 *int64
	MaxTokens                                            int // 0 means as many as fit
	MinTokens                                            int
	IgnoreEOS                                            bool
	Stop                                                 []string
	StopTokenIDs                                         []int32
	IncludeStop                                          bool // include_stop_str_in_output
	// Logprobs is how many alternatives each token comes with, 0 being the chosen
	// one alone; -1 when no logprobs are wanted.
	Logprobs int
}

// Request is a call of /v1/chat/completions or /v1/completions.
type Request struct {
	Chat     bool
	Model    string
	Messages []Message // chat
	Prompts  []Prompt  // completions, at least one

	Sampling
	N               int
	Stream          bool
	IncludeUsage    bool // a usage chunk at the end of the stream
	ContinuousUsage bool // usage in every chunk
	ReturnTokenIDs  bool

	AddGenerationPrompt bool // chat, default true
	TemplateArgs        map[string]any
	AddSpecialTokens    bool // whether BOS is added; default true for completions
	SkipSpecialTokens   bool // default true
	CacheSalt           string
	// Continue is the output so far of a stream that began elsewhere, see
	// engine.ContinueField; nil when there is none, not empty when nothing came.
	Continue []int32
}

type reader = map[string]func(*Request, value) error

// ParseChat reads the body of /v1/chat/completions. Errors are *errs.Error of
// kind BadRequest naming the field.
func ParseChat(body []byte) (*Request, error) {
	r := defaults()
	r.Chat, r.AddGenerationPrompt = true, true
	var logprobs chatLogprobs
	known := chatFields(&logprobs)
	if err := fields(body, r, known); err != nil {
		return nil, err
	}
	if len(r.Messages) == 0 {
		return nil, bad("messages", "messages must not be empty")
	}
	if logprobs.top >= 0 && !logprobs.on {
		return nil, bad("top_logprobs", "top_logprobs needs logprobs to be true")
	}
	if logprobs.on {
		r.Logprobs = max(logprobs.top, 0)
	}
	return r, r.check()
}

// ParseCompletion reads the body of /v1/completions. Errors are as ParseChat's.
func ParseCompletion(body []byte) (*Request, error) {
	r := defaults()
	r.AddSpecialTokens = true
	r.MaxTokens = 16 // OpenAI's default
	if err := fields(body, r, completionFields); err != nil {
		return nil, err
	}
	if len(r.Prompts) == 0 {
		return nil, bad("prompt", "prompt must not be empty")
	}
	if len(r.Prompts)*r.N > maxBatch {
		return nil, bad("n", "%d prompts with n=%d are more than %d answers", len(r.Prompts), r.N, maxBatch)
	}
	return r, r.check()
}

func defaults() *Request {
	return &Request{
		N: 1, SkipSpecialTokens: true,
		Sampling: Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: -1},
	}
}

// check is what concerns several fields.
func (r *Request) check() error {
	switch {
	case r.Model == "":
		return bad("model", "model must be given")
	case (r.IncludeUsage || r.ContinuousUsage) && !r.Stream:
		return bad("stream_options", "stream_options needs stream to be true")
	case r.Continue != nil && (!r.Stream || r.N > 1 || len(r.Prompts) > 1 || r.Logprobs >= 0):
		return bad(engine.ContinueField, "only one stream of text can be continued")
	case r.Continue != nil && r.MaxTokens > 0 && len(r.Continue) >= r.MaxTokens:
		return bad(engine.ContinueField, "the answer to be continued has all its tokens")
	case r.MaxTokens > 0 && r.MinTokens > r.MaxTokens:
		return bad("min_tokens", "min_tokens %d is more than max_tokens %d", r.MinTokens, r.MaxTokens)
	}
	return nil
}

// chatLogprobs are chat's two fields for logprobs, which may come in any order.
type chatLogprobs struct {
	on  bool
	top int
}

func chatFields(lp *chatLogprobs) reader {
	lp.top = -1
	known := reader{
		"messages": readMessages,
		"logprobs": func(_ *Request, v value) (err error) { lp.on, err = v.boolean(); return err },
		"top_logprobs": func(_ *Request, v value) error {
			n, err := v.integer(0, maxTopLogprobs)
			lp.top = int(n)
			return err
		},
		"max_completion_tokens": readMaxTokens,
		"add_generation_prompt": func(r *Request, v value) (err error) { r.AddGenerationPrompt, err = v.boolean(); return err },
		"chat_template_kwargs": func(r *Request, v value) error {
			a, err := v.anything()
			if err != nil {
				return err
			}
			m, ok := a.(map[string]any)
			if !ok {
				return v.wrong("an object")
			}
			r.TemplateArgs = m
			return nil
		},
		"chat_template":          refuse("chat_template", "a chat template in the request"),
		"continue_final_message": refuseTrue("continue_final_message"),
		"tools":                  refuseItems("tool use"),
		"functions":              refuseItems("tool use"),
		"documents":              refuseItems("retrieval"),
		"audio":                  refuse("audio", "audio"),
		"modalities":             readModalities,
	}
	maps.Copy(known, commonFields)
	return known
}

var completionFields = func() reader {
	known := reader{
		"prompt": readPrompts,
		"logprobs": func(r *Request, v value) error {
			n, err := v.integer(0, maxTopLogprobs)
			r.Logprobs = int(n)
			return err
		},
		"echo": refuseTrue("echo"),
		"suffix": func(_ *Request, v value) error {
			if s, err := v.str(); err != nil || s == "" {
				return err
			}
			return unsupported("suffix", "suffix")
		},
		"best_of": func(_ *Request, v value) error {
			if n, err := v.integer(1, maxN); err != nil || n == 1 {
				return err
			}
			return unsupported("best_of", "best_of")
		},
		"prompt_embeds": refuse("prompt_embeds", "prompt_embeds"),
	}
	maps.Copy(known, commonFields)
	return known
}()

var commonFields = reader{
	"model": func(r *Request, v value) (err error) { r.Model, err = v.strMax(maxModelBytes); return err },
	"temperature": func(r *Request, v value) (err error) {
		r.Temperature, err = v.number(0, 2)
		return err
	},
	"top_p": func(r *Request, v value) (err error) {
		r.TopP, err = v.number(0, 1)
		if err == nil && r.TopP == 0 {
			return bad("top_p", "top_p must be above 0 and at most 1")
		}
		return err
	},
	"min_p": func(r *Request, v value) (err error) { r.MinP, err = v.number(0, 1); return err },
	"top_k": func(r *Request, v value) error {
		n, err := v.integer(-1, math.MaxInt32)
		r.TopK = int(max(n, 0))
		return err
	},
	"presence_penalty":  func(r *Request, v value) (err error) { r.PresencePenalty, err = v.number(-2, 2); return err },
	"frequency_penalty": func(r *Request, v value) (err error) { r.FrequencyPenalty, err = v.number(-2, 2); return err },
	"repetition_penalty": func(r *Request, v value) (err error) {
		r.RepetitionPenalty, err = v.number(0, 100)
		if err == nil && r.RepetitionPenalty == 0 {
			return bad("repetition_penalty", "repetition_penalty must be above 0 and at most 100")
		}
		return err
	},
	"logit_bias": readBias,
	"seed": func(r *Request, v value) error {
		n, err := v.integer(math.MinInt64, math.MaxInt64)
		r.Seed = &n
		return err
	},
	"max_tokens": readMaxTokens,
	"min_tokens": func(r *Request, v value) error {
		n, err := v.integer(0, math.MaxInt32)
		r.MinTokens = int(n)
		return err
	},
	"ignore_eos": func(r *Request, v value) (err error) { r.IgnoreEOS, err = v.boolean(); return err },
	"stop":       readStop,
	"stop_token_ids": func(r *Request, v value) (err error) {
		r.StopTokenIDs, err = v.ids(maxStopIDs)
		return err
	},
	"include_stop_str_in_output": func(r *Request, v value) (err error) { r.IncludeStop, err = v.boolean(); return err },
	"n": func(r *Request, v value) error {
		n, err := v.integer(1, maxN)
		r.N = int(n)
		return err
	},
	"stream":         func(r *Request, v value) (err error) { r.Stream, err = v.boolean(); return err },
	"stream_options": readStreamOptions,
	"return_token_ids": func(r *Request, v value) (err error) {
		r.ReturnTokenIDs, err = v.boolean()
		return err
	},
	"add_special_tokens":  func(r *Request, v value) (err error) { r.AddSpecialTokens, err = v.boolean(); return err },
	"skip_special_tokens": func(r *Request, v value) (err error) { r.SkipSpecialTokens, err = v.boolean(); return err },
	"cache_salt": func(r *Request, v value) (err error) {
		r.CacheSalt, err = v.strMax(maxSaltBytes)
		return err
	},
	engine.ContinueField:         readContinue,
	"response_format":            readResponseFormat,
	"use_beam_search":            refuseTrue("use_beam_search"),
	"prompt_logprobs":            refuse("prompt_logprobs", "prompt_logprobs"),
	"truncate_prompt_tokens":     refuse("truncate_prompt_tokens", "truncate_prompt_tokens"),
	"structured_outputs":         refuse("structured_outputs", "constrained output"),
	"guided_json":                refuse("guided_json", "constrained output"),
	"guided_regex":               refuse("guided_regex", "constrained output"),
	"guided_choice":              refuse("guided_choice", "constrained output"),
	"guided_grammar":             refuse("guided_grammar", "constrained output"),
	"allowed_token_ids":          refuse("allowed_token_ids", "allowed_token_ids"),
	"bad_words":                  refuseItems("bad_words"),
	"logits_processors":          refuse("logits_processors", "logits_processors"),
	"length_penalty":             ignore,
	"return_tokens_as_token_ids": refuseTrue("return_tokens_as_token_ids"),
}

func ignore(*Request, value) error { return nil }

func refuse(param, what string) func(*Request, value) error {
	return func(*Request, value) error { return unsupported(param, what) }
}

func refuseTrue(param string) func(*Request, value) error {
	return func(_ *Request, v value) error {
		if on, err := v.boolean(); err != nil || !on {
			return err
		}
		return unsupported(param, param)
	}
}

// refuseItems refuses a list that is not empty.
func refuseItems(what string) func(*Request, value) error {
	return func(_ *Request, v value) error {
		return v.items(1, func(int, value) error { return unsupported(v.param, what) })
	}
}

func readMaxTokens(r *Request, v value) error {
	n, err := v.integer(1, math.MaxInt32)
	r.MaxTokens = int(n)
	return err
}

func readModalities(_ *Request, v value) error {
	return v.items(4, func(_ int, item value) error {
		if s, err := item.str(); err != nil || s == "text" {
			return err
		}
		return unsupported("modalities", "any modality but text")
	})
}

func readResponseFormat(_ *Request, v value) error {
	return v.members(8, func(m value) error {
		if m.param != "type" {
			return nil
		}
		if s, err := m.str(); err != nil || s == "text" {
			return err
		}
		return unsupported("response_format", "any response format but text")
	})
}

func readStreamOptions(r *Request, v value) error {
	return v.members(16, func(m value) (err error) {
		switch {
		case m.null():
		case m.param == "include_usage":
			r.IncludeUsage, err = m.boolean()
		case m.param == "continuous_usage_stats":
			r.ContinuousUsage, err = m.boolean()
		}
		return err
	})
}

func readStop(r *Request, v value) error {
	add := func(item value) error {
		s, err := item.strMax(maxStopBytes)
		if err != nil {
			return err
		}
		if s == "" {
			return bad("stop", "a stop string must not be empty")
		}
		r.Stop = append(r.Stop, s)
		return nil
	}
	if v.raw.Kind() == '"' {
		if string(v.raw) == `""` { // clients send it for "none"
			return nil
		}
		return add(v)
	}
	return v.items(maxStops, func(_ int, item value) error { return add(item) })
}

// maxContinued bounds the output that can be taken over, in tokens.
const maxContinued = 1 << 20

func readContinue(r *Request, v value) error {
	r.Continue = []int32{}
	return v.members(4, func(m value) error {
		if m.param != "token_ids" {
			return nil
		}
		ids, err := m.ids(maxContinued)
		r.Continue = append(r.Continue, ids...)
		return err
	})
}

func readBias(r *Request, v value) error {
	err := v.members(maxBias, func(m value) error {
		id, err := strconv.ParseInt(m.param, 10, 32)
		if err != nil || id < 0 {
			return bad("logit_bias", "logit_bias has a key that is no token id")
		}
		b, err := value{m.raw, "logit_bias"}.number(-100, 100)
		r.LogitBias = append(r.LogitBias, Bias{int32(id), b})
		return err
	})
	slices.SortFunc(r.LogitBias, func(a, b Bias) int { return int(a.Token) - int(b.Token) })
	return err
}

func readMessages(r *Request, v value) error {
	r.Messages = []Message{}
	return v.items(maxMessages, func(i int, item value) error {
		m, err := readMessage(value{item.raw, "messages[" + strconv.Itoa(i) + "]"})
		r.Messages = append(r.Messages, m)
		return err
	})
}

func readMessage(v value) (Message, error) {
	var m Message
	err := v.members(32, func(f value) (err error) {
		name := f.param
		f.param = v.param + "." + name
		switch {
		case f.null():
		case name == "role":
			m.Role, err = f.strMax(64)
		case name == "content":
			m.Content, err = readContent(f)
		case name == "name", name == "tool_call_id", name == "tool_calls", name == "reasoning_content":
			if m.Fields == nil {
				m.Fields = map[string]any{}
			}
			m.Fields[name], err = f.anything()
		}
		return err
	})
	if err == nil && m.Role == "" {
		return m, bad(v.param+".role", "%s.role must be given", v.param)
	}
	return m, err
}

// readContent is text, or an array of text parts.
func readContent(v value) (string, error) {
	if v.raw.Kind() == '"' {
		return v.str()
	}
	if v.raw.Kind() != '[' {
		return "", v.wrong("a string or an array of parts")
	}
	var text []byte
	err := v.items(maxParts, func(i int, part value) error {
		var kind, s string
		part.param = v.param + "[" + strconv.Itoa(i) + "]"
		err := part.members(16, func(f value) (err error) {
			name := f.param
			f.param = part.param + "." + name
			switch name {
			case "type":
				kind, err = f.str()
			case "text":
				s, err = f.str()
			}
			return err
		})
		if err != nil {
			return err
		}
		if kind != "text" && kind != "input_text" {
			return unsupported(part.param, "content other than text")
		}
		if i > 0 {
			text = append(text, '\n')
		}
		text = append(text, s...)
		return nil
	})
	return string(text), err
}

// readPrompts is a string, strings, token ids, or arrays of token ids.
func readPrompts(r *Request, v value) error {
	switch v.raw.Kind() {
	case '"':
		s, err := v.str()
		r.Prompts = []Prompt{{Text: s}}
		return err
	case '[':
	default:
		return v.wrong("a string, an array of strings, token ids or arrays of token ids")
	}
	switch elementKind(v.raw) {
	case '0':
		ids, err := v.ids(maxPromptTokens)
		r.Prompts = []Prompt{{IDs: ids}}
		return err
	case ']':
		return bad("prompt", "prompt must not be empty")
	default:
	}
	return v.items(maxPrompts, func(_ int, item value) error {
		var p Prompt
		var err error
		if item.raw.Kind() == '[' {
			if p.IDs, err = item.ids(maxPromptTokens); err == nil && len(p.IDs) == 0 {
				return bad("prompt", "prompt holds an empty array")
			}
		} else {
			p.Text, err = item.str()
		}
		r.Prompts = append(r.Prompts, p)
		return err
	})
}

// elementKind is the kind of an array's first element, ']' if it has none.
func elementKind(array jsontext.Value) jsontext.Kind {
	for _, c := range array[1:] {
		switch c {
		case ' ', '\t', '\n', '\r':
			continue
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			return '0'
		case ']':
			return ']'
		}
		return jsontext.Kind(c)
	}
	return ']'
}

// TokenizeRequest is a call of /tokenize: a prompt, or messages.
type TokenizeRequest struct {
	Request
	Prompt           string
	ReturnTokenTexts bool // return_token_strs
}

// ParseTokenize reads the body of /tokenize. The model may be left out.
func ParseTokenize(body []byte) (*TokenizeRequest, error) {
	t := &TokenizeRequest{Request: Request{AddGenerationPrompt: true}}
	addSpecial := -1
	has := false
	known := map[string]func(*TokenizeRequest, value) error{
		"prompt": func(t *TokenizeRequest, v value) (err error) { has = true; t.Prompt, err = v.str(); return err },
		"return_token_strs": func(t *TokenizeRequest, v value) (err error) {
			t.ReturnTokenTexts, err = v.boolean()
			return err
		},
		"add_special_tokens": func(_ *TokenizeRequest, v value) error {
			on, err := v.boolean()
			addSpecial = 0
			if on {
				addSpecial = 1
			}
			return err
		},
	}
	var unused chatLogprobs
	chat := chatFields(&unused)
	for _, name := range []string{"model", "messages", "add_generation_prompt", "chat_template_kwargs", "tools", "chat_template"} {
		known[name] = func(t *TokenizeRequest, v value) error { return chat[name](&t.Request, v) }
	}
	if err := fields(body, t, known); err != nil {
		return nil, err
	}
	t.Chat = t.Messages != nil
	if has == t.Chat {
		return nil, bad("prompt", "either prompt or messages must be given")
	}
	t.AddSpecialTokens = addSpecial == 1 || addSpecial == -1 && !t.Chat
	return t, nil
}

// DetokenizeRequest is a call of /detokenize.
type DetokenizeRequest struct {
	Model  string
	Tokens []int32
}

// ParseDetokenize reads the body of /detokenize. The model may be left out.
func ParseDetokenize(body []byte) (*DetokenizeRequest, error) {
	d := &DetokenizeRequest{}
	err := fields(body, d, map[string]func(*DetokenizeRequest, value) error{
		"model":  func(d *DetokenizeRequest, v value) (err error) { d.Model, err = v.strMax(maxModelBytes); return err },
		"tokens": func(d *DetokenizeRequest, v value) (err error) { d.Tokens, err = v.ids(maxPromptTokens); return err },
	})
	if err == nil && d.Tokens == nil {
		err = bad("tokens", "tokens must be given")
	}
	return d, err
}

// ModelNotFound is the answer to a request for a model that is not served here.
func ModelNotFound(model string) *errs.Error {
	return &errs.Error{
		Kind: errs.NotFound, Client: "the model " + strconv.Quote(model) + " does not exist",
		Param: "model", Code: "model_not_found",
	}
}

// PromptTooLong is the answer to a prompt that does not fit.
func PromptTooLong(prompt, limit int) *errs.Error {
	return &errs.Error{
		Kind: errs.BadRequest, Code: "context_length_exceeded", Param: "messages",
		Client: "this model's maximum context length is " + strconv.Itoa(limit) + " tokens, but the prompt has " +
			strconv.Itoa(prompt) + " tokens and at least one is needed for the answer",
	}
}
