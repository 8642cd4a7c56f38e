package batch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// fault is what goes wrong with a transfer.
type fault int

const (
	faultless  fault = iota
	refused          // it fails before a byte has moved
	breaks           // it fails half way, after pages were written
	hangs            // it does nothing until it is cancelled
	wrongWidth       // it reports success with a hidden state of another model
)

// lost is the reason of failed transfers.
type lost struct{}

func (lost) Error() string  { return "connection lost" }
func (lost) Reason() string { return "lost" }

// link moves KV between two engines in one process: the importer of a decode
// leg that runs the prefill leg itself. It writes pages as a transport does, and
// checks what the engines promise a transport.
type link struct {
	t           testing.TB
	from, to    *batch.Engine
	prompt      []int32
	fault       fault
	lateRelease time.Duration
	slowCancel  chan struct{} // Cancel waits for it, when not nil
	slowPrefill chan struct{} // so does the prefill leg

	mu        sync.Mutex
	started   chan struct{} // closed by Start
	dst       batch.Destination
	done      func([]float32, error)
	over      bool
	announced []int // per layer, the position up to which KV was announced
	finished  bool
	wg        sync.WaitGroup
}

func newLink(t testing.TB, from, to *batch.Engine, prompt []int32, f fault) *link {
	l := &link{t: t, from: from, to: to, prompt: prompt, fault: f, started: make(chan struct{})}
	t.Cleanup(l.wg.Wait)
	return l
}

