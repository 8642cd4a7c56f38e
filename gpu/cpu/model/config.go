package model

import (
	"errors"
	"fmt"

	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
	"github.com/yardmaster/yardmaster/gpu/cpu/kernel"
)

// ErrUnsupported says that a file is sound but describes a model this package
// does not run. The message names what is missing.
var ErrUnsupported = errors.New("unsupported model")

// Config is the shape of a model.
type Config struct {
	Arch    string // "llama", "qwen2" or "qwen3"
	Name    string // general.name; may be empty
	Layers  int
	Dim     int // width of hidden states
	Heads   int // query heads
	KVHeads int // key and value heads; Heads is a multiple
	HeadDim int
	FFN     int // width of the feed-forward part
	Vocab   int
	Context int // longest sequence the model was trained for, in tokens
	Eps     float32

	RopeBase  float64
	RopeDims  int     // leading dimensions of a head that turn with the position
	RopeScale float64 // positions are divided by it
	// RopeNeox pairs dimension i with i+RopeDims/2; otherwise 2i with 2i+1.
	RopeNeox bool
}

// maxSize bounds every number of a Config, so that products of two fit an int.
const maxSize = 1 << 24

// readConfig takes the shape from f's metadata.
func readConfig(f *gguf.File) (Config, error) {
	var c Config
	c.Arch, _ = f.String("general.architecture")
	c.Name, _ = f.String("general.name")
	switch c.Arch {
	case "llama":
	case "qwen2", "qwen3":
		c.RopeNeox = true
	default:
		return c, fmt.Errorf("%w: architecture %q; llama, qwen2 and qwen3 are supported", ErrUnsupported, c.Arch)
	}
	r := reader{f: f, arch: c.Arch}
	c.Layers = r.size("block_count")
	c.Dim = r.size("embedding_length")
	c.Heads = r.size("attention.head_count")
	c.KVHeads = r.sizeOr("attention.head_count_kv", c.Heads)
	c.FFN = r.size("feed_forward_length")
	c.Context = r.size("context_length")
	c.HeadDim = r.sizeOr("attention.key_length", c.Dim/max(c.Heads, 1))
	c.RopeDims = r.sizeOr("rope.dimension_count", c.HeadDim)
	c.Eps = float32(r.number("attention.layer_norm_rms_epsilon", 0, true))
	c.RopeBase = r.number("rope.freq_base", 10000, false)
	if v := r.sizeOr("attention.value_length", c.HeadDim); v != c.HeadDim {
		r.refuse("value heads of %d beside key heads of %d", v, c.HeadDim)
	}
	r.refuseFeatures()
	c.RopeScale = r.ropeScale()
	if r.err == nil {
		c.check(&r)
	}
	return c, r.err
}

// check refuses shapes the kernels cannot compute.
func (c *Config) check(r *reader) {
	multiple := func(what string, n int) {
		if n%kernel.PanelWidth != 0 {
			r.refuse("%s of %d, not a multiple of %d", what, n, kernel.PanelWidth)
		}
	}
	multiple("embedding", c.Dim)
	multiple("head dimension", c.HeadDim)
	multiple("feed-forward width", c.FFN)
	if c.Heads%c.KVHeads != 0 {
		r.refuse("%d query heads over %d key heads", c.Heads, c.KVHeads)
	}
	if c.RopeDims > c.HeadDim || c.RopeDims%2 != 0 {
		r.refuse("rotation of %d of %d dimensions", c.RopeDims, c.HeadDim)
	}
	// Positions beyond this lose the precision of the rotation, and are no
	// model's context.
	if !(c.RopeBase > 0) || !(c.RopeScale > 0) || !(c.Eps >= 0) {
		r.refuse("rotation base %v, scale %v, epsilon %v", c.RopeBase, c.RopeScale, c.Eps)
	}
}

// reader reads metadata of one architecture and keeps the first problem.
type reader struct {
	f    *gguf.File
	arch string
	err  error
}

func (r *reader) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
	}
}

func (r *reader) size(key string) int { return r.sizeIn(key, 0) }

// sizeOr is the positive integer at key, or def if the key is absent.
func (r *reader) sizeOr(key string, def int) int { return r.sizeIn(key, def) }

func (r *reader) sizeIn(key string, def int) int {
	key = r.arch + "." + key
	n, ok := r.f.Int(key)
	switch {
	case !r.f.Has(key) && def > 0:
		return def
	case !ok && r.f.Has(key):
		r.refuse("%s is not an integer (per-layer values are not supported)", key)
	case !ok:
		r.refuse("%s is missing", key)
	case n <= 0 || n > maxSize:
		r.refuse("%s is %d", key, n)
	default:
		return int(n)
	}
	return 1
}

func (r *reader) number(key string, def float64, required bool) float64 {
	key = r.arch + "." + key
	x, ok := r.f.Float(key)
	if ok {
		return x
	}
	if required || r.f.Has(key) {
		r.refuse("%s is missing or not a number", key)
	}
	return def
}

// refuseFeatures refuses what would silently change the numbers if ignored.
func (r *reader) refuseFeatures() {
	if n, ok := r.f.Int(r.arch + ".expert_count"); ok && n > 0 {
		r.refuse("a mixture of %d experts", n)
	}
	for _, key := range []string{
		"attention.scale", "attention.sliding_window", "attn_logit_softcapping",
		"final_logit_softcapping", "logit_scale", "embedding_scale", "residual_scale",
		"attention.max_alibi_bias", "attention.clamp_kqv",
	} {
		if x, ok := r.f.Float(r.arch + "." + key); ok && x != 0 {
			r.refuse("%s.%s = %v", r.arch, key, x)
		}
	}
	if causal, ok := r.f.Bool(r.arch + ".attention.causal"); ok && !causal {
		r.refuse("attention that is not causal")
	}
}

func (r *reader) ropeScale() float64 {
	kind, _ := r.f.String(r.arch + ".rope.scaling.type")
	switch kind {
	case "", "none", "linear":
	default:
		r.refuse("position scaling %q; only linear is supported", kind)
	}
	if kind == "none" {
		return 1
	}
	factor := r.number("rope.scale_linear", 1, false)
	return r.number("rope.scaling.factor", factor, false)
}
