package assemble

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
	"github.com/yardmaster/yardmaster/gpu/cpu/serve"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// ScriptedTokenizer stands for the scripted engine's own tokenizer in place of a
// file.
const ScriptedTokenizer = "scripted"

// maxTokenizer bounds the files of a tokenizer.
const maxTokenizer = 256 << 20

// Texts loads the tokenizers of a gateway.tokenizer setting, MODEL=PATH each.
// PATH is a .gguf file, a tokenizer.json or the folder that holds one; beside a
// tokenizer.json, tokenizer_config.json and chat_template.jinja are read if they
// are there. A chat template that cannot be used is logged: prompts of
// /v1/completions are still known by their tokens then.
func Texts(p Process, setting []string) (map[string]*prompt.Text, error) {
	texts := map[string]*prompt.Text{}
	for _, s := range setting {
		model, path, _ := strings.Cut(s, "=")
		if path == ScriptedTokenizer {
			texts[model] = &prompt.Text{Encoder: scripted.Text{}, Template: scripted.Text{}}
			continue
		}
		text, err := loadText(p, model, path)
		if err != nil {
			return nil, fmt.Errorf("gateway.tokenizer: %s: %w", path, err)
		}
		texts[model] = text
	}
	return texts, nil
}

// devTokenizer is the setting for the model that the workers of dev serve.
func devTokenizer(servedName string, o DevOptions) []string {
	path, name := ScriptedTokenizer, ScriptedTokenizer // the scripted engine's model is called so
	if o.Engine != ScriptedTokenizer {
		var err error
		if path, name, err = ModelPath(o.Model); err != nil {
			return nil // the workers will say so
		}
	}
	if servedName != "" {
		name = servedName
	}
	return []string{name + "=" + path}
}

func loadText(p Process, model, path string) (*prompt.Text, error) {
	load := jsonTokenizer
	if strings.EqualFold(filepath.Ext(path), ".gguf") {
		load = ggufTokenizer
	}
	tokenizer, source, err := load(path)
	if err != nil {
		return nil, err
	}
	var template *tokens.Template
	if source != "" {
		if template, err = tokens.ParseTemplate(source); err != nil {
			p.Log.Warn("chats are known by their bytes only: the chat template cannot be used", "model", model, "error", err)
		}
	}
	return prompt.NewText(tokenizer, template), nil
}

// ggufTokenizer reads the tokenizer that comes with a model.
func ggufTokenizer(path string) (t *tokens.Tokenizer, template string, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close() //nolint:errcheck // read only
	vocab, err := serve.Vocab(f)
	if err != nil {
		return nil, "", err
	}
	if t, err = tokens.New(vocab); err != nil {
		return nil, "", err
	}
	return t, t.ChatTemplate(), nil
}

// jsonTokenizer reads the files of a Hugging Face tokenizer.
func jsonTokenizer(path string) (t *tokens.Tokenizer, template string, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	file, err := readLimited(path)
	if err != nil {
		return nil, "", err
	}
	beside := func(name string) (string, error) {
		b, err := readLimited(filepath.Join(filepath.Dir(path), name))
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return string(b), err
	}
	settings, err := beside("tokenizer_config.json")
	if err != nil {
		return nil, "", err
	}
	if t, err = tokens.FromJSON(file, []byte(settings)); err != nil {
		return nil, "", err
	}
	// A template in a file of its own goes before the one in the settings.
	template, err = beside("chat_template.jinja")
	if template == "" && err == nil {
		template, err = wrappedTemplate(beside)
	}
	if template == "" {
		template = t.ChatTemplate()
	}
	return t, template, err
}

// wrappedTemplate is the template in chat_template.json.
func wrappedTemplate(beside func(string) (string, error)) (string, error) {
	text, err := beside("chat_template.json")
	if text == "" || err != nil {
		return "", err
	}
	var file struct {
		ChatTemplate string `json:"chat_template"`
	}
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		return "", fmt.Errorf("chat_template.json: %w", err)
	}
	return file.ChatTemplate, nil
}

func readLimited(path string) (b []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	b, err = io.ReadAll(io.LimitReader(f, maxTokenizer+1))
	if err == nil && len(b) > maxTokenizer {
		err = fmt.Errorf("more than %d bytes", maxTokenizer)
	}
	return b, err
}
