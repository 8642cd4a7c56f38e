package prompt

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/tokens"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Encoder turns text into tokens; *[tokens.Tokenizer] is one.
type Encoder interface {
	// Encode appends the ids of text to dst; special tokens in it are parsed.
	Encode(dst []int32, text string, parseSpecial bool) []int32
	// Cut is the first place at or behind from where text can be cut, len(text) if
	// there is none: see [tokens.Tokenizer.Cut].
	Cut(text string, from int) int
}

// Template renders chats; *[tokens.Template] is one.
type Template interface {
	// AppendDirect is the fast way, where it can: see [tokens.Template.AppendDirect].
	AppendDirect(dst []byte, c *tokens.Chat, limit int) (text []byte, ok bool)
	// Render is the way for all chats.
	Render(ctx context.Context, c *tokens.Chat) (string, error)
}

// Text is how a model turns requests into tokens.
type Text struct {
	Encoder Encoder
	// Template may be nil: chats have no exact identity then.
	Template Template
	// BOS are the ids that go before a plain prompt.
	BOS []int32
	// BOSText and EOSText are what templates know as bos_token and eos_token.
	BOSText, EOSText string
	// PartBreak is what joins the text parts of a message's content.
	PartBreak string
}

// NewText describes a model by its tokenizer and its template, which may be nil.
func NewText(tokenizer *tokens.Tokenizer, template *tokens.Template) *Text {
	bos, add := tokenizer.BOS()
	t := &Text{
		Encoder: tokenizer, PartBreak: "\n",
		BOSText: string(tokenizer.Piece(bos)), EOSText: string(tokenizer.Piece(tokenizer.EOS())),
	}
	if template != nil {
		t.Template = template
	}
	if add {
		t.BOS = []int32{bos}
	}
	return t
}

// model is a Text and its name in the cache.
type model struct {
	Text
	key uint64
}

// Options configure a [Reader]. Zero fields take their defaults.
type Options struct {
	// Texts are the models whose tokens are known, by the served name of the base
	// model.
	Texts map[string]*Text
	// Cache bounds the memory for tokenised pieces of text; default 64 MiB.
	Cache unit.Bytes
	// MaxText is the most text that is rendered or hashed; default 1 MiB. A longer
	// prompt is known by the bytes of its beginning.
	MaxText unit.Bytes
	// MaxWork is the most text that one reading tokenises anew; default 256 KiB,
	// some milliseconds. Beyond it the identity is of the prompt's beginning, and
	// because that is cached, the next reading of the same prompt gets further.
	MaxWork unit.Bytes
	// Clock is what templates show as the date; default the real one.
	Clock clock.Clock
	// Registry gets the metrics; nil is one of the reader's own.
	Registry *measure.Registry
}

// Reader gives requests their identity. It is safe for concurrent use.
type Reader struct {
	texts   map[string]*model
	cache   *cache
	maxText int
	maxWork int
	clock   clock.Clock

	cached, encoded, hashed measure.Counter
	size                    measure.Gauge
	reads                   atomic.Uint64
}

