package tokens

import (
	"slices"
	"sync"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer encodes and decodes for one vocabulary. It is immutable but for its
// caches and safe for concurrent use.
type Tokenizer struct {
	bpe     *bpe
	split   splitter
	nfc     bool
	words   map[string]int32 // bytes of each normal token; only with IgnoreMerges
	always  *specials        // user-defined tokens
	special *specials        // those and control tokens
	pieces  []byte           // all pieces, one after the other
	ends    []uint32         // piece of id ends at ends[id]
	kinds   []Kind
	raw     []string
	bos     int32
	eos     int32
	addBOS  bool
	eog     []int32
	chat    string
	longest int
	cuts    *cutter
	cache   wordCache
	scratch sync.Pool
}

// New builds a tokenizer. Errors wrap ErrVocab or ErrUnsupported.
func New(v Vocab) (*Tokenizer, error) {
	if err := v.validate(); err != nil {
		return nil, err
	}
	pre := preNames[v.Pre]
	b, err := newBPE(&v)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{
		bpe: b, split: splitterOf(pre), nfc: v.NFC, always: newSpecials(), special: newSpecials(),
		ends: make([]uint32, len(v.Tokens)), kinds: make([]Kind, len(v.Tokens)), raw: slices.Clone(v.Tokens),
		bos: v.BOS, eos: v.EOS, addBOS: v.AddBOS && v.BOS != None, chat: v.ChatTemplate,
	}
	t.scratch.New = func() any { return new(scratch) }
	if v.IgnoreMerges || pre == PreLlama3 {
		t.words = make(map[string]int32, len(v.Tokens))
	}
	eog := append([]int32{v.EOS}, v.EOG...)
	var special []string
	for id, text := range v.Tokens {
		kind := v.kind(id)
		start := len(t.pieces)
		t.pieces = appendPiece(t.pieces, text, kind)
		t.ends[id], t.kinds[id] = uint32(len(t.pieces)), kind
		t.longest = max(t.longest, len(t.pieces)-start)
		switch kind {
		case UserDefined:
			t.always.add(text, int32(id))
			t.special.add(text, int32(id))
			special = append(special, text)
		case Control, Unknown:
			t.special.add(text, int32(id))
			special = append(special, text)
		case Normal:
			if t.words != nil {
				t.words[string(t.pieces[start:])] = int32(id)
			}
		case Unused, Byte:
		}
		if (kind == Control || kind == UserDefined) && slices.Contains(endOfTurn, text) {
			eog = append(eog, int32(id))
		}
	}
	t.cuts = newCutter(special)
	slices.Sort(eog)
	t.eog = slices.DeleteFunc(slices.Compact(eog), func(id int32) bool { return id == None })
	return t, nil
}

// Encode appends the ids of text to dst and returns it. User-defined tokens are
// found in any text; control tokens, as in "<|im_end|>", only if parseSpecial is
// set, otherwise their text is encoded like any other. No BOS is added: see
// [Tokenizer.BOS].
func (t *Tokenizer) Encode(dst []int32, text string, parseSpecial bool) []int32 {
	table := t.always
	if parseSpecial {
		table = t.special
	}
	s := t.scratch.Get().(*scratch)
	defer t.scratch.Put(s)
	for text != "" {
		start, end, id := table.find(text)
		dst = t.encodePlain(dst, text[:start], s)
		if id != None {
			dst = append(dst, id)
		}
		text = text[end:]
	}
	return dst
}

// encodePlain appends the ids of text that holds no special tokens.
func (t *Tokenizer) encodePlain(dst []int32, text string, s *scratch) []int32 {
	if t.nfc {
		text = norm.NFC.String(text)
	}
	for text != "" {
		n := t.split(text)
		dst = t.encodeWord(dst, text[:n], s)
		text = text[n:]
	}
	return dst
}

func (t *Tokenizer) encodeWord(dst []int32, word string, s *scratch) []int32 {
	if t.words != nil {
		if id, ok := t.words[word]; ok {
			return append(dst, id)
		}
	}
	if len(word) > cacheWordSize {
		return t.bpe.appendWord(dst, word, s)
	}
	if ids, ok := t.cache.get(word); ok {
		return append(dst, ids...)
	}
	before := len(dst)
	dst = t.bpe.appendWord(dst, word, s)
	t.cache.put(word, dst[before:])
	return dst
}

// Piece is the bytes of a token, which may end or begin inside a character.
// Special tokens are their text. It must not be modified; an id outside the
// vocabulary has none.
func (t *Tokenizer) Piece(id int32) []byte {
	if id < 0 || int(id) >= len(t.ends) {
		return nil
	}
	start := uint32(0)
	if id > 0 {
		start = t.ends[id-1]
	}
	return t.pieces[start:t.ends[id]:t.ends[id]]
}

// Raw is the token's text as the vocabulary spells it, "Ġworld" for " world".
func (t *Tokenizer) Raw(id int32) string {
	if id < 0 || int(id) >= len(t.raw) {
		return ""
	}
	return t.raw[id]
}

// Decode appends the pieces of ids to dst. The result need not be UTF-8.
func (t *Tokenizer) Decode(dst []byte, ids []int32) []byte {
	for _, id := range ids {
		dst = append(dst, t.Piece(id)...)
	}
	return dst
}

// Size is the number of tokens.
func (t *Tokenizer) Size() int { return len(t.ends) }

// BOS is the token that goes before a prompt, and whether this model wants it
// added to a plain one. The id is None if there is none.
func (t *Tokenizer) BOS() (id int32, add bool) { return t.bos, t.addBOS }

// EOS is the end-of-sequence token, or None.
func (t *Tokenizer) EOS() int32 { return t.eos }

// EOG are the tokens that end a generation, in ascending order. The caller must
// not modify them.
func (t *Tokenizer) EOG() []int32 { return t.eog }

// IsSpecial says whether id is a control token, which is not shown in answers.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.kinds) && (t.kinds[id] == Control || t.kinds[id] == Unknown)
}

// ChatTemplate is the Jinja source that came with the vocabulary, or "".
func (t *Tokenizer) ChatTemplate() string { return t.chat }

// LongestPiece is the most bytes that a token stands for, at least 1: a text of
// n bytes has at least n/LongestPiece tokens, but for bytes that the vocabulary
// lacks.
func (t *Tokenizer) LongestPiece() int { return max(t.longest, 1) }
