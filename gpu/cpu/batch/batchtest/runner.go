package batchtest

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// Runner is a [batch.Runner] for tests. The zero value is usable. Set the
// fields before use.
type Runner struct {
	// Layers, KVHeads, HeadDim and DType shape the pages: by default 2 layers of
	// 1 head of 4 elements, F32.
	Layers, KVHeads, HeadDim int
	DType                    kv.DType
	// VocabSize is the number of tokens, by default 97.
	VocabSize int
	// TokenDelay is slept for each token computed, spread over the layers.
	TokenDelay time.Duration
	// OnForward, when not nil, is called at the start of each step.
	OnForward func(spans []batch.Span)
	// OnPage, when not nil, is called with each position written, in each layer.
	OnPage func(layer, position int, b kv.BlockID)
}

var _ batch.Runner = (*Runner)(nil)

// dim leaves room for a 64-bit digest, 16 bits to a float32.
const dim = 8

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

// Layout is the shape of the runner's blocks.
func (r *Runner) Layout(blockTokens int) kv.Layout {
	return kv.Layout{
		Layers: orDefault(r.Layers, 2), KVHeads: orDefault(r.KVHeads, 1), HeadDim: orDefault(r.HeadDim, 4),
		BlockTokens: blockTokens, DType: r.DType,
	}
}

// Vocab is the number of tokens.
func (r *Runner) Vocab() int { return orDefault(r.VocabSize, 97) }

// Dim is the width of a hidden state.
func (*Runner) Dim() int { return dim }

// Forward computes a step.
func (r *Runner) Forward(pool *kv.Pool, spans []batch.Span, hidden []float32, onLayer func(layer int)) {
	if r.OnForward != nil {
		r.OnForward(spans)
	}
	tokens := 0
	for _, s := range spans {
		tokens += len(s.Tokens)
		if have := len(s.Blocks) * pool.Layout.BlockTokens; have < s.Start+len(s.Tokens) {
			panic(fmt.Sprintf("batchtest: a table of %d positions for %d+%d", have, s.Start, len(s.Tokens)))
		}
	}
	pause := r.TokenDelay * time.Duration(tokens) / time.Duration(pool.Layout.Layers)
	for layer := range pool.Layout.Layers {
		for _, s := range spans {
			r.layer(pool, s, layer)
		}
		if pause > 0 {
			time.Sleep(pause)
		}
		if onLayer != nil {
			onLayer(layer)
		}
	}
	for _, s := range spans {
		if s.Last {
			h := digest(pool, s.Blocks, pool.Layout.Layers-1, 0, s.Start+len(s.Tokens), offset)
			encode(hidden[:dim], h)
			hidden = hidden[dim:]
		}
	}
}

const offset = 0x9ae16a3b2f90404f

// layer writes one layer of a span. Position p's bytes follow from its token and
// from the bytes of positions 0..p one layer below.
func (r *Runner) layer(pool *kv.Pool, s batch.Span, layer int) {
	below := uint64(offset)
	if layer > 0 {
		below = digest(pool, s.Blocks, layer-1, 0, s.Start, offset)
	}
	for i, token := range s.Tokens {
		p := s.Start + i
		if layer > 0 {
			below = digest(pool, s.Blocks, layer-1, p, p+1, below)
		}
		b := s.Blocks[p/pool.Layout.BlockTokens]
		write(pool, b, layer, p%pool.Layout.BlockTokens, mix.Bits(below^uint64(token)<<20^uint64(p)<<1^uint64(layer)<<56))
		if r.OnPage != nil {
			r.OnPage(layer, p, b)
		}
	}
}

// rows calls f with each part of a page that belongs to slot.
func rows(pool *kv.Pool, b kv.BlockID, layer, slot int, f func(row []byte)) {
	l := pool.Layout
	n := l.HeadDim * l.DType.Size()
	page := pool.Page(layer, b)
	for plane := 0; plane < len(page); plane += l.PlaneBytes() {
		for head := range l.KVHeads {
			at := plane + (head*l.BlockTokens+slot)*n
			f(page[at : at+n])
		}
	}
}

func write(pool *kv.Pool, b kv.BlockID, layer, slot int, v uint64) {
	rows(pool, b, layer, slot, func(row []byte) {
		for i := range row {
			v = v*6364136223846793005 + 1442695040888963407
			row[i] = byte(v >> 56)
		}
	})
}

// digest folds the bytes of positions [from, to) of a layer into h.
func digest(pool *kv.Pool, blocks []kv.BlockID, layer, from, to int, h uint64) uint64 {
	for p := from; p < to; p++ {
		rows(pool, blocks[p/pool.Layout.BlockTokens], layer, p%pool.Layout.BlockTokens, func(row []byte) {
			for ; len(row) >= 8; row = row[8:] {
				h = (h ^ binary.LittleEndian.Uint64(row)) * 0x9e3779b97f4a7c15
				h ^= h >> 29
			}
			for _, b := range row {
				h = (h ^ uint64(b)) * 0x100000001b3
			}
		})
	}
	return h
}

func encode(hidden []float32, h uint64) {
	clear(hidden)
	for i := range 4 {
		hidden[i] = float32(uint16(h >> (16 * i)))
	}
}

// Logits makes up logits between 0 and 8 from hidden states.
func (r *Runner) Logits(hidden []float32, n int, logits []float32) {
	vocab := r.Vocab()
	for row := range n {
		var h uint64
		for i := range 4 {
			v := hidden[row*dim+i]
			if v < 0 || v > math.MaxUint16 || v != float32(uint16(v)) {
				panic(fmt.Sprintf("batchtest: %v is no part of a hidden state", v))
			}
			h |= uint64(v) << (16 * i)
		}
		for id := range vocab {
			logits[row*vocab+id] = float32(mix.Bits(h+uint64(id)*mix.Gamma)>>40) * 0x1p-21
		}
	}
}
