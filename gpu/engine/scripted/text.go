package scripted

import (
	"context"

	"github.com/yardmaster/yardmaster/core/tokens"
)

// Text is the engine's tokenizer and chat template in the shape that gateways
// use: it has the methods of core/prompt's Encoder and Template.
type Text struct{}

// Encode appends the ids of text as in KV events: [Tokenize]'s, as signed
// numbers. There are no special tokens.
func (Text) Encode(dst []int32, text string, _ bool) []int32 {
	for _, id := range Tokenize(text) {
		dst = append(dst, int32(id))
	}
	return dst
}

// Cut is the end of the first token that ends at or behind from; text divides
// there.
func (Text) Cut(text string, from int) int {
	return min((max(from, 1)+tokenBytes-1)/tokenBytes*tokenBytes, len(text))
}

// AppendDirect appends the prompt of a chat. What the engine does without a
// generation prompt, which only requests to continue the last message make it
// do, is not known here.
func (Text) AppendDirect(dst []byte, c *tokens.Chat, limit int) ([]byte, bool) {
	text := render(turns(c), false)
	if len(text) > limit {
		return dst, false
	}
	return append(dst, text...), true
}

// Render is the prompt of a chat.
func (Text) Render(_ context.Context, c *tokens.Chat) (string, error) {
	return render(turns(c), false), nil
}

func turns(c *tokens.Chat) []message {
	out := make([]message, 0, len(c.Messages))
	for _, m := range c.Messages {
		out = append(out, message{m.Role, m.Content})
	}
	return out
}
