package kvevent

// Kind says what an event reports.
type Kind uint8

// The kinds.
const (
	Stored  Kind = iota + 1 // blocks of tokens became reusable
	Removed                 // blocks went away
	Cleared                 // all blocks went away
)

// MediumGPU is the medium of blocks in the engine's own KV cache. Engines that
// do not say where a block is mean this one; some say it on a CPU too.
const MediumGPU = "GPU"

// NoGroup is Group of an event that names no KV-cache group.
const NoGroup = -1

// NoRank is Rank of a batch that names no data-parallel rank.
const NoRank = -1

// Event is one change of an engine's cache. Its slices belong to the [Batch] it
// was decoded into, until that is decoded into again.
type Event struct {
	Kind Kind
	// Hashes are the engine's own names of the blocks, normalised to 64 bits: an
	// integer as it is (a negative one as its two's complement), bytes by their
	// last eight, big-endian. They are opaque.
	Hashes []uint64
	// Parent is the hash of the block before the first; 0 when there is none or
	// the engine does not say.
	Parent uint64
	// Tokens are the ids of all stored blocks, one block after another. A text id
	// becomes its number when it is one, else a hash of it; of a bigram pair it is
	// the first.
	Tokens []uint32
	// BlockTokens is the tokens per block; 0 when the engine does not say.
	BlockTokens int
	LoRA        string // adapter name; empty for the base model or an unnamed one
	LoRAID      int64  // deprecated id; 0 when absent
	Medium      string // empty means MediumGPU
	Salt        string // cache salt, where the engine sends it
	Group       int    // KV-cache group of a hybrid model; NoGroup when absent
	Spec        string // kind of the group's cache, e.g. full_attention
	// Extra is true when a block's hash covers more than tokens: media, an adapter
	// or a salt. Tokens alone do not identify such blocks.
	Extra bool
	// ExtraKey is what the first block's hash covers besides its tokens, when that
	// is a single text: a salt, an adapter or a medium; the wire does not say.
	ExtraKey string
}

// Block is the token ids of the i-th block of Hashes. ok is false when the
// engine did not send them, or sent another number than its blocks hold.
func (e *Event) Block(i int) (tokens []uint32, ok bool) {
	if i < 0 || i >= len(e.Hashes) || e.BlockTokens <= 0 || len(e.Tokens) != len(e.Hashes)*e.BlockTokens {
		return nil, false
	}
	at := i * e.BlockTokens
	return e.Tokens[at : at+e.BlockTokens : at+e.BlockTokens], true
}

// Batch is one message of events. Decoding into a used Batch reuses its memory.
type Batch struct {
	Time    float64 // seconds since 1970, by the engine's clock
	Rank    int     // data-parallel rank; NoRank when absent
	Events  []Event
	Skipped int // events of a kind unknown here

	hashes []uint64
	tokens []uint32
	spans  []span
	names  map[string]string
}

// span is where an event's columns lie while the arenas still grow.
type span struct{ hash0, hash1, token0, token1 int }
