package tokens

import (
	"slices"
	"testing"
)

func TestSmolLM2Chats(t *testing.T) {
	tok, err := New(smolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	tpl, err := ParseTemplate(tok.ChatTemplate())
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Messages []Message `json:"messages"`
		With     string    `json:"text_add_generation_prompt"`
		Without  string    `json:"text_no_generation_prompt"`
		IDs      []int32   `json:"ids_add_generation_prompt"`
	}
	readJSON(t, "testdata/chat_template.json", &rows)
	for _, row := range rows {
		got, err := tpl.Render(t.Context(), &Chat{Messages: row.Messages, AddGenerationPrompt: true})
		if err != nil || got != row.With {
			t.Errorf("got  %q, %v\nwant %q", got, err, row.With)
		}
		if ids := tok.Encode(nil, got, true); !slices.Equal(ids, row.IDs) {
			t.Errorf("ids %v\nwant %v", ids, row.IDs)
		}
		if got, err := tpl.Render(t.Context(), &Chat{Messages: row.Messages}); err != nil || got != row.Without {
			t.Errorf("got  %q, %v\nwant %q", got, err, row.Without)
		}
	}
}
