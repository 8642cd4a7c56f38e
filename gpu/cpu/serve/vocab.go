package serve

import (
	"fmt"

	"github.com/yardmaster/yardmaster/core/tokens"
)

// Metadata is the part of a GGUF file that describes its tokenizer; *gguf.File
// has it.
type Metadata interface {
	String(key string) (string, bool)
	Strings(key string) ([]string, bool)
	Ints(key string) ([]int64, bool)
	Int(key string) (int64, bool)
	Bool(key string) (value, ok bool)
}

// Vocab reads the vocabulary out of GGUF metadata. Errors wrap
// tokens.ErrUnsupported or tokens.ErrVocab and name the key.
func Vocab(m Metadata) (tokens.Vocab, error) {
	if model, _ := m.String("tokenizer.ggml.model"); model != "gpt2" {
		return tokens.Vocab{}, fmt.Errorf("%w: tokenizer.ggml.model is %q, only gpt2 (byte-level BPE) is known",
			tokens.ErrUnsupported, model)
	}
	var v tokens.Vocab
	var ok bool
	if v.Tokens, ok = m.Strings("tokenizer.ggml.tokens"); !ok {
		return v, fmt.Errorf("%w: tokenizer.ggml.tokens is missing", tokens.ErrVocab)
	}
	if v.Merges, ok = m.Strings("tokenizer.ggml.merges"); !ok {
		return v, fmt.Errorf("%w: tokenizer.ggml.merges is missing", tokens.ErrVocab)
	}
	kinds, _ := m.Ints("tokenizer.ggml.token_type")
	for id, k := range kinds {
		if k < 0 || k > int64(tokens.Byte) {
			return v, fmt.Errorf("%w: tokenizer.ggml.token_type of token %d is %d", tokens.ErrVocab, id, k)
		}
		v.Kinds = append(v.Kinds, tokens.Kind(k))
	}
	v.Pre, ok = m.String("tokenizer.ggml.pre")
	if !ok {
		v.Pre = tokens.PreGPT2 // as files before the key was invented mean
	}
	v.NFC = v.Pre == tokens.PreQwen2 // the model's own tokenizer does, GGUF cannot say it
	v.BOS = special(m, "tokenizer.ggml.bos_token_id")
	v.EOS = special(m, "tokenizer.ggml.eos_token_id")
	if id := special(m, "tokenizer.ggml.eot_token_id"); id != tokens.None {
		v.EOG = append(v.EOG, id)
	}
	if v.AddBOS, ok = m.Bool("tokenizer.ggml.add_bos_token"); !ok {
		v.AddBOS = v.Pre == tokens.PreLlama3
	}
	v.ChatTemplate, _ = m.String("tokenizer.chat_template")
	return v, nil
}

// special is a token id, or None where the key is absent. One that no token can
// have is left to tokens.New to refuse.
func special(m Metadata, key string) int32 {
	id, ok := m.Int(key)
	switch {
	case !ok:
		return tokens.None
	case id < 0 || id > 1<<30:
		return 1 << 30
	}
	return int32(id)
}
