package tokens

import (
	"errors"
	"fmt"
	"strings"
)

// Kind says what a token is. The values are GGUF's.
type Kind uint8

// The kinds of token. Zero is taken as Normal.
const (
	Normal      Kind = 1
	Unknown     Kind = 2
	Control     Kind = 3 // written by templates, found in text only when special tokens are parsed
	UserDefined Kind = 4 // found in any text before BPE looks at it
	Unused      Kind = 5
	Byte        Kind = 6 // "<0xAB>", one raw byte
)

// Names of pre-tokenizers, as in GGUF's tokenizer.ggml.pre.
const (
	PreGPT2   = "gpt-2"
	PreSmolLM = "smollm"
	PreLlama3 = "llama-bpe"
	PreQwen2  = "qwen2"
)

// None is the id of a special token that a vocabulary lacks.
const None int32 = -1

// Limits of a vocabulary. They are several times what published models have and
// keep a damaged file from costing gigabytes.
const (
	maxTokens    = 1 << 20
	maxMerges    = 1 << 22
	maxTokenText = 1 << 12 // bytes of one token
)

// Errors of building a tokenizer.
var (
	// ErrUnsupported means a kind of tokenizer that this package does not have.
	ErrUnsupported = errors.New("unsupported tokenizer")
	// ErrVocab means a vocabulary that contradicts itself.
	ErrVocab = errors.New("malformed vocabulary")
)

// Vocab is what a tokenizer is built from. [New] keeps no reference to its
// slices.
type Vocab struct {
	// Tokens is the text of each id: printable GPT-2 byte alphabet for Normal
	// tokens, plain text for the others.
	Tokens []string
	// Kinds has one entry per token, or none if all are Normal.
	Kinds []Kind
	// Merges are "left right" in order of rank, best first.
	Merges []string
	// Pre is the pre-tokenizer: one of the Pre constants or a known alias.
	Pre string
	// IgnoreMerges takes a whole word that is a token without looking at merges.
	// New sets it for Llama 3, whose GGUF files do not say it.
	IgnoreMerges bool
	// NFC normalises text before it is split.
	NFC bool
	// BOS and EOS are ids or None; a valid BOS goes first when AddBOS is set.
	BOS, EOS int32
	AddBOS   bool
	// EOG are more ids that end a generation. EOS and tokens with a well-known
	// end-of-turn name are added by New.
	EOG []int32
	// ChatTemplate is Jinja source, empty if the model has none.
	ChatTemplate string
}

// endOfTurn are the texts of control tokens that end an answer, whatever the
// metadata says: several published files name only one of theirs as EOS.
var endOfTurn = []string{
	"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
	"<end_of_turn>", "<EOT>", "</s>",
}

// preNames maps the names found in the wild to the pre-tokenizers of this package.
var preNames = map[string]string{
	"gpt-2": PreGPT2, "gpt2": PreGPT2, "smollm": PreSmolLM, "smollm2": PreSmolLM,
	"llama-bpe": PreLlama3, "llama3": PreLlama3, "llama-v3": PreLlama3, "llama-3": PreLlama3,
	"qwen2": PreQwen2,
}

func (v *Vocab) validate() error {
	n := len(v.Tokens)
	switch {
	case n == 0:
		return fmt.Errorf("%w: no tokens", ErrVocab)
	case n > maxTokens:
		return fmt.Errorf("%w: %d tokens, at most %d are read", ErrVocab, n, maxTokens)
	case len(v.Kinds) != 0 && len(v.Kinds) != n:
		return fmt.Errorf("%w: %d tokens and %d kinds", ErrVocab, n, len(v.Kinds))
	case len(v.Merges) > maxMerges:
		return fmt.Errorf("%w: %d merges, at most %d are read", ErrVocab, len(v.Merges), maxMerges)
	case len(v.Merges) == 0:
		return fmt.Errorf("%w: byte-level BPE without merges", ErrUnsupported)
	}
	if _, ok := preNames[v.Pre]; !ok {
		return fmt.Errorf("%w: pre-tokenizer %q (known: %s, %s, %s, %s)",
			ErrUnsupported, clip(v.Pre), PreGPT2, PreSmolLM, PreLlama3, PreQwen2)
	}
	for id, text := range v.Tokens {
		if len(text) > maxTokenText {
			return fmt.Errorf("%w: token %d has %d bytes", ErrVocab, id, len(text))
		}
	}
	for _, id := range append([]int32{v.BOS, v.EOS}, v.EOG...) {
		if id != None && (id < 0 || int(id) >= n) {
			return fmt.Errorf("%w: special token %d outside %d tokens", ErrVocab, id, n)
		}
	}
	for rank, m := range v.Merges {
		if left, right, ok := strings.Cut(m, " "); !ok || left == "" || right == "" {
			return fmt.Errorf("%w: merge %d is %q", ErrVocab, rank, clip(m))
		}
	}
	return nil
}

func (v *Vocab) kind(id int) Kind {
	if len(v.Kinds) == 0 || v.Kinds[id] == 0 {
		return Normal
	}
	return v.Kinds[id]
}

// clip shortens foreign text for an error message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