// New makes a reader.
func New(o Options) *Reader {
	if o.Cache <= 0 {
		o.Cache = 64 << 20
	}
	if o.MaxText <= 0 {
		o.MaxText = 1 << 20
	}
	if o.MaxWork <= 0 {
		o.MaxWork = 256 << 10
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Registry == nil {
		o.Registry = &measure.Registry{}
	}
	r := &Reader{
		texts: map[string]*model{}, cache: newCache(o.Cache), maxText: int(o.MaxText), maxWork: int(o.MaxWork), clock: o.Clock,
		cached:  o.Registry.Counter(measure.PromptText, "cached"),
		encoded: o.Registry.Counter(measure.PromptText, "encoded"),
		hashed:  o.Registry.Counter(measure.PromptText, "bytes"),
		size:    o.Registry.Gauge(measure.PromptCacheBytes),
	}
	for _, name := range slices.Sorted(maps.Keys(o.Texts)) {
		r.texts[name] = &model{Text: *o.Texts[name], key: xxhash.Sum64String(name)}
	}
	return r
}

// Target is for whom a request's identity is made: the workers that could serve
// it.
type Target struct {
	// Scope is the hash domain. Its Base names the model; when its Salt is empty,
	// the request's own cache_salt counts.
	Scope prefix.Scope
	// BlockTokens is the tokens of a block in the workers' KV events; 0 means 16.
	BlockTokens unit.Tokens
}

// Identity is what a request is known by.
type Identity struct {
	// Chain are the hashes of the whole blocks of the (first) prompt. It belongs to
	// the Scratch.
	Chain []prefix.Hash
	// Exact says that Tokens and Chain are of the model's own tokens.
	Exact bool
	// Partial says of an exact identity that Chain ends before the prompt does, and
	// that Tokens is extrapolated: tokenising the whole would have cost too much.
	Partial bool
	// Tokens is the number of prompt tokens, of all prompts; 0 where only an
	// estimate can be had: see Estimate.
	Tokens unit.Tokens
	// BlockTokens is the tokens of a block of Chain; 0 like Tokens.
	BlockTokens unit.Tokens
	// Bytes is the length of the prompt's text.
	Bytes unit.Bytes
}

// Estimate fills in the numbers of tokens that are not known, by the bytes that
// this model's tokens have been seen to have.
func (i *Identity) Estimate(ratio *cost.Ratio) {
	if i.Exact {
		return
	}
	i.Tokens = ratio.Tokens(i.Bytes)
	i.BlockTokens = max(1, unit.Tokens(byteBlock/ratio.BytesPerToken()))
}

// Scratch is the working memory of one reading after the other. The zero value
// is ready to use. It serves one goroutine at a time.
type Scratch struct {
	arena    []byte
	chat     tokens.Chat
	prompts  []promptText
	given    []int32
	ids      []int32
	rendered []byte
	stream   []byte
	chain    chainer
	first    []prefix.Hash
}

// maxKept bounds the text memory that a scratch keeps between readings.
const maxKept = 512 << 10

func (s *Scratch) reset() {
	s.arena, s.rendered, s.stream = s.arena[:0], s.rendered[:0], s.stream[:0]
	if cap(s.arena)+cap(s.rendered)+cap(s.stream) > maxKept {
		s.arena, s.rendered, s.stream = nil, nil, nil
	}
	clear(s.chat.Messages[:cap(s.chat.Messages)]) // they hold on to bodies
	clear(s.prompts[:cap(s.prompts)])
}

// Identify reads a body that core/wire/edge has checked. The identity is valid
// until the scratch is used again, and as long as body does not change.
func (r *Reader) Identify(ctx context.Context, kind Kind, body []byte, to Target, s *Scratch) Identity {
	s.reset()
	f, ok := readFields(body)
	if !ok || kind == Other {
		return Identity{Bytes: unit.Bytes(len(body))}
	}
	if to.Scope.Salt == "" && !f.salt.none() {
		to.Scope.Salt, _ = s.text(body, f.salt)
	}
	if to.BlockTokens <= 0 {
		to.BlockTokens = 16
	}
	seed := to.Scope.Seed()
	if kind == Chat {
		return r.chat(ctx, body, &f, to, seed, s)
	}
	return r.completion(body, &f, to, seed, s)
}

func (r *Reader) chat(ctx context.Context, body []byte, f *fields, to Target, seed prefix.Hash, s *Scratch) Identity {
	if f.messages.none() {
		return Identity{Bytes: unit.Bytes(len(body))}
	}
	t := r.texts[to.Scope.Base]
	if t != nil && t.Template != nil && !f.inexact && f.messages.to-f.messages.from <= r.maxText && s.readChat(body, f, t.PartBreak) {
		if text, ok := r.render(ctx, t, s); ok {
			s.chain.begin(seed, to.BlockTokens)
			n, whole := r.encode(t, text, s, r.maxWork)
			return Identity{
				Chain: s.chain.out, Exact: true, Partial: !whole, Tokens: n, BlockTokens: to.BlockTokens,
				Bytes: unit.Bytes(len(text)),
			}
		}
	}
	return r.chatBytes(body, f, seed, s)
}

// render gives the prompt as the engine will.
func (r *Reader) render(ctx context.Context, t *model, s *Scratch) (text string, ok bool) {
	s.chat.BOS, s.chat.EOS, s.chat.Now = t.BOSText, t.EOSText, r.clock.Now()
	if s.rendered, ok = t.Template.AppendDirect(s.rendered[:0], &s.chat, r.maxText); ok {
		return view(s.rendered), true
	}
	if len(s.chat.Messages) > maxSlowMessages {
		return "", false
	}
	text, err := t.Template.Render(ctx, &s.chat)
	// What a template refuses, the engine will too: nothing is computed.
	return text, err == nil && len(text) <= r.maxText
}

// maxSlowMessages bounds the turns of a chat whose template needs the template
// library, which takes some ten microseconds for each.
const maxSlowMessages = 512

func (r *Reader) completion(body []byte, f *fields, to Target, seed prefix.Hash, s *Scratch) Identity {
	special, ok := boolean(body, f.special, true)
	if !ok || !s.readPrompts(body, f.prompt) {
		return Identity{Bytes: unit.Bytes(len(body))}
	}
	t := r.texts[to.Scope.Base]
	size, exact := 0, !f.inexact
	for i := range s.prompts {
		p := &s.prompts[i]
		size += len(p.text) + 4*len(p.ids)
		exact = exact && (p.isIDs || t != nil)
	}
	if !exact || size > r.maxText {
		return r.promptBytes(&s.prompts[0], size, seed, s)
	}
	id := Identity{Exact: true, BlockTokens: to.BlockTokens, Bytes: unit.Bytes(size)}
	for i := range s.prompts {
		p := &s.prompts[i]
		s.chain.begin(seed, to.BlockTokens)
		n, whole := unit.Tokens(len(p.ids)), true
		switch {
		case p.isIDs:
			s.chain.add(p.ids)
		default:
			if special {
				s.chain.add(t.BOS)
			}
			n, whole = r.encode(t, p.text, s, r.maxWork/len(s.prompts))
		}
		id.Tokens += n
		id.Partial = id.Partial || !whole
		if i == 0 && len(s.prompts) > 1 {
			s.first = append(s.first[:0], s.chain.out...)
		}
	}
	if id.Chain = s.chain.out; len(s.prompts) > 1 {
		id.Chain = s.first
	}
	return id
}

// encode adds the tokens of text to the chain, piece by piece, and counts those
// of the chain. It ends early when more than work bytes would have to be
// tokenised; n is extrapolated then.
func (r *Reader) encode(t *model, text string, s *Scratch, work int) (n unit.Tokens, whole bool) {
	cached, encoded, rest := 0, 0, text
	for rest != "" {
		end := t.Encoder.Cut(rest, pieceBytes)
		part := rest[:end]
		keep := end < len(rest) && end <= maxPiece
		var key uint64
		if keep {
			key = t.keyOf(part)
			if p := r.cache.find(t, key, part); p != nil {
				s.chain.addPiece(p)
				cached += end
				rest = rest[end:]
				continue
			}
		}
		if work -= effort(end); work < 0 {
			break
		}
		s.ids = t.Encoder.Encode(s.ids[:0], part, true)
		if keep {
			s.chain.addPiece(r.cache.keep(t, key, part, s.ids))
		} else {
			s.chain.add(s.ids)
		}
		encoded += end
		rest = rest[end:]
	}
	r.count(cached, encoded)
	n = unit.Tokens(s.chain.tokens)
	if rest == "" {
		return n, true
	}
	if done := cached + encoded; done > 0 {
		return n * unit.Tokens(len(text)) / unit.Tokens(done), false
	}
	return unit.Tokens(len(text) / (byteBlock / 16)), false
}

// effort is what tokenising a part costs, in bytes of usual text. A part much
// longer than asked for has no place to cut: it is one word, or few, and merging
// a word takes more than linear time.
func effort(part int) int {
	if part > 2*pieceBytes {
		return 16 * part
	}
	return part
}

func (r *Reader) count(cached, encoded int) {
	r.cached.Add(float64(cached))
	r.encoded.Add(float64(encoded))
	if r.reads.Add(1)%64 == 1 {
		r.size.Set(float64(r.cache.bytes()))
	}
}

// chatBytes hashes a chat's own text: what the template gets before the
// messages, then the messages one by one, without what comes behind the last, so
// that a longer conversation begins with the shorter one's bytes.
func (r *Reader) chatBytes(body []byte, f *fields, seed prefix.Hash, s *Scratch) Identity {
	s.stream = s.stream[:0]
	for _, part := range []span{f.kwargs, f.tools} {
		if !part.none() {
			s.stream = appendCompact(s.stream, part.in(body)[:min(part.to-part.from, r.maxText)])
			s.stream = append(s.stream, '\n')
		}
	}
	list := membersOf(body, f.messages)
	for list.next() && len(s.stream) < r.maxText {
		m := list.value.in(body)
		s.stream = appendCompact(s.stream, m[:min(len(m), r.maxText)])
		s.stream = append(s.stream, '\n')
	}
	return r.hashBytes(f.messages.to-f.messages.from+f.tools.to-f.tools.from, seed, s)
}

// promptBytes hashes a prompt's text.
func (r *Reader) promptBytes(p *promptText, size int, seed prefix.Hash, s *Scratch) Identity {
	s.stream = s.stream[:0]
	if p.isIDs {
		for _, id := range p.ids[:min(len(p.ids), r.maxText/4)] {
			s.stream = append(s.stream, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
		}
	} else {
		s.stream = append(s.stream, p.text[:min(len(p.text), r.maxText)]...)
	}
	return r.hashBytes(size, seed, s)
}

func (r *Reader) hashBytes(size int, seed prefix.Hash, s *Scratch) Identity {
	s.stream = s.stream[:min(len(s.stream), r.maxText)]
	s.chain.out = appendByteChain(s.chain.out[:0], seed^byteSeed, s.stream)
	r.hashed.Add(float64(len(s.stream)))
	return Identity{Chain: s.chain.out, Bytes: unit.Bytes(size)}
}
