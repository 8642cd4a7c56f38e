package edge

import (
	"bytes"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/errs"
)

// Watch follows the events of one stream of chat or text completions. The zero
// value is ready.
type Watch struct {
	Usage  Usage // the last one seen
	Tokens int   // events that carried output
	// Finished says that a choice ended with a finish reason.
	Finished bool
}

// Sight is what one event is. An event may be several things at once.
type Sight struct {
	Token     bool // carries output
	Done      bool // the [DONE] marker, nothing else
	UsageOnly bool // usage and no choice
	// Err says that generation failed, whether the engine sent an error instead
	// of a chunk or a chunk that says so; nil otherwise.
	Err *errs.Error
	// Chunk says that the failed event is a chunk in its own right, to be
	// forwarded before the error.
	Chunk bool
}

var (
	done       = []byte("[DONE]")
	keyUsage   = []byte(`"usage"`)
	keyError   = []byte(`"error"`)
	nullFinish = [2][]byte{[]byte(`"finish_reason":null`), []byte(`"finish_reason": null`)}
)

// See reads the data of one event, which it does not keep. An event without
// data is nothing, and one that is no JSON has no output.
//
// After the first token an ordinary chunk costs a few searches of bytes, no
// parse: only one that reports usage, an error or an end is opened.
func (w *Watch) See(data []byte) Sight {
	switch {
	case len(data) == 0:
		return Sight{}
	case bytes.Equal(data, done):
		return Sight{Done: true}
	case w.Tokens > 0 && ordinary(data):
		w.Tokens++
		return Sight{Token: true}
	}
	return w.open(data)
}

// ordinary recognises a chunk of output by its bytes. A key inside generated
// text has its quotes escaped and does not look like one.
func ordinary(data []byte) bool {
	return (bytes.Contains(data, nullFinish[0]) || bytes.Contains(data, nullFinish[1])) &&
		!given(data, keyUsage) && !given(data, keyError)
}

// given reports whether key occurs with a value other than null.
func given(data, key []byte) bool {
	_, rest, found := bytes.Cut(data, key)
	return found && !bytes.HasPrefix(bytes.TrimLeft(rest, ": "), []byte("null"))
}

func (w *Watch) open(data []byte) Sight {
	root := gjson.Parse(text(data))
	if !root.IsObject() {
		return Sight{}
	}
	if e := failure(root); e != nil {
		return Sight{Err: e}
	}
	if !gjson.ValidBytes(data) {
		return Sight{} // the parser finds things in it nonetheless
	}
	var s Sight
	usage := usageOf(root.Get("usage"))
	if usage.Known {
		w.Usage = usage
	}
	choices := root.Get("choices")
	count := 0
	choices.ForEach(func(_, choice gjson.Result) bool {
		count++
		s.Token = s.Token || hasOutput(choice)
		if reason := choice.Get("finish_reason"); reason.Type == gjson.String && reason.Str != "" {
			w.Finished = true
			if failedReason(reason.Str) {
				s.Chunk = true
				s.Err = &errs.Error{Kind: errs.Upstream, Client: "the engine ended the generation with an error", Code: "generation_failed"}
			}
		}
		return true
	})
	s.UsageOnly = usage.Known && count == 0
	if s.Token {
		w.Tokens++
	}
	return s
}

// hasOutput reports whether a choice of a chunk carries generated text, in
// whichever field: chat deltas (content, refusal, reasoning, tool calls) or the
// text of completions. The role alone is no output.
func hasOutput(choice gjson.Result) bool {
	if choice.Get("text").Str != "" {
		return true
	}
	found := false
	choice.Get("delta").ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.Str == "role":
		case value.Type == gjson.String:
			found = value.Str != ""
		case value.IsArray():
			found = len(value.Raw) > 2
		case value.IsObject():
			found = true
		}
		return !found
	})
	return found
}

// failedReason reports whether an engine's finish reason means failure.
func failedReason(reason string) bool { return reason == "error" || reason == "abort" }

// mayFail reports whether such a reason can be among choices: their text is then
// worth a parse.
func mayFail(choices string) bool {
	return strings.Contains(choices, `"error"`) || strings.Contains(choices, `"abort"`)
}

// Answer reads a whole (not streamed) successful body. ok is false when it is
// not a JSON object; err is set when it says that generation failed, under
// whatever status.
func Answer(body []byte) (u Usage, ok bool, err *errs.Error) {
	root, ok := object(body)
	if !ok {
		return Usage{}, false, nil
	}
	failing := false
	root.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "error", "object":
			failing = failing || key.Str == "error" || value.Str == "error"
		case "usage":
			u = usageOf(value)
		case "choices":
			if !mayFail(value.Raw) {
				break
			}
			value.ForEach(func(_, choice gjson.Result) bool {
				if failedReason(choice.Get("finish_reason").Str) {
					err = &errs.Error{Kind: errs.Upstream, Client: "the engine ended the generation with an error", Code: "generation_failed"}
				}
				return true
			})
		}
		return true
	})
	if failing {
		if e := failure(root); e != nil {
			return Usage{}, true, e
		}
	}
	return u, true, err
}