func (l *link) Start(dst batch.Destination, done func([]float32, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dst, l.done = dst, done
	if dst.From%16 != 0 || len(dst.Blocks) != (len(dst.Prompt)+15)/16-dst.From/16 || len(dst.Gens) != len(dst.Blocks) {
		l.t.Errorf("destination %+v", dst)
	}
	close(l.started)
	if l.fault == refused {
		l.end(nil, lost{})
	} else if l.fault != hangs {
		l.wg.Go(l.prefill)
	}
}

// end reports the outcome, once. The caller holds mu.
func (l *link) end(hidden []float32, err error) {
	if !l.over && l.done != nil {
		l.over = true
		l.done(hidden, err)
	}
}

func (l *link) Cancel() {
	if l.slowCancel != nil {
		<-l.slowCancel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(nil, errors.New("cancelled"))
	l.over = true
}

// prefill runs the prefill leg.
func (l *link) prefill() {
	if l.slowPrefill != nil {
		<-l.slowPrefill
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l.announced = slices.Repeat([]int{l.dst.From}, l.from.Pool().Layout.Layers)
	s, err := l.from.Submit(ctx, &batch.Request{Prompt: l.prompt, Export: l})
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.end(nil, fmt.Errorf("prefill: %w", err))
		return
	}
	for {
		ev, err := s.Recv(ctx)
		if err != nil {
			l.t.Errorf("prefill leg: %v", err)
			return
		}
		if ev.Finish != "" {
			if (ev.Finish == batch.FinishPrefilled) != l.finished {
				l.t.Errorf("prefill leg ended with %+v, finished %v", ev, l.finished)
			}
			return
		}
	}
}

func (l *link) From() int { return l.dst.From }

func (l *link) Computed(layer, from, to int, blocks []kv.BlockID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from != l.announced[layer] || to <= from || to > len(l.prompt) {
		l.t.Errorf("layer %d announces [%d, %d) after %d", layer, from, to, l.announced[layer])
	}
	l.announced[layer] = to
	if l.over {
		return
	}
	if l.fault == breaks && (to > len(l.prompt)/2 || layer > 0) {
		l.end(nil, lost{})
		return
	}
	for b := from / 16; b*16 < to; b++ {
		target := l.dst.Blocks[b-l.dst.From/16]
		if g := l.to.Cache().Generation(target); g != l.dst.Gens[b-l.dst.From/16] {
			l.t.Errorf("block %d was handed to somebody else during a transfer", target)
		}
		copy(l.to.Pool().Page(layer, target), l.from.Pool().Page(layer, blocks[b]))
	}
}

func (l *link) Finish(hidden []float32, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished = true
	for layer, to := range l.announced {
		if to != len(l.prompt) {
			l.t.Errorf("layer %d is announced up to %d of %d", layer, to, len(l.prompt))
		}
	}
	if l.fault == wrongWidth {
		hidden = hidden[1:]
	}
	if l.fault == breaks {
		l.end(nil, lost{})
	}
	l.end(hidden, nil)
	l.release(release)
}

func (l *link) Abort(reason error, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(nil, reason)
	l.release(release)
}

func (l *link) release(release func()) {
	if l.lateRelease == 0 {
		release()
		return
	}
	l.wg.Go(func() {
		time.Sleep(l.lateRelease)
		release()
	})
}

func TestDisaggregatedTextEqualsReference(t *testing.T) {
	tests := []struct {
		name   string
		prompt []int32
		fault  fault
		kv     string
		reason string
	}{
		{"moved", prompt(1, 200), faultless, "moved", ""},
		{"whole blocks", prompt(2, 64), faultless, "moved", ""},
		{"one token over", prompt(3, 65), faultless, "moved", ""},
		{"short enough to compute", prompt(4, 16), faultless, "local", ""},
		{"refused", prompt(5, 100), refused, "recomputed; lost", "lost"},
		{"breaks half way", prompt(6, 150), breaks, "recomputed; lost", "lost"},
		{"wrong hidden state", prompt(7, 100), wrongWidth, "recomputed; failed", "failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &batchtest.Runner{Layers: 3, KVHeads: 2, DType: kv.F16}
			p := start(t, r, batch.Options{TokenBudget: 48})
			d := start(t, r, batch.Options{})
			req := &batch.Request{Prompt: tt.prompt, MaxTokens: 40}
			want := batchtest.Text(r, req)
			req.Import = newLink(t, p, d, tt.prompt, tt.fault)
			s := submit(t, d, req)
			if got, last := drain(t, s); !slices.Equal(got, want) {
				t.Errorf("text %v (%+v), want %v", got, last, want)
			}
			if s.KV() != tt.kv {
				t.Errorf("KV() = %q, want %q", s.KV(), tt.kv)
			}
			if n := counter(d, measure.PhaseTokens, "prefill"); (n == 0) != (tt.kv == "moved") {
				t.Errorf("%v prompt tokens were computed", n)
			}
			if tt.reason != "" && counter(d, measure.Recomputes, tt.reason) != 1 {
				t.Errorf("the recompute was not counted")
			}
			// Only verified pages may be found again.
			again := submit(t, d, &batch.Request{Prompt: tt.prompt, MaxTokens: 40})
			if got, _ := drain(t, again); !slices.Equal(got, want) {
				t.Errorf("text from the cache %v, want %v", got, want)
			}
			if got, want := again.Usage().Cached, (len(tt.prompt)-1)/16*16; got != want {
				t.Errorf("%d tokens are cached, want %d", got, want)
			}
		})
	}
}

func TestPartlyCachedPromptMovesTheRest(t *testing.T) {
	r := &batchtest.Runner{}
	p, d := start(t, r, batch.Options{}), start(t, r, batch.Options{})
	long := prompt(1, 100)
	drain(t, submit(t, d, &batch.Request{Prompt: long[:50], MaxTokens: 1}))
	drain(t, submit(t, p, &batch.Request{Prompt: long[:80], MaxTokens: 1}))
	req := &batch.Request{Prompt: long, MaxTokens: 20}
	want := batchtest.Text(r, req)
	l := newLink(t, p, d, long, faultless)
	req.Import = l
	s := submit(t, d, req)
	if got, _ := drain(t, s); !slices.Equal(got, want) {
		t.Errorf("text %v, want %v", got, want)
	}
	if l.dst.From != 48 || s.KV() != "moved" || s.Usage().Cached != 48 {
		t.Errorf("from %d, %q, usage %+v; want 48 tokens kept", l.dst.From, s.KV(), s.Usage())
	}
	// Now all but the last block is here.
	req.Import = newLink(t, p, d, long, faultless)
	s = submit(t, d, req)
	if got, _ := drain(t, s); !slices.Equal(got, want) || s.KV() != "local" {
		t.Errorf("text %v, %q, want %v, local", got, s.KV(), want)
	}
}

// The decoding request needs blocks again and again while the prefill leg, which
// came later, holds most of them and makes slow progress.
func TestPrefillLegsAreNotPutBack(t *testing.T) {
	r := &batchtest.Runner{}
	p := start(t, r, batch.Options{KVBlocks: 9, MaxRunning: 2, TokenBudget: 2})
	d := start(t, r, batch.Options{})
	plain := &batch.Request{Prompt: prompt(1, 8), MaxTokens: 60}
	leg := &batch.Request{Prompt: prompt(2, 90), MaxTokens: 5}
	wantPlain, wantLeg := batchtest.Text(r, plain), batchtest.Text(r, leg)
	beside := submit(t, p, plain)
	leg.Import = newLink(t, p, d, leg.Prompt, faultless)
	s := submit(t, d, leg)
	if got, _ := drain(t, s); !slices.Equal(got, wantLeg) || s.KV() != "moved" {
		t.Errorf("text %v, %q, want %v, moved", got, s.KV(), wantLeg)
	}
	if got, _ := drain(t, beside); !slices.Equal(got, wantPlain) {
		t.Errorf("text beside %v, want %v", got, wantPlain)
	}
}

// Each of two workers decodes what the other prefills. Were all their blocks
// reserved for each other's KV, neither could compute any.
func TestCrossedLegsDoNotStarve(t *testing.T) {
	r := &batchtest.Runner{}
	a := start(t, r, batch.Options{KVBlocks: 8})
	b := start(t, r, batch.Options{KVBlocks: 8})
	all := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 12 {
		p, d := a, b
		if i%2 == 0 {
			p, d = b, a
		}
		req := &batch.Request{Prompt: prompt(uint64(i), 50+i), MaxTokens: 10}
		want := batchtest.Text(r, req)
		l := newLink(t, p, d, req.Prompt, faultless)
		l.slowPrefill = all
		req.Import = l
		s := submit(t, d, req)
		wg.Go(func() {
			if got, _ := drain(t, s); !slices.Equal(got, want) || s.KV() != "moved" {
				t.Errorf("text %v, %q, want %v, moved", got, s.KV(), want)
			}
		})
	}
	close(all)
	wg.Wait()
}

func TestImportStartsDuringAStep(t *testing.T) {
	gate, inStep := make(chan struct{}), make(chan struct{}, 100)
	r := &batchtest.Runner{OnForward: func([]batch.Span) { inStep <- struct{}{}; <-gate }}
	d := start(t, r, batch.Options{})
	busy := submit(t, d, &batch.Request{Prompt: prompt(1, 20), MaxTokens: 2})
	<-inStep
	l := newLink(t, nil, d, prompt(2, 40), refused)
	s := submit(t, d, &batch.Request{Prompt: prompt(2, 40), MaxTokens: 1, Import: l})
	select {
	case <-l.started:
	default:
		t.Error("Submit returned before the import was started")
	}
	close(gate)
	drain(t, s)
	drain(t, busy)
}

func TestImportWaitsForBlocks(t *testing.T) {
	r := &batchtest.Runner{}
	gate := make(chan struct{})
	blocked := &batchtest.Runner{OnForward: func([]batch.Span) { <-gate }}
	p, d := start(t, r, batch.Options{}), start(t, blocked, batch.Options{KVBlocks: 8})
	first := submit(t, d, &batch.Request{Prompt: prompt(1, 100), MaxTokens: 1})
	for d.Cache().Counts().Held == 0 {
		time.Sleep(time.Millisecond)
	}
	req := &batch.Request{Prompt: prompt(2, 100), MaxTokens: 5}
	want := batchtest.Text(r, req)
	l := newLink(t, p, d, req.Prompt, faultless)
	req.Import = l
	s := submit(t, d, req)
	select {
	case <-l.started:
		t.Error("started without blocks")
	default:
	}
	close(gate)
	if got, _ := drain(t, s); !slices.Equal(got, want) || s.KV() != "moved" {
		t.Errorf("text %v, %q, want %v, moved", got, s.KV(), want)
	}
	drain(t, first)
}

func TestCancelFencesBeforeItFrees(t *testing.T) {
	d := start(t, &batchtest.Runner{}, batch.Options{})
	l := newLink(t, nil, d, prompt(1, 40), hangs)
	l.slowCancel = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	s, err := d.Submit(ctx, &batch.Request{Prompt: l.prompt, MaxTokens: 1, Import: l})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	// Another request goes through while the fence is awaited.
	drain(t, submit(t, d, &batch.Request{Prompt: prompt(9, 10), MaxTokens: 3}))
	if held := d.Cache().Counts().Held; held != 3 {
		t.Errorf("%d blocks are held, want the 3 that may still be written to", held)
	}
	close(l.slowCancel)
	if _, last := drain(t, s); last.Finish != batch.FinishAbort {
		t.Errorf("last event %+v", last)
	}
	checkEmpty(t, d)
}

func TestImportTimeout(t *testing.T) {
	r := &batchtest.Runner{}
	c := clock.NewVirtual(time.Unix(0, 0))
	d := start(t, r, batch.Options{Clock: c, ImportTimeout: time.Minute})
	req := &batch.Request{Prompt: prompt(1, 40), MaxTokens: 5}
	want := batchtest.Text(r, req)
	req.Import = newLink(t, nil, d, req.Prompt, hangs)
	s := submit(t, d, req)
	for {
		if _, armed := c.Next(); armed {
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.Advance(time.Minute)
	if got, _ := drain(t, s); !slices.Equal(got, want) || s.KV() != "recomputed; timeout" {
		t.Errorf("text %v, %q, want %v", got, s.KV(), want)
	}
}

func TestUnstartedLegsAreTold(t *testing.T) {
	gate := make(chan struct{})
	d := start(t, &batchtest.Runner{OnForward: func([]batch.Span) { <-gate }}, batch.Options{KVBlocks: 4, MaxRunning: 1})
	first := submit(t, d, &batch.Request{Prompt: prompt(1, 60), MaxTokens: 1})
	for d.Cache().Counts().Held == 0 {
		time.Sleep(time.Millisecond)
	}
	in := newLink(t, nil, d, prompt(2, 60), hangs)
	waiting := submit(t, d, &batch.Request{Prompt: in.prompt, MaxTokens: 1, Import: in})
	out := newLink(t, d, nil, prompt(3, 60), faultless)
	exporting := submit(t, d, &batch.Request{Prompt: out.prompt, Export: out})
	waiting.Close()
	exporting.Close()
	close(gate)
	drain(t, first)
	for _, s := range []*batch.Stream{waiting, exporting} {
		if _, last := drain(t, s); last.Finish != batch.FinishAbort {
			t.Errorf("last event %+v", last)
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if err := d.Close(ctx); err != nil { // Cancel runs aside
		t.Fatal(err)
	}
	if !in.over {
		t.Error("the importer was not told")
	}
}

func TestCloseReportsUnreleasedBlocks(t *testing.T) {
	c := clock.NewVirtual(time.Unix(0, 0))
	e, err := batch.New(&batchtest.Runner{}, batch.Options{KVBlocks: 8, Clock: c})
	if err != nil {
		t.Fatal(err)
	}
	s := submit(t, e, &batch.Request{Prompt: prompt(1, 40), Export: silent{}})
	for e.Stats().Running == 0 {
		time.Sleep(time.Millisecond)
	}
	closed := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	go func() { closed <- e.Close(ctx) }()
	for {
		if _, armed := c.Next(); armed {
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.Advance(time.Minute)
	if err := <-closed; !errors.Is(err, batch.ErrUnreleased) {
		t.Errorf("Close = %v, want ErrUnreleased", err)
	}
	drain(t, s)
	if held := e.Cache().Counts().Held; held == 0 {
		t.Error("blocks were freed that an exporter may still read")
	}
}

// silent is an exporter that breaks its promise to release.
type silent struct{}

func (silent) From() int                            { return 0 }
func (silent) Computed(int, int, int, []kv.BlockID) {}
func (silent) Finish([]float32, func())             {}
func (silent) Abort(error, func())                  {}

// order is one request of the property test.
type order struct {
	engine      *batch.Engine // of the decode worker
	req         *batch.Request
	cancelAfter int // events; -1 never
	readerPause time.Duration
	link        *link
}

// TestEverythingAtOnce runs random mixtures of plain requests, decode legs with
// every fault, cancellations, slow readers and late releases on two small
// engines. Every text is the reference's or, cancelled, a prefix of it, and
// nothing is left behind.
func TestEverythingAtOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &batchtest.Runner{}
		opt := batch.Options{
			KVBlocks:     rapid.IntRange(12, 24).Draw(rt, "blocks"),
			MaxRunning:   rapid.IntRange(1, 5).Draw(rt, "running"),
			TokenBudget:  rapid.IntRange(5, 40).Draw(rt, "budget"),
			StreamBuffer: rapid.IntRange(1, 8).Draw(rt, "buffer"),
		}
		p, err := batch.New(r, opt)
		if err != nil {
			rt.Fatal(err)
		}
		d, err := batch.New(r, opt)
		if err != nil {
			rt.Fatal(err)
		}
		orders := make([]order, rapid.IntRange(1, 12).Draw(rt, "requests"))
		for i := range orders {
			orders[i] = drawOrder(rt, t, p, d)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var wg sync.WaitGroup
		for i := range orders {
			wg.Go(func() { serve(ctx, t, r, &orders[i]) })
		}
		wg.Wait()
		for _, e := range []*batch.Engine{d, p} {
			if err := e.Close(ctx); err != nil {
				rt.Fatal(err)
			}
			checkEmpty(t, e)
		}
		for _, o := range orders {
			if o.link != nil {
				o.link.wg.Wait()
			}
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

func drawOrder(rt *rapid.T, t testing.TB, p, d *batch.Engine) order {
	shared := prompt(0, rapid.SampledFrom([]int{0, 16, 40}).Draw(rt, "shared"))
	own := prompt(rapid.Uint64Range(1, 3).Draw(rt, "own"), rapid.IntRange(1, 60).Draw(rt, "length"))
	o := order{
		engine:      d,
		req:         &batch.Request{Prompt: append(shared, own...), MaxTokens: rapid.IntRange(1, 50).Draw(rt, "output"), EOS: []int32{1}},
		cancelAfter: rapid.SampledFrom([]int{-1, -1, -1, 0, 1, 7}).Draw(rt, "cancel"),
		readerPause: rapid.SampledFrom([]time.Duration{0, 0, 0, 200 * time.Microsecond}).Draw(rt, "pause"),
	}
	o.req.Sampling.Temperature = rapid.SampledFrom([]float32{0, 1}).Draw(rt, "temperature")
	if rapid.Bool().Draw(rt, "crossed") {
		p, d = d, p
		o.engine = d
	}
	if rapid.Bool().Draw(rt, "disaggregated") {
		f := rapid.SampledFrom([]fault{faultless, faultless, refused, breaks, hangs, wrongWidth}).Draw(rt, "fault")
		if f == hangs {
			o.cancelAfter = 0 // or it waits for the import timeout
		}
		o.link = newLink(t, p, d, o.req.Prompt, f)
		o.link.lateRelease = rapid.SampledFrom([]time.Duration{0, time.Millisecond}).Draw(rt, "late")
		o.req.Import = o.link
	}
	return o
}

// serve runs one order to its end.
func serve(ctx context.Context, t testing.TB, r batch.Runner, o *order) {
	reference := *o.req
	want := batchtest.Text(r, &reference)
	mine, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := o.engine.Submit(mine, o.req)
	if err != nil {
		t.Errorf("Submit: %v", err)
		return
	}
	var got []int32
	for {
		if len(got) == o.cancelAfter {
			cancel()
		}
		time.Sleep(o.readerPause)
		ev, err := s.Recv(ctx)
		if err != nil {
			t.Errorf("a stream did not end: %v", err)
			return
		}
		if ev.Token != batch.NoToken {
			got = append(got, ev.Token)
		}
		if ev.Finish == "" {
			continue
		}
		complete := slices.Equal(got, want)
		prefix := len(got) <= len(want) && slices.Equal(got, want[:len(got)])
		if aborted := ev.Finish == batch.FinishAbort && o.cancelAfter >= 0; !prefix || !complete && !aborted {
			t.Errorf("text %v (%+v, KV %q), want %v", got, ev, s.KV(), want)
		}
		return
	}
}
