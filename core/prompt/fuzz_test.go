package prompt

import (
	"slices"
	"testing"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/openai"
)

// Any bytes can be read, JSON or not, and whoever reads requests in full finds
// the same tokens.
func FuzzIdentify(f *testing.F) {
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"a b\n"}],"model":"m"}`,
		`{"model":"m","prompt":["a",[1,2]],"add_special_tokens":false}`,
		`{"model":"m","prompt":"\ud83d\ude00 \u0041","cache_salt":"s"}`,
		`{"model":"m","messages":[{"role":"tool","content":[{"type":"text","text":"x"}],"tool_calls":[{"a":null}]}],"chat_template_kwargs":{}}`,
		`{"messages":[{"role":"user","content":"a`, `{"prompt":[[[`, `{"`, `"`, ``, `{"a":}`, `[1`, `{"prompt":"\`, "{\"prompt\":\"\\u",
	} {
		f.Add([]byte(body), true)
		f.Add([]byte(body), false)
	}
	text := toyText(f, tokens.PreQwen2)
	r := New(Options{Texts: map[string]*Text{"m": text}, Cache: 1 << 18})
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		var s Scratch
		kind, parse := Completion, openai.ParseCompletion
		if chat {
			kind, parse = Chat, openai.ParseChat
		}
		kept := slices.Clone(body)
		to := Target{Scope: prefix.Scope{Base: "m"}}
		got := r.Identify(t.Context(), kind, body, to, &s)
		if !slices.Equal(body, kept) {
			t.Fatal("the body was changed")
		}
		req, err := parse(body)
		if err != nil || !got.Exact || got.Partial {
			return
		}
		var ids, first []int32
		to.Scope.Salt = req.CacheSalt
		if chat {
			c := &tokens.Chat{AddGenerationPrompt: req.AddGenerationPrompt, BOS: text.BOSText, EOS: text.EOSText, Extra: req.TemplateArgs}
			for _, m := range req.Messages {
				c.Messages = append(c.Messages, tokens.Message{Role: m.Role, Content: m.Content, Fields: m.Fields})
			}
			rendered, err := text.Template.Render(t.Context(), c)
			if err != nil {
				return
			}
			ids = text.Encoder.Encode(nil, rendered, true)
			first = ids
		}
		for i, p := range req.Prompts {
			one := p.IDs
			if one == nil {
				if req.AddSpecialTokens {
					one = append(one, text.BOS...)
				}
				one = text.Encoder.Encode(one, p.Text, true)
			}
			ids = append(ids, one...)
			if i == 0 {
				first = one
			}
		}
		if got.Tokens != unit.Tokens(len(ids)) || !slices.Equal(got.Chain, prefix.AppendChain(nil, to.Scope.Seed(), first, 16)) {
			t.Fatalf("%d tokens, want %d: %s", got.Tokens, len(ids), body)
		}
	})
}
