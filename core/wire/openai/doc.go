// Package openai is the OpenAI wire format as an engine speaks it: typed
// requests for chat completions, completions, tokenize and detokenize, and
// builders that append responses, stream chunks and errors as JSON bytes.
//
// It parses everything, because an engine acts on every field: wrong types are
// refused with the field named, unknown fields are ignored, and every list has
// a limit, so that a small body cannot cost much. A gateway, which forwards
// bodies it does not own, parses less; it shares only the error envelope
// ([AppendError], [Status]). The framing of event streams is package
// eventstream; this package makes the payloads.
package openai
