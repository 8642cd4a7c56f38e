package model

import (
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/kernel"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// attendTask is the share of one thread in attention: some rows of one span,
// one KV head.
type attendTask struct {
	head, from, rows int // from is the row's index in the step
}

// store writes one token's keys and values of a layer into its block.
func (m *Model) store(pool *kv.Pool, layer int, blocks []kv.BlockID, pos int, k, v []float32) {
	size, hd := pool.Layout.BlockTokens, m.cfg.HeadDim
	block, at := blocks[pos/size], pos%size
	for h := range m.cfg.KVHeads {
		place := (h*size + at) * hd
		from, to := h*hd, (h+1)*hd
		if m.exact {
			copy(pool.PlaneF32(layer, block, 0)[place:place+hd], k[from:to])
			copy(pool.PlaneF32(layer, block, 1)[place:place+hd], v[from:to])
		} else {
			m.k.Narrow(pool.PlaneF16(layer, block, 0)[place:place+hd], k[from:to])
			m.k.Narrow(pool.PlaneF16(layer, block, 1)[place:place+hd], v[from:to])
		}
	}
}

// scoreBudget bounds the attention scores a thread holds at once, in floats: half
// a megabyte, so that they stay in its second-level cache.
const scoreBudget = 128 << 10

// maxAttendRows is how many rows share one reading of keys and values.
const maxAttendRows = 32

// attend computes s.att from s.q and the layer's keys and values.
func (m *Model) attend(pool *kv.Pool, spans []batch.Span, layer int) {
	s, c := &m.s, &m.cfg
	s.att.Resize(len(s.rows), c.Heads*c.HeadDim, quantized(m.layers[layer].o))
	group := c.Heads / c.KVHeads
	s.tasks = s.tasks[:0]
	for r := 0; r < len(s.rows); {
		at := s.rows[r]
		n := 1
		limit := min(maxAttendRows, max(1, scoreBudget/(group*kernel.Padded(at.pos+maxAttendRows))))
		for n < limit && r+n < len(s.rows) && s.rows[r+n].span == at.span {
			n++
		}
		for h := range c.KVHeads {
			s.tasks = append(s.tasks, attendTask{head: h, from: r, rows: n})
		}
		r += n
	}
	s.threads = grow(s.threads, m.team.Threads())
	m.team.Run(len(s.tasks), func(i, thread int) {
		// The longest tasks, later rows of a prompt, come first.
		t := s.tasks[len(s.tasks)-1-i]
		m.attendOne(pool, spans[s.rows[t.from].span].Blocks, layer, t, &s.threads[thread])
	})
}

func (m *Model) attendOne(pool *kv.Pool, blocks []kv.BlockID, layer int, t attendTask, scratch *kernel.AttendScratch) {
	s, c := &m.s, &m.cfg
	group := c.Heads / c.KVHeads
	size, width := pool.Layout.BlockTokens, c.Heads*c.HeadDim
	plane := size * c.HeadDim
	at := t.from*width + t.head*group*c.HeadDim
	planes := func(v int) kernel.KVPlanes {
		if m.exact {
			return kernel.KVPlanes{F32: func(b int) []float32 {
				return pool.PlaneF32(layer, blocks[b], v)[t.head*plane:][:plane]
			}}
		}
		return kernel.KVPlanes{F16: func(b int) []uint16 {
			return pool.PlaneF16(layer, blocks[b], v)[t.head*plane:][:plane]
		}}
	}
	m.k.Attend(&kernel.Attention{
		HeadDim: c.HeadDim, Group: group, BlockTokens: size,
		Keys: planes(0), Values: planes(1),
		First: s.rows[t.from].pos, Rows: t.rows,
		Q: s.q[at:], Out: s.att.F[at:], Stride: width,
	}, scratch)
}
