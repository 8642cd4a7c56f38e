package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
	"github.com/yardmaster/yardmaster/gpu/cpu/kernel"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// Options say how to run a model. The zero value is the fast mode with the best
// kernels on all processors.
type Options struct {
	// Exact computes in float32 with float32 keys and values. It needs up to eight
	// times the file's size in memory and is several times slower.
	Exact bool
	// Threads is how many threads share a step, the caller's included; 0 means
	// GOMAXPROCS.
	Threads int
	// Kernels picks the loops: "generic", "avx2" or "avx512"; empty means the best
	// this machine has.
	Kernels string
}

// Model is a loaded model. It implements batch.Runner: Forward and Logits are
// called by one goroutine at a time.
type Model struct {
	cfg    Config
	exact  bool
	file   *gguf.File
	digest string

	layers  []layer
	embed   *kernel.Matrix
	head    *kernel.Matrix // embed itself if tied
	outNorm []float32
	freqs   []float64 // rotation per position, of each pair of dimensions

	k    *kernel.Kernels
	team *kernel.Team
	s    scratch
}

// Open loads the GGUF file at path. The caller closes the Model. A damaged file
// gives gguf.ErrFormat, one that this package cannot run [ErrUnsupported].
func Open(path string, opt Options) (*Model, error) {
	level, err := pickLevel(opt.Kernels)
	if err != nil {
		return nil, err
	}
	k, err := kernel.New(level)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	threads := opt.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	m := &Model{exact: opt.Exact, file: f, k: k, team: kernel.NewTeam(threads)}
	if err := m.load(); err != nil {
		return nil, fmt.Errorf("model: %s: %w", path, errors.Join(err, m.Close()))
	}
	return m, nil
}

func pickLevel(name string) (kernel.Level, error) {
	if name == "" {
		return kernel.Best(), nil
	}
	for _, l := range kernel.Levels() {
		if l.String() == name {
			return l, nil
		}
	}
	return 0, fmt.Errorf("model: no kernels %q on this machine; there are %v", name, kernel.Levels())
}

func (m *Model) load() error {
	var err error
	if m.cfg, err = readConfig(m.file); err != nil {
		return err
	}
	ld := &loader{f: m.file, exact: m.exact, used: map[string]bool{}}
	m.plan(ld)
	for _, t := range m.file.Tensors() {
		if !ld.used[t.Name] {
			ld.fail("tensor %q has no place in architecture %s", t.Name, m.cfg.Arch)
		}
	}
	if ld.err != nil {
		return ld.err
	}
	hash, err := ld.run(m.team)
	if err != nil {
		return err
	}
	m.digest = digest(m.file, hash, m.exact)
	return nil
}

// plan names every tensor of the architecture.
func (m *Model) plan(ld *loader) {
	c := &m.cfg
	c.Vocab = 1
	if t, ok := m.file.Tensor("token_embd.weight"); ok {
		c.Vocab = t.Rows()
	}
	if c.Vocab > maxSize || c.Heads*c.HeadDim > maxSize {
		ld.fail("vocabulary of %d, attention width of %d", c.Vocab, c.Heads*c.HeadDim)
		return
	}
	m.embed = ld.matrix("token_embd.weight", c.Dim, c.Vocab)
	m.head = m.embed
	if _, ok := m.file.Tensor("output.weight"); ok {
		m.head = ld.matrix("output.weight", c.Dim, c.Vocab)
	}
	m.outNorm = ld.vector("output_norm.weight", true, c.Dim)
	m.freqs = m.rotations(ld)
	for i := range c.Layers {
		m.layers = append(m.layers, planLayer(ld, c, i))
		if ld.err != nil {
			return
		}
	}
}

