package model

import (
	"fmt"
	"math"
	"testing"

	"github.com/yardmaster/yardmaster/gpu/cpu/gguf"
)

// naive computes a model from its file in float64, one token at a time, with
// no cache and none of this package's code: what the rest is judged by.
type naive struct {
	f                      *gguf.File
	arch                   string
	layers, dim            int
	heads, kvHeads, hd     int
	base, eps, ropeFactor  float64
	freqFactors, embedding []float64
	vocab                  int
}

func newNaive(t *testing.T, f *gguf.File) *naive {
	t.Helper()
	arch, _ := f.String("general.architecture")
	num := func(key string) float64 {
		x, ok := f.Float(arch + "." + key)
		if !ok {
			t.Fatalf("no %s", key)
		}
		return x
	}
	n := &naive{
		f: f, arch: arch, layers: int(num("block_count")), dim: int(num("embedding_length")),
		heads: int(num("attention.head_count")), kvHeads: int(num("attention.head_count_kv")),
		hd: int(num("attention.key_length")), base: num("rope.freq_base"),
		eps: num("attention.layer_norm_rms_epsilon"), ropeFactor: 1,
	}
	if x, ok := f.Float(arch + ".rope.scaling.factor"); ok {
		n.ropeFactor = x
	}
	n.embedding = n.tensor("token_embd.weight")
	n.vocab = len(n.embedding) / n.dim
	n.freqFactors = n.tensor("rope_freqs.weight")
	return n
}

// tensor decodes a tensor, or returns nil if there is none.
func (n *naive) tensor(name string) []float64 {
	t, ok := n.f.Tensor(name)
	if !ok {
		return nil
	}
	raw, x := make([]byte, t.Size), make([]float32, t.Elements())
	if err := n.f.ReadTensor(t, raw, 0); err != nil {
		panic(err)
	}
	gguf.Dequantize(t.Type, x, raw)
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

func matvec(w, x []float64) []float64 {
	out := make([]float64, len(w)/len(x))
	for r := range out {
		for i, v := range x {
			out[r] += w[r*len(x)+i] * v
		}
	}
	return out
}

func plus(a, b []float64) []float64 {
	for i := range b { // b may be nil
		a[i] += b[i]
	}
	return a
}

func (n *naive) norm(x, w []float64) []float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(sum/float64(len(x))+n.eps) * w[i]
	}
	return out
}

// position turns every head of x, after normalising it with w if there is one.
func (n *naive) position(x, w []float64, pos int) []float64 {
	out := make([]float64, len(x))
	for h := 0; h < len(x); h += n.hd {
		head := x[h : h+n.hd]
		if w != nil {
			head = n.norm(head, w)
		}
		for i := range n.hd / 2 {
			angle := float64(pos) * math.Pow(n.base, -2*float64(i)/float64(n.hd)) / n.ropeFactor
			if n.freqFactors != nil {
				angle /= n.freqFactors[i]
			}
			a, b := 2*i, 2*i+1
			if n.arch != "llama" {
				a, b = i, i+n.hd/2
			}
			sin, cos := math.Sincos(angle)
			out[h+a] = head[a]*cos - head[b]*sin
			out[h+b] = head[a]*sin + head[b]*cos
		}
	}
	return out
}

// logits are those after the last of tokens.
func (n *naive) logits(tokens []int32) []float64 {
	xs := make([][]float64, len(tokens))
	for i, tok := range tokens {
		xs[i] = append([]float64(nil), n.embedding[int(tok)*n.dim:][:n.dim]...)
	}
	for l := range n.layers {
		blk := func(name string) []float64 { return n.tensor(fmt.Sprintf("blk.%d.%s", l, name)) }
		wq, wk, wv, wo := blk("attn_q.weight"), blk("attn_k.weight"), blk("attn_v.weight"), blk("attn_output.weight")
		gate, up, down := blk("ffn_gate.weight"), blk("ffn_up.weight"), blk("ffn_down.weight")
		var ks, vs [][]float64
		for p, x := range xs {
			in := n.norm(x, blk("attn_norm.weight"))
			q := n.position(plus(matvec(wq, in), blk("attn_q.bias")), blk("attn_q_norm.weight"), p)
			ks = append(ks, n.position(plus(matvec(wk, in), blk("attn_k.bias")), blk("attn_k_norm.weight"), p))
			vs = append(vs, plus(matvec(wv, in), blk("attn_v.bias")))
			plus(x, matvec(wo, n.attend(q, ks, vs)))
			in = n.norm(x, blk("ffn_norm.weight"))
			h, u := matvec(gate, in), matvec(up, in)
			for i, v := range h {
				h[i] = v / (1 + math.Exp(-v)) * u[i]
			}
			plus(x, matvec(down, h))
		}
	}
	head := n.tensor("output.weight")
	if head == nil {
		head = n.embedding
	}
	return matvec(head, n.norm(xs[len(xs)-1], n.tensor("output_norm.weight")))
}

func (n *naive) attend(q []float64, ks, vs [][]float64) []float64 {
	out := make([]float64, n.heads*n.hd)
	for h := range n.heads {
		kv := h / (n.heads / n.kvHeads) * n.hd
		weights, sum := make([]float64, len(ks)), 0.0
		for p, k := range ks {
			var dot float64
			for d := range n.hd {
				dot += q[h*n.hd+d] * k[kv+d]
			}
			weights[p] = math.Exp(dot / math.Sqrt(float64(n.hd)))
			sum += weights[p]
		}
		for p, v := range vs {
			for d := range n.hd {
				out[h*n.hd+d] += weights[p] / sum * v[kv+d]
			}
		}
	}
	return out
}
