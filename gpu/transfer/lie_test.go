package transfer_test

import (
	"errors"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/transfer"
	"github.com/yardmaster/yardmaster/gpu/transfer/fake"
)

// wire is a link whose other end is the test.
type wire struct {
	peer   engine.Peer
	sent   []transfer.Message
	moves  []*transfer.Move
	closed error
	broken error // what Send and Move return
}

func (w *wire) Peer() engine.Peer { return w.peer }
func (w *wire) Expect(int64)      {}
func (w *wire) Close(err error)   { w.closed = err }
func (w *wire) Send(m transfer.Message) error {
	w.sent = append(w.sent, m)
	return w.broken
}

func (w *wire) Move(m *transfer.Move) error {
	w.moves = append(w.moves, m)
	return w.broken
}

func (w *wire) Link(engine.Peer) (transfer.Link, error) { return w, nil }

// aborts lists the reasons of the aborts that were sent.
func (w *wire) aborts() []transfer.Reason {
	var out []transfer.Reason
	for _, m := range w.sent {
		if a, ok := m.(*transfer.Abort); ok {
			out = append(out, a.Why)
		}
	}
	return out
}

func sent[M transfer.Message](w *wire) (m M, ok bool) {
	for _, s := range w.sent {
		if m, ok = s.(M); ok {
			return m, true
		}
	}
	return m, false
}

// bench is one node with the test as its peer.
type bench struct {
	node     *transfer.Node
	memory   *fake.Memory
	link     *wire
	clock    *clock.Virtual
	registry measure.Registry
	own      engine.OwnEpoch
}

var source = engine.Peer{ID: "p", Epoch: 3, Transfer: "addr"}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		memory: fake.NewMemory(testShape), link: &wire{peer: source}, clock: clock.NewVirtual(time.Unix(0, 0)),
	}
	b.own.Set(4)
	var err error
	b.node, err = transfer.New(transfer.Config{
		Transport: "test", Memory: b.memory, Clock: b.clock, Registry: &b.registry, MaxTransfers: 4,
		ID: "d", Own: &b.own,
	}, b.link)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// landing is one import of two blocks, observed.
type observed struct {
	imp    *transfer.Import
	refs   []transfer.Ref
	hidden []float32
	err    error
	dones  int
}

var twoBlocks = []int32{1, 2, 3, 4, 5, 6, 7} // 4 tokens a block

func (b *bench) start(id uint64) *observed {
	o := &observed{refs: []transfer.Ref{b.memory.Allot(9), b.memory.Allot(5)}}
	o.imp = b.node.Import(id, source, transfer.Destination{Prompt: twoBlocks, Blocks: o.refs}, func(hidden []float32, err error) {
		o.hidden, o.err, o.dones = hidden, err, o.dones+1
	})
	return o
}

// frame is the honest frame of both pages of a layer.
func (o *observed) frame(id uint64, layer int) (transfer.Frame, []byte) {
	payload := make([]byte, 2*testShape.PageBytes)
	for i := range payload {
		payload[i] = byte(layer + i)
	}
	return transfer.Frame{
		ID: id, Epoch: source.Epoch, Layer: layer, Refs: slices.Clone(o.refs), Bytes: len(payload),
		CRC: crc32.Checksum(payload, transfer.Castagnoli),
	}, payload
}

func (b *bench) land(f transfer.Frame, payload []byte) {
	l := b.node.Land(b.link, f, make([]byte, 16))
	for l.Left() > 0 {
		l.Fill(func(room []byte) int {
			n := copy(room, payload)
			payload = payload[n:]
			return n
		})
	}
	l.Close()
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*transfer.Error](err)
	if !ok {
		return "untyped: " + err.Error()
	}
	return e.Reason()
}

