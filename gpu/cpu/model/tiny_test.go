package model

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf/gguftest"
	"github.com/yardmaster/yardmaster/gpu/cpu/kernel"
)

var tinyPrompt = []int32{1, 70, 104, 259, 37, 3, 262, 2, 119, 120, 121, 70, 104, 37, 99, 279, 35, 200}

// TestAgainstNaive runs every architecture and weight type, on all kernels and
// in both modes, against the float64 computation. Exact mode may differ by
// float32 rounding, 1e-5 of the logits' spread at most (5e-6 seen); fast mode by
// what 8-bit activations and half-precision keys and values cost, 0.06 of it
// (0.048 seen) for these random weights, whose errors average out little.
func TestAgainstNaive(t *testing.T) {
	type o = gguftest.Options
	tests := []struct {
		name string
		opt  o
	}{
		{"llama Q4_1", o{}},
		{"llama F32", o{TypeSet: true, EmbdTypeSet: true}},
		{"llama F16", o{Type: gguf.F16, EmbdType: gguf.F16}},
		{"llama BF16", o{Type: gguf.BF16, EmbdType: gguf.BF16, Untied: true}},
		{"llama Q8_0", o{Type: gguf.Q80, Untied: true}},
		{"llama Q4_0", o{Type: gguf.Q40, EmbdType: gguf.F16}},
		{"llama Q4_K", o{Type: gguf.Q4K, EmbdType: gguf.Q6K, Dim: 256, HeadDim: 64, FFN: 256}},
		{"llama Q6_K", o{Type: gguf.Q6K, EmbdType: gguf.Q4K, Dim: 256, HeadDim: 64, FFN: 512}},
		{"llama with frequency factors", o{RopeFactors: []float32{1, 1, 1.5, 2, 4, 8, 8, 8}}},
		{"llama with linear scaling", o{Keys: map[string]any{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(4)}}},
		{"one head per key head", o{KVHeads: 4}},
		{"qwen2 Q4_0", o{Arch: "qwen2", Type: gguf.Q40}},
		{"qwen2 F16", o{Arch: "qwen2", Type: gguf.F16, Untied: true}},
		{"qwen3 Q8_0", o{Arch: "qwen3", Type: gguf.Q80, HeadDim: 32}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := gguftest.TinyModelFile(t, 7, tt.opt)
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() }) // only read from
			want := newNaive(t, f).logits(tinyPrompt)
			for _, level := range kernel.Levels() {
				for _, exact := range []bool{true, false} {
					m := open(t, path, Options{Exact: exact, Threads: 2, Kernels: level.String()})
					r := newRig(t, m, 16, 5)
					got := r.step(r.span(&sequence{tokens: tinyPrompt}, len(tinyPrompt), true))[0]
					limit := 1e-5
					if !exact {
						limit = 0.06
					}
					if d := distance(got, want); !(d < limit) {
						t.Errorf("%v, exact %v: logits off by %v of their spread", level, exact, d)
					}
				}
			}
		})
	}
}

// distance is the root mean square of the difference over that of want.
func distance(got []float32, want []float64) float64 {
	var diff, size float64
	for i, w := range want {
		diff += (float64(got[i]) - w) * (float64(got[i]) - w)
		size += w * w
	}
	return math.Sqrt(diff / size)
}

// TestBatchIndependent: whatever a sequence shares its steps with, however its
// prompt is cut, wherever its blocks lie and however many threads compute,
// its hidden states are the same bits.
func TestBatchIndependent(t *testing.T) {
	path := gguftest.TinyModelFile(t, 3, gguftest.Options{})
	levels := kernel.Levels()
	if raceEnabled {
		levels = levels[len(levels)-1:] // pure Go would take most of the time
	}
	for _, level := range levels {
		for _, exact := range []bool{false, true} {
			one := open(t, path, Options{Exact: exact, Threads: 1, Kernels: level.String()})
			three := open(t, path, Options{Exact: exact, Threads: 3, Kernels: level.String()})
			t.Run(level.String(), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) { checkIndependent(t, rt, one, three) })
			})
		}
	}
}

func checkIndependent(t *testing.T, rt *rapid.T, alone, together *Model) {
	token := rapid.Int32Range(0, int32(alone.Vocab())-1)
	size := rapid.SampledFrom([]int{16, 8, 3}).Draw(rt, "block tokens")
	n := rapid.IntRange(1, 5).Draw(rt, "sequences")
	var seqs []sequence
	for range n {
		seqs = append(seqs, sequence{tokens: rapid.SliceOfN(token, 1, 60).Draw(rt, "tokens")})
	}
	// Alone: each sequence in one piece.
	want := make([][]float32, n)
	for i := range seqs {
		r := newRig(t, alone, size, 100)
		want[i] = slices.Clone(r.step(r.span(&sequence{tokens: seqs[i].tokens}, len(seqs[i].tokens), true))[0])
	}
	// Together: random pieces of random sequences.
	r := newRig(t, together, size, 500)
	for left := n; left > 0; {
		var spans []batch.Span
		var ends []int
		for i := range seqs {
			q := &seqs[i]
			rest := len(q.tokens) - q.done
			if rest == 0 {
				continue
			}
			piece := rapid.IntRange(0, rest).Draw(rt, "piece")
			if piece == 0 {
				continue
			}
			last := piece == rest
			spans = append(spans, r.span(q, piece, last))
			if last {
				ends = append(ends, i)
				left--
			}
		}
		for j, logits := range r.step(spans...) {
			if !slices.Equal(logits, want[ends[j]]) {
				rt.Fatalf("sequence %d of %d tokens differs from itself alone", ends[j], len(seqs[ends[j]].tokens))
			}
		}
	}
}

