package edge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/unit"
)

// MaxModelName is the longest model name in bytes that a request may carry.
const MaxModelName = 512

// MaxStops is the most stop strings that a limit can allow.
const MaxStops = 4096

// DefaultMaxDepth is the nesting that Parse allows when asked for 0.
const DefaultMaxDepth = 128

// Request is what a gateway knows of a generation request.
type Request struct {
	// Body is what the engine gets: the client's bytes, but for internal fields
	// taken out and, after CountUsage, the usage option put in.
	Body   []byte
	Model  string
	Stream bool
	// WantsUsage says that the client asked for the usage event of a stream.
	WantsUsage bool
	// AddedUsage says that CountUsage made the engine send a usage event which
	// the client does not expect.
	AddedUsage bool
	// MaxTokens is the client's limit of the output; 0 when it gave none.
	MaxTokens unit.Tokens
	// Continuable says that the answer is one stream of plain text that another
	// engine could go on with: no alternatives, no log probabilities.
	Continuable bool
	// ManyPrompts says that the request has several prompts, each to be completed.
	ManyPrompts bool
	// Stops is the number of stop strings, counted up to MaxStops+1.
	Stops int
	// WantsIDs says that the client asked for token ids.
	WantsIDs bool
	// Session is a hash of what the client calls its conversation by, or itself:
	// prompt_cache_key, else user, else safety_identifier. It is 0 without them.
	Session uint64
	// Prompt is the size of the messages, the prompt or the input as JSON text.
	Prompt unit.Bytes

	options span // value of stream_options in Body; empty when absent
}

// span is the half-open byte range of a value; [0, 0) is none.
type span struct{ from, to int }

// Parse looks at a request body, which then belongs to the request: CountUsage
// may change it, and the memory behind it up to its capacity. maxDepth
// bounds the nesting; 0 means DefaultMaxDepth. Errors are *errs.Error of kind
// BadRequest that name the field at fault.
func Parse(body []byte, maxDepth int) (*Request, error) {
	if maxDepth == 0 {
		maxDepth = DefaultMaxDepth
	}
	if depth(body, maxDepth) > maxDepth {
		return nil, bad("", "the request body is nested deeper than %d levels", maxDepth)
	}
	if !gjson.ValidBytes(body) {
		return nil, bad("", "the request body is not valid JSON")
	}
	root := gjson.Parse(text(body))
	if !root.IsObject() {
		return nil, bad("", "the request body is not a JSON object")
	}
	r := &Request{Body: body}
	var fields owned
	if err := fields.collect(root); err != nil {
		return nil, err
	}
	if fields.internal {
		r.Body = without(root, body)
		fields = owned{}
		if err := fields.collect(gjson.Parse(text(r.Body))); err != nil {
			return nil, err
		}
	}
	return r, r.read(&fields)
}

// owned are the values of the fields the gateway reads, by place in ownedNames.
type owned struct {
	value    [len(ownedNames)]gjson.Result
	internal bool // fields are present that no client may send
}

const (
	fieldModel = iota
	fieldStream
	fieldOptions
	fieldMaxTokens
	fieldMaxCompletion
	fieldMessages
	fieldPrompt
	fieldInput
	fieldN
	fieldLogprobs
	fieldReturnIDs
	fieldStop
	fieldCacheKey
	fieldUser
	fieldSafety
)

var ownedNames = [...]string{
	"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "messages", "prompt", "input",
	"n", "logprobs", "return_token_ids", "stop",
	"prompt_cache_key", "user", "safety_identifier",
}

// collect walks the top level once. A field of ours that stands there twice is
// refused: engine and gateway might each believe another one. (For the internal
// fields it does not matter, all are taken out.)
func (f *owned) collect(root gjson.Result) error {
	var err error
	root.ForEach(func(key, value gjson.Result) bool {
		name := key.Str
		f.internal = f.internal || internalField(name)
		i := slices.Index(ownedNames[:], name)
		if i < 0 {
			return true
		}
		if f.value[i].Exists() {
			err = bad(ownedNames[i], "the field %q occurs twice", ownedNames[i])
			return false
		}
		f.value[i] = value
		return true
	})
	return err
}

