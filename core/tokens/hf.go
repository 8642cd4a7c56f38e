package tokens

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// The patterns that published tokenizer.json files spell their pre-tokenizers
// with. A pattern that is not here is refused: only a test against the library
// itself could show that it means one of ours.
var patterns = map[string]string{
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`: PreLlama3,
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`:      PreQwen2,
	`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:                                          PreGPT2,
}

// hfFile is the part of tokenizer.json that is read.
type hfFile struct {
	AddedTokens []hfAdded `json:"added_tokens"`
	Normalizer  *hfPart   `json:"normalizer"`
	Pre         *hfPart   `json:"pre_tokenizer"`
	Post        *hfPart   `json:"post_processor"`
	Model       struct {
		Type         string           `json:"type"`
		Vocab        map[string]int32 `json:"vocab"`
		Merges       []hfMerge        `json:"merges"`
		IgnoreMerges bool             `json:"ignore_merges"`
		ByteFallback bool             `json:"byte_fallback"`
	} `json:"model"`
}

type hfAdded struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	Special    bool   `json:"special"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	SingleWord bool   `json:"single_word"`
}

// hfPart is a normaliser, pre-tokenizer or post-processor, or a sequence of them.
type hfPart struct {
	Type           string   `json:"type"`
	Normalizers    []hfPart `json:"normalizers"`
	PreTokenizers  []hfPart `json:"pretokenizers"`
	Processors     []hfPart `json:"processors"`
	AddPrefixSpace bool     `json:"add_prefix_space"`
	UseRegex       *bool    `json:"use_regex"`
	Individual     bool     `json:"individual_digits"`
	Invert         bool     `json:"invert"`
	Behavior       string   `json:"behavior"`
	Pattern        struct {
		Regex string
	} `json:"pattern"`
	Single []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		}
		Sequence *struct {
			ID string `json:"id"`
		}
	} `json:"single"`
}

// hfMerge is "a b", or ["a","b"] in newer files.
type hfMerge string

// UnmarshalJSON reads both spellings.
func (m *hfMerge) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(m))
	}
	var pair []string
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 || strings.Contains(pair[0]+pair[1], " ") {
		return fmt.Errorf("%w: merge of %d parts", ErrVocab, len(pair))
	}
	*m = hfMerge(pair[0] + " " + pair[1])
	return nil
}

// hfConfig is the part of tokenizer_config.json that is read.
type hfConfig struct {
	BOS          hfToken         `json:"bos_token"`
	EOS          hfToken         `json:"eos_token"`
	AddBOS       *bool           `json:"add_bos_token"`
	ChatTemplate json.RawMessage `json:"chat_template"`
}

// hfToken is a token's text, or an object with it.
type hfToken string

// UnmarshalJSON reads both spellings, and null.
func (t *hfToken) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var o struct{ Content string }
		err := json.Unmarshal(b, &o)
		*t = hfToken(o.Content)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

// FromJSON builds a tokenizer from the bytes of a Hugging Face tokenizer.json
// and, if there is one, of the tokenizer_config.json beside it, which names the
// special tokens and holds the chat template; config may be nil. Errors wrap
// ErrVocab or ErrUnsupported.
func FromJSON(tokenizer, config []byte) (*Tokenizer, error) {
	var f hfFile
	if err := json.Unmarshal(tokenizer, &f); err != nil {
		return nil, fmt.Errorf("%w: tokenizer.json: %w", ErrVocab, err)
	}
	var c hfConfig
	if len(bytes.TrimSpace(config)) > 0 {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, fmt.Errorf("%w: tokenizer_config.json: %w", ErrVocab, err)
		}
	}
	v, err := f.vocab()
	if err != nil {
		return nil, err
	}
	if err := c.complete(&v, &f); err != nil {
		return nil, err
	}
	return New(v)
}

func (f *hfFile) vocab() (Vocab, error) {
	v := Vocab{BOS: None, EOS: None, IgnoreMerges: f.Model.IgnoreMerges}
	if f.Model.Type != "BPE" || f.Model.ByteFallback {
		return v, fmt.Errorf("%w: tokenizer.json has a model of type %q (byte_fallback %v), only byte-level BPE is known",
			ErrUnsupported, clip(f.Model.Type), f.Model.ByteFallback)
	}
	var err error
	if v.Pre, err = f.Pre.preTokenizer(); err != nil {
		return v, err
	}
	if v.NFC, err = f.Normalizer.normalizer(); err != nil {
		return v, err
	}
	for _, m := range f.Model.Merges {
		v.Merges = append(v.Merges, string(m))
	}
	return v, f.tokens(&v)
}