func planLayer(ld *loader, c *Config, i int) layer {
	name := func(s string) string { return fmt.Sprintf("blk.%d.%s", i, s) }
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	headNorms := c.Arch == "qwen3"
	l := layer{
		attnNorm: ld.vector(name("attn_norm.weight"), true, c.Dim),
		q:        ld.matrix(name("attn_q.weight"), c.Dim, q),
		k:        ld.matrix(name("attn_k.weight"), c.Dim, kv),
		v:        ld.matrix(name("attn_v.weight"), c.Dim, kv),
		o:        ld.matrix(name("attn_output.weight"), q, c.Dim),
		qBias:    ld.vector(name("attn_q.bias"), false, q),
		kBias:    ld.vector(name("attn_k.bias"), false, kv),
		vBias:    ld.vector(name("attn_v.bias"), false, kv),
		oBias:    ld.vector(name("attn_output.bias"), false, c.Dim),
		ffnNorm:  ld.vector(name("ffn_norm.weight"), true, c.Dim),
		gate:     ld.matrix(name("ffn_gate.weight"), c.Dim, c.FFN),
		up:       ld.matrix(name("ffn_up.weight"), c.Dim, c.FFN),
		down:     ld.matrix(name("ffn_down.weight"), c.FFN, c.Dim),
	}
	if headNorms {
		l.qNorm = ld.vector(name("attn_q_norm.weight"), true, c.HeadDim)
		l.kNorm = ld.vector(name("attn_k_norm.weight"), true, c.HeadDim)
	}
	return l
}

// rotations is the angle per position of each pair of dimensions. A file may
// stretch each by a factor (Llama 3's long context).
func (m *Model) rotations(ld *loader) []float64 {
	c := &m.cfg
	factors := make([]float32, c.RopeDims/2)
	for i := range factors {
		factors[i] = 1
	}
	if t := ld.find("rope_freqs.weight", false, c.RopeDims/2); t != nil {
		raw := make([]byte, t.Size)
		if err := m.file.ReadTensor(t, raw, 0); err != nil {
			ld.err = err
			return nil
		}
		gguf.Dequantize(t.Type, factors, raw)
	}
	freqs := make([]float64, c.RopeDims/2)
	for i := range freqs {
		base := math.Pow(c.RopeBase, -2*float64(i)/float64(c.RopeDims))
		freqs[i] = float64(float32(base)) / c.RopeScale / float64(factors[i])
	}
	return freqs
}

// digest names the weights and how they are computed.
func digest(f *gguf.File, tensors uint64, exact bool) string {
	h := xxhash.New()
	_, _ = h.Write(f.Header())
	mode := uint64(0)
	if exact {
		mode = 1
	}
	_ = binary.Write(h, binary.LittleEndian, []uint64{tensors, mode}) // a hash takes every write
	return fmt.Sprintf("%016x", h.Sum64())
}

// Close ends the model's threads and closes its file. The model is not used
// afterwards.
func (m *Model) Close() error {
	m.team.Close()
	return m.file.Close()
}

// Config is the model's shape.
func (m *Model) Config() Config { return m.cfg }

// Metadata is the model's file, for the tokenizer and chat template it holds.
func (m *Model) Metadata() *gguf.File { return m.file }

// Digest identifies header, weights and mode: 16 hexadecimal digits, a hash of
// every byte loaded. Models with equal digests compute interchangeable KV, as
// far as their machines' kernels agree.
func (m *Model) Digest() string { return m.digest }

// Kernels is the name of the loops in use.
func (m *Model) Kernels() string { return m.k.Level().String() }

// Threads is the number of threads that share a step.
func (m *Model) Threads() int { return m.team.Threads() }

// Layout is the shape of the KV blocks that Forward wants.
func (m *Model) Layout(blockTokens int) kv.Layout {
	l := kv.Layout{
		Layers: m.cfg.Layers, KVHeads: m.cfg.KVHeads, HeadDim: m.cfg.HeadDim,
		BlockTokens: blockTokens, DType: kv.F16,
	}
	if m.exact {
		l.DType = kv.F32
	}
	return l
}

// Vocab is the number of logits.
func (m *Model) Vocab() int { return m.cfg.Vocab }

// Dim is the width of a hidden state.
func (m *Model) Dim() int { return m.cfg.Dim }