func TestLyingFrames(t *testing.T) {
	tests := []struct {
		name   string
		lie    func(b *bench, f *transfer.Frame, payload []byte) []byte
		reason string
	}{
		{"epoch", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Epoch++; return p }, "epoch"},
		{"generation", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Refs[1].Generation--; return p }, "generation"},
		{"block was taken away", func(b *bench, _ *transfer.Frame, p []byte) []byte { b.memory.Allot(5); return p }, "generation"},
		{"another's block", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Refs[1].Block = 6; return p }, "bounds"},
		{"blocks in another order", func(_ *bench, f *transfer.Frame, p []byte) []byte { slices.Reverse(f.Refs); return p }, "bounds"},
		{"block outside the pool", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Refs[0].Block = 1 << 30; return p }, "bounds"},
		{"negative block", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Refs[0].Block = -1; return p }, "bounds"},
		{"layer", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Layer = testShape.Layers; return p }, "bounds"},
		{"index", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Index = 1; return p }, "bounds"},
		{"length", func(_ *bench, f *transfer.Frame, p []byte) []byte { f.Bytes++; return append(p, 0) }, "bounds"},
		{"no pages", func(_ *bench, f *transfer.Frame, _ []byte) []byte { f.Refs, f.Bytes = nil, 0; return nil }, "bounds"},
		{"payload", func(_ *bench, _ *transfer.Frame, p []byte) []byte { p[7] ^= 1; return p }, "checksum"},
		{"twice", func(b *bench, f *transfer.Frame, p []byte) []byte { b.land(*f, p); return p }, "coverage"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			o := b.start(1)
			f, payload := o.frame(1, 0)
			payload = tt.lie(b, &f, payload)
			b.land(f, payload)
			if reason(o.err) != tt.reason || o.dones != 1 {
				t.Errorf("done %d times with %v, want %s", o.dones, o.err, tt.reason)
			}
			if got := b.registry.Counter(measure.TransferRejects, tt.reason).Value(); got != 1 {
				t.Errorf("%v rejects counted", got)
			}
			if got := b.link.aborts(); !slices.Equal(got, []transfer.Reason{transfer.Reason(tt.reason)}) {
				t.Errorf("the peer was told %v", got)
			}
			if o.imp.State() != transfer.Released || b.node.Live() != 0 {
				t.Errorf("state %v, %d live", o.imp.State(), b.node.Live())
			}
		})
	}
}

// honest lands all layers and returns the account of them.
func (b *bench) honest(o *observed, id uint64, layers int) *transfer.Finish {
	m := &transfer.Finish{ID: id, Epoch: source.Epoch, Hidden: []float32{1, 2}}
	for layer := range layers {
		f, payload := o.frame(id, layer)
		m.Frames++
		m.Bytes += uint64(f.Bytes)
		m.Digest += transfer.FrameDigest(&f)
		b.land(f, payload)
	}
	return m
}

func TestLyingAccounts(t *testing.T) {
	tests := []struct {
		name   string
		layers int
		lie    func(m *transfer.Finish)
		reason string
	}{
		{"honest", 3, func(*transfer.Finish) {}, ""},
		{"a layer is missing", 2, func(*transfer.Finish) {}, "coverage"},
		{"nothing was sent", 0, func(*transfer.Finish) {}, "coverage"},
		{"fewer frames than came", 3, func(m *transfer.Finish) { m.Frames-- }, "coverage"},
		{"other bytes", 3, func(m *transfer.Finish) { m.Bytes++ }, "checksum"},
		{"other digest", 3, func(m *transfer.Finish) { m.Digest++ }, "checksum"},
		{"other epoch", 3, func(m *transfer.Finish) { m.Epoch-- }, "epoch"},
		{"short hidden state", 3, func(m *transfer.Finish) { m.Hidden = m.Hidden[:1] }, "bounds"},
		{"no hidden state", 3, func(m *transfer.Finish) { m.Hidden = nil }, "bounds"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			o := b.start(1)
			m := b.honest(o, 1, tt.layers)
			tt.lie(m)
			b.node.Handle(b.link, m)
			if reason(o.err) != tt.reason || o.dones != 1 {
				t.Errorf("done %d times with %v, want %q", o.dones, o.err, tt.reason)
			}
			if _, committed := sent[*transfer.Commit](b.link); committed != (tt.reason == "") {
				t.Errorf("commit sent: %v", committed)
			}
		})
	}
}

func TestMoreFramesThanCame(t *testing.T) {
	b := newBench(t)
	o := b.start(1)
	m := b.honest(o, 1, 3)
	m.Frames++
	b.node.Handle(b.link, m)
	if o.dones != 0 {
		t.Fatalf("done before the last frame: %v", o.err)
	}
	for range 8 { // renewals do not help what will never come
		b.clock.Advance(time.Second)
		b.node.Handle(b.link, &transfer.Renew{ID: 1})
		b.node.Tick()
	}
	if reason(o.err) != "coverage" {
		t.Errorf("ended with %v", o.err)
	}
}

func TestForeignLinkHasNoSay(t *testing.T) {
	b := newBench(t)
	o := b.start(1)
	stranger := &wire{peer: engine.Peer{ID: "x", Epoch: 1}}
	f, payload := o.frame(1, 0)
	l := b.node.Land(stranger, f, make([]byte, 8))
	for l.Left() > 0 {
		l.Fill(func(room []byte) int { n := copy(room, payload); payload = payload[n:]; return n })
	}
	l.Close()
	b.node.Handle(stranger, &transfer.Abort{ID: 1, Why: transfer.ReasonCanceled})
	b.node.Handle(stranger, &transfer.Finish{ID: 1})
	if o.dones != 0 || o.imp.State() != transfer.Reserved {
		t.Errorf("done %d times, state %v", o.dones, o.imp.State())
	}
	if got := b.registry.Counter(measure.TransferRejects, "unknown").Value(); got != 1 {
		t.Errorf("%v unknown frames counted", got)
	}
	if b.memory.Run(0, 9, 1)[5] != 0 {
		t.Error("a stranger wrote a page")
	}
	o.imp.Cancel()
}

