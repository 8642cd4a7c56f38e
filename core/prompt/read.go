package prompt

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/tokens"
)

// Kind says which of a body's fields are the prompt.
type Kind uint8

// The kinds.
const (
	Other      Kind = iota // no prompt that is understood
	Chat                   // messages
	Completion             // prompt
)

// KindOf is the kind of request that is sent to an API route.
func KindOf(path string) Kind {
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		return Chat
	case strings.HasSuffix(path, "/completions"):
		return Completion
	}
	return Other
}

// fields are the values of the top-level fields that bear on the prompt. Absent
// and null are the same to engines, and both none here.
type fields struct {
	messages, tools, kwargs, prompt span
	salt                            span
	generate, special               span // add_generation_prompt, add_special_tokens
	// inexact says that the prompt depends on something that only engines do.
	inexact bool
}

func readFields(b []byte) (f fields, ok bool) {
	from := skipSpace(b, 0)
	m := membersOf(b, span{from, len(b)})
	for m.next() {
		if b[m.value.from] == 'n' { // null
			continue
		}
		switch string(m.key) {
		case "messages":
			f.messages = m.value
		case "prompt":
			f.prompt = m.value
		case "tools":
			f.tools = m.value
			f.inexact = f.inexact || !empty(b, m.value)
		case "chat_template_kwargs":
			f.kwargs = m.value
		case "functions", "documents":
			f.inexact = f.inexact || !empty(b, m.value)
		case "chat_template", "truncate_prompt_tokens", "prompt_embeds", "audio", "mm_processor_kwargs":
			f.inexact = true
		case "suffix":
			f.inexact = f.inexact || m.value.to-m.value.from > len(`""`)
		case "continue_final_message":
			f.inexact = f.inexact || b[m.value.from] != 'f'
		case "add_generation_prompt":
			f.generate = m.value
		case "add_special_tokens":
			f.special = m.value
		case "cache_salt":
			f.salt = m.value
		}
	}
	return f, !m.broken
}

// empty reports whether a value is an empty array.
func empty(b []byte, s span) bool {
	m := membersOf(b, s)
	return !m.next() && !m.broken
}

// boolean is a field's value, or what engines assume without one.
func boolean(b []byte, s span, absent bool) (value, ok bool) {
	if s.none() {
		return absent, true
	}
	switch b[s.from] {
	case 't':
		return true, true
	case 'f':
		return false, true
	}
	return false, false
}

// maxMessages bounds the turns that are rendered.
const maxMessages = 4096

// readChat reads the messages as engines do into s.chat. ok is false when some
// of it is not text.
func (s *Scratch) readChat(b []byte, f *fields, partBreak string) (ok bool) {
	generate, ok := boolean(b, f.generate, true)
	if !ok {
		return false
	}
	s.chat.AddGenerationPrompt, s.chat.Extra = generate, nil
	if !f.kwargs.none() {
		if json.Unmarshal(f.kwargs.in(b), &s.chat.Extra) != nil {
			return false
		}
	}
	s.chat.Messages = s.chat.Messages[:0]
	list := membersOf(b, f.messages)
	for list.next() {
		m, ok := s.readMessage(b, list.value, partBreak)
		if !ok || len(s.chat.Messages) == maxMessages {
			return false
		}
		s.chat.Messages = append(s.chat.Messages, m)
	}
	return !list.broken && !list.object && len(s.chat.Messages) > 0
}

func (s *Scratch) readMessage(b []byte, at span, partBreak string) (m tokens.Message, ok bool) {
	f := membersOf(b, at)
	for f.next() {
		if b[f.value.from] == 'n' {
			continue
		}
		switch string(f.key) {
		case "role":
			m.Role, ok = s.text(b, f.value)
		case "content":
			m.Content, ok = s.readContent(b, f.value, partBreak)
		case "name", "tool_call_id", "tool_calls", "reasoning_content":
			if m.Fields == nil {
				m.Fields = map[string]any{}
			}
			var v any
			ok = json.Unmarshal(f.value.in(b), &v) == nil
			m.Fields[string(f.key)] = v
		default:
			ok = true
		}
		if !ok {
			return m, false
		}
	}
	return m, !f.broken && f.object && m.Role != ""
}

// readContent is text, or an array of text parts, which engines join by
// partBreak.
func (s *Scratch) readContent(b []byte, at span, partBreak string) (string, bool) {
	if b[at.from] == '"' {
		return s.text(b, at)
	}
	if b[at.from] != '[' {
		return "", false
	}
	start := len(s.arena)
	parts := membersOf(b, at)
	for n := 0; parts.next(); n++ {
		var kind, text span
		part := membersOf(b, parts.value)
		for part.next() {
			switch string(part.key) {
			case "type":
				kind = part.value
			case "text":
				text = part.value
			}
		}
		if k := string(kind.in(b)); part.broken || k != `"text"` && k != `"input_text"` {
			return "", false
		}
		if n > 0 {
			s.arena = append(s.arena, partBreak...)
		}
		if text.none() {
			continue
		}
		raw, ok := unquoted(b, text)
		if !ok {
			return "", false
		}
		s.arena = appendUnescaped(s.arena, raw)
	}
	return view(s.arena[start:]), !parts.broken
}

// text is a string's meaning: a view of the body, or of the arena when it has
// escapes. It lives until the scratch is used again.
func (s *Scratch) text(b []byte, at span) (string, bool) {
	raw, ok := unquoted(b, at)
	if !ok {
		return "", false
	}
	if !escaped(raw) {
		return view(raw), true
	}
	start := len(s.arena)
	s.arena = appendUnescaped(s.arena, raw)
	return view(s.arena[start:]), true
}

func escaped(raw []byte) bool {
	return strings.IndexByte(view(raw), '\\') >= 0
}

// promptText is one prompt of a completion: text, or token ids.
type promptText struct {
	text  string
	ids   []int32
	isIDs bool
}

// readPrompts reads a completion's prompts into s.prompts. ok is false when they
// are neither text nor ids.
func (s *Scratch) readPrompts(b []byte, at span) (ok bool) {
	s.prompts, s.given = s.prompts[:0], s.given[:0]
	if at.none() {
		return false
	}
	if b[at.from] == '"' {
		text, ok := s.text(b, at)
		s.prompts = append(s.prompts, promptText{text: text})
		return ok
	}
	list := membersOf(b, at)
	if list.object {
		return false
	}
	for list.next() {
		switch b[list.value.from] {
		case '"':
			text, ok := s.text(b, list.value)
			if !ok {
				return false
			}
			s.prompts = append(s.prompts, promptText{text: text})
		case '[':
			if !s.readIDs(b, list.value) {
				return false
			}
		default: // the whole is one list of ids
			return len(s.prompts) == 0 && s.readIDs(b, at)
		}
	}
	return !list.broken && len(s.prompts) > 0
}

func (s *Scratch) readIDs(b []byte, at span) (ok bool) {
	start := len(s.given)
	list := membersOf(b, at)
	for list.next() {
		id, err := strconv.ParseInt(view(list.value.in(b)), 10, 32)
		if err != nil || id < 0 {
			return false
		}
		s.given = append(s.given, int32(id))
	}
	s.prompts = append(s.prompts, promptText{ids: s.given[start:], isIDs: true})
	return !list.broken && len(s.given) > start
}
