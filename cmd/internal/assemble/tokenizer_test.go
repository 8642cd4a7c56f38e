package assemble

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/tokens"
)

// tokenizerJSON is a byte-level tokenizer of a few letters.
const tokenizerJSON = `{"added_tokens":[{"id":4,"content":"<|end|>","special":true}],
"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},
"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3},"merges":["a b"]}}`

func TestTexts(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var logged strings.Builder
	p := Process{Log: slog.New(slog.NewTextHandler(&logged, nil))}
	chat := []byte(`{"model":"m","messages":[{"role":"user","content":"ab a"}]}`)
	exact := func(setting string) (tokens int, ok bool) {
		t.Helper()
		texts, err := Texts(p, []string{setting, "s=" + ScriptedTokenizer})
		if err != nil {
			t.Fatal(err)
		}
		if len(texts) != 2 || texts["s"] == nil {
			t.Fatalf("%d texts", len(texts))
		}
		var s prompt.Scratch
		id := prompt.New(prompt.Options{Texts: texts}).Identify(t.Context(), prompt.Chat, chat, prompt.Target{Scope: prefix.Scope{Base: "m"}}, &s)
		return int(id.Tokens), id.Exact
	}

	write("tokenizer.json", tokenizerJSON)
	if _, ok := exact("m=" + dir); ok {
		t.Error("a chat is exact without a template")
	}
	write("tokenizer_config.json", `{"chat_template":"{{ messages[0].content }}"}`)
	if n, ok := exact("m=" + filepath.Join(dir, "tokenizer.json")); !ok || n != 3 {
		t.Errorf("%d tokens, exact %v, with the template in the settings", n, ok)
	}
	write("chat_template.json", `{"chat_template":"{{ messages[0].content }}<|end|>"}`)
	if n, ok := exact("m=" + dir); !ok || n != 4 {
		t.Errorf("%d tokens, exact %v, with the template in JSON", n, ok)
	}
	write("chat_template.jinja", "{{ messages[0].content }}<|end|><|end|>")
	if n, ok := exact("m=" + dir); !ok || n != 5 {
		t.Errorf("%d tokens, exact %v, with the template in its own file", n, ok)
	}
	if logged.Len() > 0 {
		t.Errorf("logged %s", &logged)
	}
	write("chat_template.jinja", "{% include 'x' %}")
	if _, ok := exact("m=" + dir); ok || !strings.Contains(logged.String(), "model=m") {
		t.Errorf("a template that cannot be used: exact %v, logged %q", ok, logged.String())
	}

	for setting, want := range map[string]error{
		"m=" + filepath.Join(dir, "absent.json"): fs.ErrNotExist,
		"m=" + filepath.Join(dir, "absent.gguf"): fs.ErrNotExist,
	} {
		if _, err := Texts(p, []string{setting}); !errors.Is(err, want) || !strings.Contains(err.Error(), "gateway.tokenizer") {
			t.Errorf("%s: %v", setting, err)
		}
	}
	write("tokenizer.json", `{"model":{"type":"Unigram"}}`)
	if _, err := Texts(p, []string{"m=" + dir}); !errors.Is(err, tokens.ErrUnsupported) {
		t.Errorf("an unsupported tokenizer: %v", err)
	}
}

func TestDevTokenizer(t *testing.T) {
	if got := devTokenizer("", DevOptions{Engine: "scripted"}); len(got) != 1 || got[0] != "scripted=scripted" {
		t.Errorf("scripted: %v", got)
	}
	if got := devTokenizer("name", DevOptions{Engine: "cpu", Model: "./dir/x.gguf"}); len(got) != 1 || got[0] != "name=./dir/x.gguf" {
		t.Errorf("a path: %v", got)
	}
	if got := devTokenizer("", DevOptions{Engine: "cpu", Model: "no-such-model"}); got != nil {
		t.Errorf("an unknown model: %v", got)
	}
}
