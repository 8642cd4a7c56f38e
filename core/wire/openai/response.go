package openai

import "strconv"

// Reasons why a choice ended, as they stand in finish_reason.
const (
	FinishStop   = "stop"
	FinishLength = "length"
	FinishAbort  = "abort"
)

// Head is what all events or the one body of an answer have in common.
type Head struct {
	Chat        bool
	ID          string // with its prefix, chatcmpl- or cmpl-
	Model       string
	Created     int64 // Unix seconds
	Fingerprint string
}

// Usage counts tokens.
type Usage struct {
	Prompt     int
	Completion int
	Cached     int // part of Prompt whose KV was not computed
}

// Logprob is a token with its natural logarithm of probability.
type Logprob struct {
	Token   []byte // the token's bytes, not necessarily UTF-8
	Logprob float64
	Top     []Logprob // alternatives, best first; theirs is unused
}

// Choice is a piece of one of the answers, or all of it.
type Choice struct {
	Index    int
	Text     []byte
	Logprobs []Logprob
	// WantLogprobs tells an empty list from none wanted.
	WantLogprobs bool
	// TextOffset is where Logprobs[0] begins in the answer, in bytes; it stands
	// only in the completions' shape.
	TextOffset int
	Finish     string // empty while it goes on
	StopText   string // the stop string that matched
	StopID     int32  // the stop token that matched, or -1
	TokenIDs   []int32
	WantIDs    bool
	PromptIDs  []int32 // completions with WantIDs, in the first chunk and the body
}

// AppendRole appends the chunk that opens choice index of a chat. promptIDs may
// be nil.
func (h *Head) AppendRole(dst []byte, index int, promptIDs []int32, usage *Usage) []byte {
	dst = h.open(dst, ".chunk")
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	dst = appendUsageMember(dst, usage, false)
	if promptIDs != nil {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, promptIDs)
	}
	return append(dst, '}')
}

// AppendChunk appends the payload of one stream event. A usage that is not nil
// is the running count.
func (h *Head) AppendChunk(dst []byte, c *Choice, usage *Usage) []byte {
	dst = h.open(dst, ".chunk")
	dst = h.appendChoice(dst, c, true)
	dst = append(dst, ']')
	dst = appendUsageMember(dst, usage, false)
	return append(dst, '}')
}

// AppendUsage appends the last chunk before [DONE], which has no choices.
func (h *Head) AppendUsage(dst []byte, usage Usage) []byte {
	dst = h.open(dst, ".chunk")
	dst = append(dst, ']')
	dst = appendUsageMember(dst, &usage, true)
	return append(dst, '}')
}

// AppendResponse appends the body of an answer that is not streamed.
// promptIDs may be nil; a completion's stand in its choices.
func (h *Head) AppendResponse(dst []byte, choices []Choice, usage Usage, promptIDs []int32) []byte {
	dst = h.open(dst, "")
	for i := range choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = h.appendChoice(dst, &choices[i], false)
	}
	dst = append(dst, ']')
	dst = appendUsageMember(dst, &usage, true)
	if h.Chat && promptIDs != nil {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = appendIDs(dst, promptIDs)
	}
	return append(dst, '}')
}

// AppendPrefilled appends the body that answers a prefill leg.
func (h *Head) AppendPrefilled(dst []byte, usage Usage) []byte {
	dst = h.open(dst, "")
	dst = append(dst, ']')
	dst = appendUsageMember(dst, &usage, true)
	return append(dst, `,"prefilled":true}`...)
}

func (h *Head) open(dst []byte, chunk string) []byte {
	dst = append(dst, `{"id":`...)
	dst = AppendString(dst, h.ID)
	if h.Chat {
		dst = append(dst, `,"object":"chat.completion`...)
		dst = append(dst, chunk...)
	} else {
		dst = append(dst, `,"object":"text_completion`...)
	}
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, h.Created, 10)
	dst = append(dst, `,"model":`...)
	dst = AppendString(dst, h.Model)
	if h.Fingerprint != "" {
		dst = append(dst, `,"system_fingerprint":`...)
		dst = AppendString(dst, h.Fingerprint)
	}
	return append(dst, `,"choices":[`...)
}

func (h *Head) appendChoice(dst []byte, c *Choice, delta bool) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(c.Index), 10)
	switch {
	case !h.Chat:
		dst = append(dst, `,"text":`...)
		dst = AppendString(dst, c.Text)
	case delta && len(c.Text) == 0:
		dst = append(dst, `,"delta":{}`...)
	case delta:
		dst = append(dst, `,"delta":{"content":`...)
		dst = AppendString(dst, c.Text)
		dst = append(dst, '}')
	default:
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		dst = AppendString(dst, c.Text)
		dst = append(dst, `,"refusal":null}`...)
	}
	dst = append(dst, `,"logprobs":`...)
	switch {
	case !c.WantLogprobs || delta && len(c.Logprobs) == 0:
		dst = append(dst, "null"...)
	case h.Chat:
		dst = appendChatLogprobs(dst, c.Logprobs)
	default:
		dst = appendTextLogprobs(dst, c.Logprobs, c.TextOffset)
	}
	dst = append(dst, `,"finish_reason":`...)
	if c.Finish == "" {
		dst = append(dst, "null"...)
	} else {
		dst = AppendString(dst, c.Finish)
		dst = appendStopReason(dst, c)
	}
	if c.WantIDs {
		dst = append(dst, `,"token_ids":`...)
		dst = appendIDs(dst, c.TokenIDs)
		if c.PromptIDs != nil {
			dst = append(dst, `,"prompt_token_ids":`...)
			dst = appendIDs(dst, c.PromptIDs)
		}
	}
	return append(dst, '}')
}

