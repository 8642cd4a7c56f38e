package serve

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
)

// The fixtures of core/tokens, read through the real GGUF reader.
func TestVocabOfModel(t *testing.T) {
	f, err := gguf.Open(modelPath(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	v, err := Vocab(f)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokens.New(v)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../../core/tokens/testdata/tokenize.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Text    string
		IDs     []int32
		Special []int32 `json:"ids_parse_special"`
	}
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if got := tok.Encode(nil, row.Text, true); !slices.Equal(got, row.Special) {
			t.Errorf("Encode(%q) = %v, want %v", row.Text, got, row.Special)
		}
	}
	if _, err := tokens.ParseTemplate(tok.ChatTemplate()); err != nil {
		t.Error(err)
	}
}

// meta is hand-made metadata.
type meta map[string]any

func lookup[T any](m meta, key string) (T, bool) { v, ok := m[key].(T); return v, ok }

func (m meta) String(k string) (string, bool)    { return lookup[string](m, k) }
func (m meta) Strings(k string) ([]string, bool) { return lookup[[]string](m, k) }
func (m meta) Ints(k string) ([]int64, bool)     { return lookup[[]int64](m, k) }
func (m meta) Int(k string) (int64, bool)        { return lookup[int64](m, k) }
func (m meta) Bool(k string) (v, ok bool)        { return lookup[bool](m, k) }

func TestVocabRefusals(t *testing.T) {
	good := func() meta {
		return meta{
			"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
			"tokenizer.ggml.tokens": []string{"a", "b", "ab", "<x>"}, "tokenizer.ggml.merges": []string{"a b"},
			"tokenizer.ggml.token_type": []int64{1, 1, 1, 3}, "tokenizer.ggml.eos_token_id": int64(3),
		}
	}
	v, err := Vocab(good())
	if err != nil || !v.NFC || v.AddBOS || v.EOS != 3 || v.BOS != tokens.None {
		t.Errorf("%+v, %v", v, err)
	}
	for _, tt := range []struct {
		key   string
		value any
		want  error
	}{
		{"tokenizer.ggml.model", "llama", tokens.ErrUnsupported},
		{"tokenizer.ggml.pre", "deepseek-llm", tokens.ErrUnsupported},
		{"tokenizer.ggml.tokens", nil, tokens.ErrVocab},
		{"tokenizer.ggml.merges", nil, tokens.ErrVocab},
		{"tokenizer.ggml.merges", []string{"ab"}, tokens.ErrVocab},
		{"tokenizer.ggml.token_type", []int64{1, 1, 1, 99}, tokens.ErrVocab},
		{"tokenizer.ggml.token_type", []int64{1}, tokens.ErrVocab},
		{"tokenizer.ggml.eos_token_id", int64(4), tokens.ErrVocab},
		{"tokenizer.ggml.eos_token_id", int64(-7), tokens.ErrVocab},
		{"tokenizer.ggml.bos_token_id", int64(1) << 40, tokens.ErrVocab},
	} {
		m := good()
		m[tt.key] = tt.value
		v, err := Vocab(m)
		if err == nil {
			_, err = tokens.New(v)
		}
		if !errors.Is(err, tt.want) {
			t.Errorf("%s = %v: %v", tt.key, tt.value, err)
		}
	}
}