func TestCancelFencesAPayloadUnderWay(t *testing.T) {
	b := newBench(t)
	o := b.start(1)
	f, payload := o.frame(1, 0)
	l := b.node.Land(b.link, f, make([]byte, 16))
	l.Fill(func(room []byte) int { return copy(room[:10], payload) })
	before := slices.Clone(b.memory.Run(0, 9, 1))
	o.imp.Cancel()
	o.imp.Cancel()
	if o.dones != 1 || reason(o.err) != "canceled" {
		t.Fatalf("done %d times with %v", o.dones, o.err)
	}
	for rest := payload[10:]; l.Left() > 0; {
		l.Fill(func(room []byte) int { n := copy(room, rest); rest = rest[n:]; return n })
	}
	l.Close()
	if !slices.Equal(b.memory.Run(0, 9, 1), before) || b.memory.Run(0, 5, 1)[0] != 0 {
		t.Error("a page was written after Cancel returned")
	}
	// What is still under way is no offence.
	b.land(o.frame(1, 1))
	if got := b.registry.Counter(measure.TransferRejects, "unknown").Value(); got != 0 {
		t.Errorf("%v late frames counted as unknown", got)
	}
}

func TestImportBounds(t *testing.T) {
	b := newBench(t)
	refs := func(n ...int32) []transfer.Ref {
		var out []transfer.Ref
		for _, k := range n {
			out = append(out, transfer.Ref{Block: k, Generation: 1})
		}
		return out
	}
	for name, dst := range map[string]transfer.Destination{
		"empty prompt":     {},
		"no blocks":        {Prompt: twoBlocks},
		"too few blocks":   {Prompt: twoBlocks, Blocks: refs(1)},
		"too many blocks":  {Prompt: twoBlocks, Blocks: refs(1, 2, 3)},
		"from inside":      {Prompt: twoBlocks, From: 3, Blocks: refs(1, 2)},
		"from behind":      {Prompt: twoBlocks, From: 8, Blocks: refs(1)},
		"negative from":    {Prompt: twoBlocks, From: -4, Blocks: refs(1, 2, 3)},
		"foreign block":    {Prompt: twoBlocks, Blocks: refs(1, int32(testShape.Blocks))},
		"negative block":   {Prompt: twoBlocks, Blocks: refs(1, -1)},
		"everything is in": {Prompt: twoBlocks, From: 8},
	} {
		var got error
		b.node.Import(1, source, dst, func(_ []float32, err error) { got = err })
		if reason(got) != "bounds" {
			t.Errorf("%s: %v", name, got)
		}
	}
	for id := range uint64(4) {
		b.start(id + 1)
	}
	if o := b.start(5); reason(o.err) != "busy" {
		t.Errorf("fifth import: %v", o.err)
	}
	b.node.Close()
	if o := b.start(6); reason(o.err) != "closed" || b.node.Live() != 0 {
		t.Errorf("after Close: %v, %d live", o.err, b.node.Live())
	}
}

func TestLostLink(t *testing.T) {
	b := newBench(t)
	o := b.start(1)
	b.node.Down(b.link, errors.New("reset"))
	if reason(o.err) != "connect" || o.dones != 1 {
		t.Errorf("done %d times with %v", o.dones, o.err)
	}
	b.link.broken = errors.New("lost")
	if o := b.start(2); reason(o.err) != "connect" || o.dones != 1 {
		t.Errorf("on a lost link: %v", o.err)
	}
}

func TestImportLease(t *testing.T) {
	b := newBench(t)
	o := b.start(1)
	advance := func(d time.Duration) {
		b.clock.Advance(d)
		b.node.Tick()
	}
	advance(4 * time.Second)
	b.node.Handle(b.link, &transfer.Renew{ID: 1})
	advance(4 * time.Second)
	f, payload := o.frame(1, 0)
	b.land(f, payload)
	advance(4 * time.Second)
	if o.dones != 0 {
		t.Fatalf("ended although renewed: %v", o.err)
	}
	advance(2 * time.Second)
	if reason(o.err) != "lease" || b.link.closed == nil {
		t.Errorf("ended with %v, link closed: %v", o.err, b.link.closed)
	}
	if got := b.link.aborts(); !slices.Equal(got, []transfer.Reason{transfer.ReasonLease}) {
		t.Errorf("the peer was told %v", got)
	}
}

func TestImportLife(t *testing.T) {
	b := newBench(t)
	o := b.start(1)
	for range 121 {
		b.clock.Advance(time.Second)
		b.node.Handle(b.link, &transfer.Renew{ID: 1})
		b.node.Tick()
	}
	if reason(o.err) != "timeout" {
		t.Errorf("ended with %v", o.err)
	}
}