func TestOnLayer(t *testing.T) {
	m := open(t, gguftest.TinyModelFile(t, 1, gguftest.Options{Layers: 3}), Options{})
	r := newRig(t, m, 16, 5)
	sp := r.span(&sequence{tokens: tinyPrompt}, len(tinyPrompt), true)
	var seen []int
	m.Forward(r.pool, []batch.Span{sp}, make([]float32, m.Dim()), func(layer int) {
		seen = append(seen, layer)
		for v := range 2 {
			plane := r.pool.PlaneF16(layer, sp.Blocks[0], v)
			if slices.Max(plane) == 0 {
				t.Errorf("layer %d announced before its keys and values", layer)
			}
		}
	})
	if !slices.Equal(seen, []int{0, 1, 2}) {
		t.Errorf("layers %v, want 0 1 2", seen)
	}
}

func TestDigest(t *testing.T) {
	path := func(seed uint64, o gguftest.Options) string { return gguftest.TinyModelFile(t, seed, o) }
	digest := func(path string, o Options) string { return open(t, path, o).Digest() }
	a := path(1, gguftest.Options{})
	want := digest(a, Options{Threads: 1})
	if got := digest(path(1, gguftest.Options{}), Options{Threads: 3}); got != want {
		t.Errorf("equal files: %s and %s", got, want)
	}
	for name, got := range map[string]string{
		"other weights":  digest(path(2, gguftest.Options{}), Options{}),
		"other metadata": digest(path(1, gguftest.Options{Context: 256}), Options{}),
		"other mode":     digest(a, Options{Exact: true}),
	} {
		if got == want {
			t.Errorf("%s: same digest", name)
		}
	}
}

func TestRefused(t *testing.T) {
	type o = gguftest.Options
	keys := func(kv ...any) o {
		m := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return o{Keys: m}
	}
	tests := []struct {
		name, want string
		opt        o
	}{
		{"architecture", `architecture "gemma"`, keys("general.architecture", "gemma")},
		{"experts", "mixture of 8 experts", keys("llama.expert_count", uint32(8))},
		{"yarn", `position scaling "yarn"`, keys("llama.rope.scaling.type", "yarn")},
		{"soft cap", "attn_logit_softcapping = 50", keys("llama.attn_logit_softcapping", float32(50))},
		{"window", "sliding_window = 128", keys("llama.attention.sliding_window", uint32(128))},
		{"not causal", "not causal", keys("llama.attention.causal", false)},
		{"per-layer heads", "not an integer", keys("llama.attention.head_count", []int32{4, 4})},
		{"absurd layers", "block_count is 4294967295", keys("llama.block_count", uint32(math.MaxUint32))},
		{"more layers than tensors", `"blk.2.attn_norm.weight" is missing`, keys("llama.block_count", uint32(3))},
		{"fewer layers than tensors", `tensor "blk.1.attn_norm.weight" has no place`, keys("llama.block_count", uint32(1))},
		{"width", `tensor "token_embd.weight" has shape`, keys("llama.embedding_length", uint32(32))},
		{"head dimension", "head dimension of 24", o{HeadDim: 24}},
		{"value heads", "value heads of 32", keys("llama.attention.value_length", uint32(32))},
		{"heads", "4 query heads over 3", keys("llama.attention.head_count_kv", uint32(3))},
		{"rotation", "rotation of 32 of 16", keys("llama.rope.dimension_count", uint32(32))},
		{"rotation base", "rotation base NaN", keys("llama.rope.freq_base", float32(math.NaN()))},
		{"missing epsilon", "epsilon is missing or not a number", keys("llama.attention.layer_norm_rms_epsilon", "1e-5")},
		{"missing length", "context_length is not an integer", keys("llama.context_length", "long")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Open(gguftest.TinyModelFile(t, 1, tt.opt), Options{})
			if err == nil {
				_ = m.Close() // the test has failed
			}
			if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want ErrUnsupported with %q", err, tt.want)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	path := gguftest.TinyModelFile(t, 1, gguftest.Options{})
	if err := os.Truncate(path, 5000); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); !errors.Is(err, gguf.ErrFormat) {
		t.Errorf("cut file: %v", err)
	}
	if _, err := Open(path, Options{Kernels: "sse"}); err == nil || !strings.Contains(err.Error(), `"sse"`) {
		t.Errorf("unknown kernels: %v", err)
	}
}

// FuzzOpen looks for files that pass the reader and then break the loader or a
// step.
func FuzzOpen(f *testing.F) {
	tiny := gguftest.TinyModel(1, gguftest.Options{Layers: 1})
	f.Add(uint32(40), []byte("llama"))
	f.Add(uint32(200), []byte{0, 0, 0, 0})
	path := filepath.Join(f.TempDir(), "fuzz.gguf")
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		b := slices.Clone(tiny)
		copy(b[int(at)%len(b):], patch)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Open(path, Options{Threads: 1})
		if err != nil {
			return
		}
		defer func() { _ = m.Close() }() // only read from
		r := newRig(t, m, 16, 2)
		r.step(r.span(&sequence{tokens: []int32{0, 1}}, 2, true))
	})
}
