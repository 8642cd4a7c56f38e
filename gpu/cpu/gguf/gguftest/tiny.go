package gguftest

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
)

// Options shape a [TinyModel]. Zero fields take the defaults given.
type Options struct {
	Arch    string // "llama" (default), "qwen2", "qwen3"
	Layers  int    // 2
	Dim     int    // 64; a multiple of the blocks of the types
	Heads   int    // 4
	KVHeads int    // 2
	HeadDim int    // 16
	FFN     int    // 96; a multiple of the blocks of the types
	Context int    // 512
	Type    gguf.Type
	// TypeSet says that Type is meant even if zero, which is F32; else Q4_1.
	TypeSet bool
	// EmbdType is the type of the embedding and the output head, Q8_0 unless
	// EmbdTypeSet.
	EmbdType    gguf.Type
	EmbdTypeSet bool
	Untied      bool   // write a separate output head
	Pre         string // pre-tokenizer, "smollm"
	// RopeFactors, when set, is written as rope_freqs.weight (HeadDim/2 numbers).
	RopeFactors []float32
	// Keys are further metadata, or replace what would be written.
	Keys map[string]any
}

func (o Options) withDefaults() Options {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.Layers, 2)
	def(&o.Dim, 64)
	def(&o.Heads, 4)
	def(&o.KVHeads, 2)
	def(&o.HeadDim, 16)
	def(&o.FFN, 96)
	def(&o.Context, 512)
	if o.Arch == "" {
		o.Arch = "llama"
	}
	if o.Pre == "" {
		o.Pre = "smollm"
	}
	if !o.TypeSet && o.Type == 0 {
		o.Type = gguf.Q41
	}
	if !o.EmbdTypeSet && o.EmbdType == 0 {
		o.EmbdType = gguf.Q80
	}
	return o
}

// Token ids of a [TinyModel]'s tokenizer. The 256 tokens of single bytes follow
// FirstByte in the order of the bytes.
const (
	EndOfText = 0 // <|endoftext|>
	StartTurn = 1 // <|im_start|>, the BOS token (not added by itself)
	EndTurn   = 2 // <|im_end|>, the EOS token
	FirstByte = 3
)

// TinyModel makes a model file: seed decides the weights, o everything else.
// Equal arguments give equal bytes.
func TinyModel(seed uint64, o Options) []byte {
	o = o.withDefaults()
	w := Writer{overridden: o.Keys}
	tokens := writeTokenizer(&w, o)
	writeConfig(&w, o, tokens)
	w.overridden = nil
	for _, key := range slices.Sorted(maps.Keys(o.Keys)) {
		w.Key(key, o.Keys[key])
	}
	writeWeights(&w, rand.New(rand.NewPCG(seed, 0)), o, tokens)
	return w.Bytes()
}

// TinyModelFile writes a [TinyModel] into a temporary folder of t and returns
// its path.
func TinyModelFile(t testing.TB, seed uint64, o Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := os.WriteFile(path, TinyModel(seed, o), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func writeConfig(w *Writer, o Options, tokens int) {
	w.Key("general.architecture", o.Arch)
	w.Key("general.name", "Tiny")
	w.Key("general.license", "apache-2.0")
	for _, kv := range []struct {
		key string
		n   int
	}{
		{"block_count", o.Layers},
		{"context_length", o.Context},
		{"embedding_length", o.Dim},
		{"feed_forward_length", o.FFN},
		{"attention.head_count", o.Heads},
		{"attention.head_count_kv", o.KVHeads},
		{"attention.key_length", o.HeadDim},
		{"attention.value_length", o.HeadDim},
		{"rope.dimension_count", o.HeadDim},
		{"vocab_size", tokens},
	} {
		w.Key(o.Arch+"."+kv.key, uint32(kv.n))
	}
	w.Key(o.Arch+".rope.freq_base", float32(10000))
	w.Key(o.Arch+".attention.layer_norm_rms_epsilon", float32(1e-5))
}

func writeWeights(w *Writer, rng *rand.Rand, o Options, tokens int) {
	matrix := func(name string, t gguf.Type, in, out int, sigma float64) {
		w.Tensor(name, t, []int{in, out}, Random(rng, t, in*out, float32(sigma)))
	}
	vector := func(name string, n int, mean, sigma float32) {
		x := make([]float32, n)
		for i := range x {
			x[i] = mean + sigma*float32(rng.NormFloat64())
		}
		w.Tensor(name, gguf.F32, []int{n}, Encode(gguf.F32, x))
	}
	q, kv := o.Heads*o.HeadDim, o.KVHeads*o.HeadDim
	spread := func(in int) float64 { return 1.5 / math.Sqrt(float64(in)) }
	matrix("token_embd.weight", o.EmbdType, o.Dim, tokens, 0.5)
	for l := range o.Layers {
		blk := func(name string) string { return fmt.Sprintf("blk.%d.%s", l, name) }
		vector(blk("attn_norm.weight"), o.Dim, 1, 0.1)
		matrix(blk("attn_q.weight"), o.Type, o.Dim, q, spread(o.Dim))
		matrix(blk("attn_k.weight"), o.Type, o.Dim, kv, spread(o.Dim))
		matrix(blk("attn_v.weight"), o.Type, o.Dim, kv, spread(o.Dim))
		switch o.Arch {
		case "qwen2":
			vector(blk("attn_q.bias"), q, 0, 0.5)
			vector(blk("attn_k.bias"), kv, 0, 0.5)
			vector(blk("attn_v.bias"), kv, 0, 0.5)
		case "qwen3":
			vector(blk("attn_q_norm.weight"), o.HeadDim, 1, 0.1)
			vector(blk("attn_k_norm.weight"), o.HeadDim, 1, 0.1)
		}
		matrix(blk("attn_output.weight"), o.Type, q, o.Dim, spread(q))
		vector(blk("ffn_norm.weight"), o.Dim, 1, 0.1)
		matrix(blk("ffn_gate.weight"), o.Type, o.Dim, o.FFN, spread(o.Dim))
		matrix(blk("ffn_up.weight"), o.Type, o.Dim, o.FFN, spread(o.Dim))
		matrix(blk("ffn_down.weight"), o.Type, o.FFN, o.Dim, spread(o.FFN))
	}
	vector("output_norm.weight", o.Dim, 1, 0.1)
	if o.Untied {
		matrix("output.weight", o.EmbdType, o.Dim, tokens, spread(o.Dim))
	}
	if o.RopeFactors != nil {
		w.Tensor("rope_freqs.weight", gguf.F32, []int{len(o.RopeFactors)}, Encode(gguf.F32, o.RopeFactors))
	}
}
