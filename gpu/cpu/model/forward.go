package model

import (
	"fmt"
	"math"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/kernel"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// scratch is the memory of a step. It grows to the largest step seen.
type scratch struct {
	x        []float32 // [rows, dim]: the residual stream
	in       kernel.Acts
	wide     kernel.Acts // the feed-forward part's hidden layer
	att      kernel.Acts // attention's result
	q, k, v  []float32   // [rows, heads * head dim]: whole panels, as Config requires
	out      []float32   // [rows, dim]
	gate, up []float32
	rows     []rowPlace
	cos, sin []float32 // [rows, rope dims / 2]
	tasks    []attendTask
	threads  []kernel.AttendScratch
	logits   []float32
}

// rowPlace says which token a row of the step is.
type rowPlace struct {
	span, pos int
}

// Forward computes spans; see batch.Runner. It panics when a span's tokens,
// positions or blocks are out of range, when the pool's layout is not one of
// Layout's, or when hidden is too short.
func (m *Model) Forward(pool *kv.Pool, spans []batch.Span, hidden []float32, onLayer func(layer int)) {
	if want := m.Layout(pool.Layout.BlockTokens); pool.Layout != want {
		panic(fmt.Sprintf("model: pool of layout %+v, want %+v", pool.Layout, want))
	}
	m.begin(spans)
	if len(m.s.rows) == 0 {
		return
	}
	for l := range m.layers {
		m.project(pool, spans, l)
		if onLayer != nil {
			onLayer(l)
		}
		if l == len(m.layers)-1 && !m.keepLast(spans) {
			return
		}
		m.attention(pool, spans, l)
		m.feedForward(&m.layers[l])
	}
	dim := m.cfg.Dim
	for r := range m.s.rows {
		m.k.RMSNorm(hidden[r*dim:(r+1)*dim], m.s.x[r*dim:(r+1)*dim], m.outNorm, m.cfg.Eps)
	}
}

// begin lays out the step's rows, embeds their tokens and computes the
// rotations of their positions.
func (m *Model) begin(spans []batch.Span) {
	s, c := &m.s, &m.cfg
	s.rows = s.rows[:0]
	for i := range spans {
		sp := &spans[i]
		for j, token := range sp.Tokens {
			if uint(token) >= uint(c.Vocab) {
				panic(fmt.Sprintf("model: token %d of a vocabulary of %d", token, c.Vocab))
			}
			s.rows = append(s.rows, rowPlace{span: i, pos: sp.Start + j})
		}
	}
	rows := len(s.rows)
	s.x = grow(s.x, rows*c.Dim)
	s.cos, s.sin = grow(s.cos, rows*len(m.freqs)), grow(s.sin, rows*len(m.freqs))
	m.eachRow(func(r int) {
		at := s.rows[r]
		sp := &spans[at.span]
		m.embed.Row(int(sp.Tokens[at.pos-sp.Start]), s.x[r*c.Dim:(r+1)*c.Dim])
		for i, f := range m.freqs {
			sin, cos := math.Sincos(float64(at.pos) * f)
			s.sin[r*len(m.freqs)+i], s.cos[r*len(m.freqs)+i] = float32(sin), float32(cos)
		}
	})
}

// project computes a layer's queries, keys and values and stores the latter two.
func (m *Model) project(pool *kv.Pool, spans []batch.Span, index int) {
	s, c, l := &m.s, &m.cfg, &m.layers[index]
	rows := len(s.rows)
	qw, kvw := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	s.q, s.k, s.v = grow(s.q, rows*qw), grow(s.k, rows*kvw), grow(s.v, rows*kvw)
	m.norm(l.attnNorm, quantized(l.q, l.k, l.v))
	m.multiply(&s.in, product{l.q, s.q}, product{l.k, s.k}, product{l.v, s.v})
	m.eachRow(func(r int) {
		q, k, v := s.q[r*qw:(r+1)*qw], s.k[r*kvw:(r+1)*kvw], s.v[r*kvw:(r+1)*kvw]
		m.addBias(q, l.qBias)
		m.addBias(k, l.kBias)
		m.addBias(v, l.vBias)
		m.turn(q, l.qNorm, r)
		m.turn(k, l.kNorm, r)
		m.store(pool, index, spans[s.rows[r].span].Blocks, s.rows[r].pos, k, v)
	})
}

// keepLast drops the rows whose hidden state nobody asked for: beyond the last
// layer's keys and values they serve nothing. It reports whether any is left.
func (m *Model) keepLast(spans []batch.Span) bool {
	s, dim, qw := &m.s, m.cfg.Dim, m.cfg.Heads*m.cfg.HeadDim
	kept := 0
	for r, at := range s.rows {
		sp := &spans[at.span]
		if !sp.Last || at.pos != sp.Start+len(sp.Tokens)-1 {
			continue
		}
		s.rows[kept] = at
		copy(s.x[kept*dim:(kept+1)*dim], s.x[r*dim:(r+1)*dim])
		copy(s.q[kept*qw:(kept+1)*qw], s.q[r*qw:(r+1)*qw])
		kept++
	}
	s.rows = s.rows[:kept]
	return kept > 0
}

// attention adds a layer's attention to the residual stream.
func (m *Model) attention(pool *kv.Pool, spans []batch.Span, index int) {
	s, l := &m.s, &m.layers[index]
	m.attend(pool, spans, index)
	m.eachRow(func(r int) { m.quantizeRow(&s.att, r, l.o) })
	m.addProduct(&s.att, l.o, l.oBias)
}

// feedForward adds a layer's gated feed-forward part to the residual stream.
func (m *Model) feedForward(l *layer) {
	s, rows, ffn := &m.s, len(m.s.rows), m.cfg.FFN
	m.norm(l.ffnNorm, quantized(l.gate, l.up))
	s.gate, s.up = grow(s.gate, rows*ffn), grow(s.up, rows*ffn)
	m.multiply(&s.in, product{l.gate, s.gate}, product{l.up, s.up})
	s.wide.Resize(rows, ffn, quantized(l.down))
	m.eachRow(func(r int) {
		m.k.SiluMul(s.wide.Row(r), s.gate[r*ffn:(r+1)*ffn], s.up[r*ffn:(r+1)*ffn])
		m.quantizeRow(&s.wide, r, l.down)
	})
	m.addProduct(&s.wide, l.down, nil)
}

// norm sets s.in to the normalised residual stream.
func (m *Model) norm(w []float32, quantize bool) {
	s, dim := &m.s, m.cfg.Dim
	s.in.Resize(len(s.rows), dim, quantize)
	m.eachRow(func(r int) {
		m.k.RMSNorm(s.in.Row(r), s.x[r*dim:(r+1)*dim], w, m.cfg.Eps)
		if quantize {
			m.k.Quantize(&s.in, r, r+1)
		}
	})
}

func (m *Model) quantizeRow(a *kernel.Acts, r int, w *kernel.Matrix) {
	if quantized(w) {
		m.k.Quantize(a, r, r+1)
	}
}

// addProduct adds a·wᵀ and a bias to the residual stream.
func (m *Model) addProduct(a *kernel.Acts, w *kernel.Matrix, bias []float32) {
	s, dim := &m.s, m.cfg.Dim
	s.out = grow(s.out, a.Rows*dim)
	m.multiply(a, product{w, s.out})
	m.eachRow(func(r int) {
		out := s.out[r*dim : (r+1)*dim]
		m.addBias(out, bias)
		m.k.Add(s.x[r*dim:(r+1)*dim], out)
	})
}

func (m *Model) addBias(x, bias []float32) {
	if bias != nil {
		m.k.Add(x, bias)
	}
}

// Logits multiplies n hidden states with the output head; see batch.Runner.
func (m *Model) Logits(hidden []float32, n int, logits []float32) {
	if n == 0 {
		return
	}
	s, dim, vocab := &m.s, m.cfg.Dim, m.cfg.Vocab
	width := kernel.Padded(vocab)
	s.in.Resize(n, dim, quantized(m.head))
	copy(s.in.F, hidden[:n*dim])
	for r := range n {
		m.quantizeRow(&s.in, r, m.head)
	}
	if width == vocab {
		m.multiply(&s.in, product{m.head, logits[:n*vocab]})
		return
	}
	s.logits = grow(s.logits, n*width)
	m.multiply(&s.in, product{m.head, s.logits})
	for r := range n {
		copy(logits[r*vocab:(r+1)*vocab], s.logits[r*width:])
	}
}