func appendStopReason(dst []byte, c *Choice) []byte {
	dst = append(dst, `,"stop_reason":`...)
	switch {
	case c.Finish == FinishStop && c.StopText != "":
		return AppendString(dst, c.StopText)
	case c.Finish == FinishStop && c.StopID >= 0:
		return strconv.AppendInt(dst, int64(c.StopID), 10)
	}
	return append(dst, "null"...)
}

func appendIDs(dst []byte, ids []int32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	return append(dst, ']')
}

func appendUsageMember(dst []byte, u *Usage, details bool) []byte {
	if u == nil {
		return dst
	}
	dst = append(dst, `,"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Prompt), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Prompt+u.Completion), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.Completion), 10)
	if details {
		dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
		dst = strconv.AppendInt(dst, int64(u.Cached), 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// appendChatLogprobs is {"content":[{"token","logprob","bytes","top_logprobs"}]}.
func appendChatLogprobs(dst []byte, list []Logprob) []byte {
	dst = append(dst, `{"content":[`...)
	for i := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLogprob(dst, &list[i])
		dst = append(dst, `,"top_logprobs":[`...)
		for j := range list[i].Top {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendLogprob(dst, &list[i].Top[j]), '}')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}"...)
}

// appendLogprob leaves the object open.
func appendLogprob(dst []byte, p *Logprob) []byte {
	dst = append(dst, `{"token":`...)
	dst = AppendString(dst, p.Token)
	dst = append(dst, `,"logprob":`...)
	dst = appendFloat(dst, p.Logprob)
	dst = append(dst, `,"bytes":[`...)
	for i, b := range p.Token {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(b), 10)
	}
	return append(dst, ']')
}

// appendTextLogprobs is four parallel arrays.
func appendTextLogprobs(dst []byte, list []Logprob, offset int) []byte {
	each := func(name string, f func(p *Logprob)) {
		dst = append(dst, name...)
		for i := range list {
			if i > 0 {
				dst = append(dst, ',')
			}
			f(&list[i])
		}
	}
	each(`{"text_offset":[`, func(p *Logprob) {
		dst = strconv.AppendInt(dst, int64(offset), 10)
		offset += len(p.Token)
	})
	each(`],"token_logprobs":[`, func(p *Logprob) { dst = appendFloat(dst, p.Logprob) })
	each(`],"tokens":[`, func(p *Logprob) { dst = AppendString(dst, p.Token) })
	each(`],"top_logprobs":[`, func(p *Logprob) {
		dst = append(dst, '{')
		for j := range p.Top {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = AppendString(dst, p.Top[j].Token)
			dst = append(dst, ':')
			dst = appendFloat(dst, p.Top[j].Logprob)
		}
		dst = append(dst, '}')
	})
	return append(dst, "]}"...)
}

// AppendModels appends the body of /v1/models for one model.
func AppendModels(dst []byte, model string, created int64, maxModelLen int) []byte {
	dst = append(dst, `{"object":"list","data":[{"id":`...)
	dst = AppendString(dst, model)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, created, 10)
	dst = append(dst, `,"owned_by":"yardmaster","root":`...)
	dst = AppendString(dst, model)
	dst = append(dst, `,"parent":null,"max_model_len":`...)
	dst = strconv.AppendInt(dst, int64(maxModelLen), 10)
	return append(dst, "}]}"...)
}

// AppendTokenized appends the body that answers /tokenize. texts may be nil.
func AppendTokenized(dst []byte, ids []int32, texts []string, maxModelLen int) []byte {
	dst = append(dst, `{"count":`...)
	dst = strconv.AppendInt(dst, int64(len(ids)), 10)
	dst = append(dst, `,"max_model_len":`...)
	dst = strconv.AppendInt(dst, int64(maxModelLen), 10)
	dst = append(dst, `,"tokens":`...)
	dst = appendIDs(dst, ids)
	dst = append(dst, `,"token_strs":`...)
	if texts == nil {
		return append(dst, "null}"...)
	}
	for i, s := range texts {
		dst = append(dst, "[,"[min(i, 1)])
		dst = AppendString(dst, s)
	}
	if len(texts) == 0 {
		dst = append(dst, '[')
	}
	return append(dst, "]}"...)
}

// AppendDetokenized appends the body that answers /detokenize.
func AppendDetokenized(dst, text []byte) []byte {
	dst = append(dst, `{"prompt":`...)
	return append(AppendString(dst, text), '}')
}