func (r *Request) read(f *owned) error {
	model := &f.value[fieldModel]
	switch {
	case !model.Exists() || model.Type == gjson.Null:
		return bad("model", "the field \"model\" is missing")
	case model.Type != gjson.String || model.Str == "":
		return bad("model", "the field \"model\" is not a non-empty string")
	case len(model.Str) > MaxModelName:
		return bad("model", "the model name is longer than %d bytes", MaxModelName)
	}
	r.Model = strings.Clone(model.Str) // it outlives the body
	stream := &f.value[fieldStream]
	if stream.Exists() && stream.Type != gjson.Null && !stream.IsBool() {
		return bad("stream", "the field \"stream\" is not true or false")
	}
	r.Stream = stream.Type == gjson.True
	options := &f.value[fieldOptions]
	if options.Exists() {
		if options.Type != gjson.Null && !options.IsObject() {
			return bad("stream_options", "the field \"stream_options\" is not an object")
		}
		r.options = spanOf(*options)
		r.WantsUsage = r.Stream && options.Get("include_usage").Type == gjson.True
	}
	r.MaxTokens = max(positive(f.value[fieldMaxTokens]), positive(f.value[fieldMaxCompletion]))
	r.Prompt = unit.Bytes(max(len(f.value[fieldMessages].Raw), len(f.value[fieldPrompt].Raw), len(f.value[fieldInput].Raw)))
	r.Session = sessionOf(f)
	r.Stops = stops(f.value[fieldStop])
	r.WantsIDs = f.value[fieldReturnIDs].Type == gjson.True
	r.ManyPrompts = manyPrompts(f.value[fieldPrompt])
	r.Continuable = r.Stream && single(f.value[fieldN]) && onePrompt(f.value[fieldPrompt]) && !wanted(f.value[fieldLogprobs])
	return nil
}

// Session is the hash of a conversation's name; 0 of an empty one. It is the same
// at every gateway.
func Session(name string) uint64 {
	if name == "" {
		return 0
	}
	return max(xxhash.Sum64String(name), 1)
}

func sessionOf(f *owned) uint64 {
	for _, field := range [...]int{fieldCacheKey, fieldUser, fieldSafety} {
		if v := &f.value[field]; v.Type == gjson.String && v.Str != "" {
			return Session(v.Str)
		}
	}
	return 0
}

// stops counts stop strings. Each costs an engine time for every token.
func stops(v gjson.Result) (n int) {
	if v.Type == gjson.String {
		return 1
	}
	if v.IsArray() {
		v.ForEach(func(_, _ gjson.Result) bool { n++; return n <= MaxStops })
	}
	return n
}

// single reports whether n asks for one answer.
func single(n gjson.Result) bool {
	return !n.Exists() || n.Type == gjson.Null || n.Type == gjson.Number && n.Num == 1
}

// onePrompt reports whether a prompt is not a list of several: absent, text or
// token ids.
func onePrompt(p gjson.Result) bool {
	return !p.IsArray() || p.Get("0").Type == gjson.Number || !p.Get("1").Exists() && !p.Get("0").IsArray()
}

// manyPrompts reports whether a prompt is a list of several: texts, or lists of
// token ids.
func manyPrompts(p gjson.Result) bool {
	return p.IsArray() && p.Get("1").Exists() && p.Get("0").Type != gjson.Number
}

// wanted reports whether logprobs, a number or true, asks for any.
func wanted(v gjson.Result) bool { return v.Type == gjson.Number || v.Type == gjson.True }

// Continuation is the body that asks an engine to go on after ids, the output so
// far.
func (r *Request) Continuation(ids []uint32) []byte {
	open := strings.IndexByte(text(r.Body), '{') + 1
	out := make([]byte, 0, len(r.Body)+8*len(ids)+64)
	out = append(out, r.Body[:open]...)
	out = append(out, '"')
	out = append(out, engine.ContinueField...)
	out = append(out, `":{"token_ids":[`...)
	for i, id := range ids {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(id), 10)
	}
	out = append(out, "]},"...) // a model field follows
	return append(out, r.Body[open:]...)
}