// tokens lays the vocabulary and the added tokens out by id.
func (f *hfFile) tokens(v *Vocab) error {
	size := 0
	for text, id := range f.Model.Vocab {
		if id < 0 || id >= maxTokens {
			return fmt.Errorf("%w: token %q has id %d", ErrVocab, clip(text), id)
		}
		size = max(size, int(id)+1)
	}
	for _, a := range f.AddedTokens {
		if a.ID < 0 || a.ID >= maxTokens {
			return fmt.Errorf("%w: added token %q has id %d", ErrVocab, clip(a.Content), a.ID)
		}
		if a.LStrip || a.RStrip || a.SingleWord {
			return fmt.Errorf("%w: added token %q strips or matches whole words only", ErrUnsupported, clip(a.Content))
		}
		size = max(size, int(a.ID)+1)
	}
	v.Tokens, v.Kinds = make([]string, size), make([]Kind, size)
	for i := range v.Kinds {
		v.Kinds[i] = Unused // ids that nothing has
	}
	for text, id := range f.Model.Vocab {
		v.Tokens[id], v.Kinds[id] = text, Normal
	}
	for _, a := range f.AddedTokens {
		v.Tokens[a.ID], v.Kinds[a.ID] = a.Content, UserDefined
		if a.Special {
			v.Kinds[a.ID] = Control
		}
	}
	return nil
}

func (p *hfPart) preTokenizer() (string, error) {
	if p == nil {
		return "", fmt.Errorf("%w: tokenizer.json has no pre-tokenizer", ErrUnsupported)
	}
	parts := []hfPart{*p}
	if p.Type == "Sequence" {
		parts = p.PreTokenizers
	}
	unknown := func() (string, error) {
		var kinds []string
		for _, q := range parts {
			kinds = append(kinds, clip(q.Type+" "+q.Pattern.Regex))
		}
		return "", fmt.Errorf("%w: pre-tokenizer %s", ErrUnsupported, clip(strings.Join(kinds, ", ")))
	}
	n := len(parts)
	if n == 0 || n > 2 || parts[n-1].Type != "ByteLevel" || parts[n-1].AddPrefixSpace {
		return unknown()
	}
	regex := parts[n-1].UseRegex == nil || *parts[n-1].UseRegex
	switch first := parts[0]; {
	case n == 1 && regex:
		return PreGPT2, nil
	case n == 1:
	case first.Type == "Digits" && first.Individual && regex:
		return PreSmolLM, nil
	case first.Type == "Split" && first.Behavior == "Isolated" && !first.Invert && !regex:
		if pre, ok := patterns[first.Pattern.Regex]; ok {
			return pre, nil
		}
	}
	return unknown()
}

func (p *hfPart) normalizer() (nfc bool, err error) {
	switch {
	case p == nil:
		return false, nil
	case p.Type == "NFC":
		return true, nil
	case p.Type == "Sequence" && len(p.Normalizers) == 0:
		return false, nil
	case p.Type == "Sequence" && len(p.Normalizers) == 1:
		return p.Normalizers[0].normalizer()
	}
	return false, fmt.Errorf("%w: normalizer %q", ErrUnsupported, clip(p.Type))
}

// firstSpecial is the text of the special token that the post-processor puts in
// front of a text, if it does.
func (p *hfPart) firstSpecial() string {
	if p == nil {
		return ""
	}
	for _, q := range append([]hfPart{*p}, p.Processors...) {
		if q.Type == "TemplateProcessing" && len(q.Single) > 0 && q.Single[0].SpecialToken != nil {
			return q.Single[0].SpecialToken.ID
		}
	}
	return ""
}

// complete fills in what the config knows.
func (c *hfConfig) complete(v *Vocab, f *hfFile) error {
	bos := string(c.BOS)
	if first := f.Post.firstSpecial(); first != "" {
		v.AddBOS = bos == "" || first == bos
		bos = first
	}
	if c.AddBOS != nil && f.Post == nil {
		v.AddBOS = *c.AddBOS
	}
	for _, want := range []struct {
		text string
		id   *int32
	}{{bos, &v.BOS}, {string(c.EOS), &v.EOS}} {
		if want.text == "" {
			continue
		}
		id, ok := f.idOf(want.text)
		if !ok {
			return fmt.Errorf("%w: no token %q", ErrVocab, clip(want.text))
		}
		*want.id = id
	}
	return c.template(v)
}

func (f *hfFile) idOf(text string) (int32, bool) {
	for _, a := range f.AddedTokens {
		if a.Content == text {
			return a.ID, true
		}
	}
	id, ok := f.Model.Vocab[text]
	return id, ok
}

// template takes the chat template: a string, or the one named default of a
// list.
func (c *hfConfig) template(v *Vocab) error {
	raw := bytes.TrimSpace(c.ChatTemplate)
	if len(raw) == 0 {
		return nil
	}
	if raw[0] != '[' {
		if err := json.Unmarshal(raw, &v.ChatTemplate); err != nil {
			return fmt.Errorf("%w: chat_template: %w", ErrVocab, err)
		}
		return nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("%w: chat_template: %w", ErrVocab, err)
	}
	for _, t := range list {
		if t.Name == "default" {
			v.ChatTemplate = t.Template
		}
	}
	return nil
}