// CountUsage makes the engine report the usage of a stream whose client did not
// ask for it; it comes before Shorten. The Watch marks the event that results, to be left out.
func (r *Request) CountUsage() {
	if !r.Stream || r.WantsUsage || r.AddedUsage {
		return
	}
	r.AddedUsage = true
	const option = `"include_usage":true`
	options := gjson.Parse(text(r.Body[r.options.from:r.options.to]))
	if !options.IsObject() {
		const whole = `"stream_options":{` + option + `}`
		if r.options.to > 0 { // null
			r.splice(r.options, `{`+option+`}`)
			return
		}
		open := strings.IndexByte(text(r.Body), '{') + 1
		r.splice(span{open, open}, whole+",") // a model field follows
		return
	}
	if given := options.Get("include_usage"); given.Exists() {
		at := r.options.from + given.Index
		r.splice(span{at, at + len(given.Raw)}, "true")
		return
	}
	comma := ","
	if len(options.Map()) == 0 {
		comma = ""
	}
	inside := r.options.from + 1
	r.splice(span{inside, inside}, option+comma)
}

// Shorten has the engine generate at most n tokens, unless the client asked for fewer.
func (r *Request) Shorten(n unit.Tokens) {
	if r.MaxTokens > 0 && r.MaxTokens <= n {
		return
	}
	var limits []span
	gjson.Parse(text(r.Body)).ForEach(func(key, value gjson.Result) bool {
		if (key.Str == ownedNames[fieldMaxTokens] || key.Str == ownedNames[fieldMaxCompletion]) && (value.Type != gjson.Number || value.Num > float64(n)) {
			limits = append(limits, spanOf(value))
		}
		return true
	})
	number := strconv.FormatInt(int64(n), 10)
	for _, s := range slices.Backward(limits) { // what is before stays in its place
		// Blanks keep what follows in its place, too.
		r.splice(s, number+strings.Repeat(" ", max(s.to-s.from-len(number), 0)))
	}
	if r.MaxTokens == 0 && len(limits) == 0 {
		open := strings.IndexByte(text(r.Body), '{') + 1
		r.splice(span{open, open}, `"max_tokens":`+number+",") // a model field follows
	}
	r.MaxTokens = n
	r.options = span{} // it may have moved
}

// splice replaces a part of the body by something longer or as long: in place
// where there is room behind the body, else in a copy.
func (r *Request) splice(s span, with string) {
	n := len(r.Body)
	grown := n + len(with) - (s.to - s.from)
	out := r.Body
	if cap(out) < grown {
		out = make([]byte, n, grown)
		copy(out, r.Body[:s.from])
	}
	out = out[:max(n, grown)]
	copy(out[s.from+len(with):], r.Body[s.to:n])
	copy(out[s.from:], with)
	r.Body = out[:grown]
}

// internalField reports whether a field commands the engine's side of a
// disaggregated pair or pins a rank. Only a gateway may send such fields: they
// name hosts and ports to dial.
func internalField(name string) bool {
	switch name {
	case "kv_transfer_params", "ec_transfer_params", "disaggregated_params", "routed_dp_rank", "data_parallel_rank":
		return true
	}
	return strings.HasPrefix(name, "bootstrap_") || strings.HasPrefix(name, "yardmaster_")
}

// without is the object root of body less its internal fields. The members that
// stay keep their bytes.
func without(root gjson.Result, body []byte) []byte {
	out := make([]byte, 0, len(body))
	out = append(out, '{')
	root.ForEach(func(key, value gjson.Result) bool {
		if internalField(key.Str) {
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, body[key.Index:spanOf(value).to]...)
		return true
	})
	return append(out, '}')
}

func spanOf(v gjson.Result) span { return span{v.Index, v.Index + len(v.Raw)} }

// positive is the value of a positive integer field, else 0. What a wrong value
// deserves is the engine's to say.
func positive(v gjson.Result) unit.Tokens {
	if v.Type != gjson.Number || v.Num < 1 || v.Num > 1<<31 {
		return 0
	}
	return unit.Tokens(v.Num)
}

func bad(param, format string, args ...any) error {
	return &errs.Error{Kind: errs.BadRequest, Client: fmt.Sprintf(format, args...), Param: param}
}
