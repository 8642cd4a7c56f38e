package transfer_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

// dest is the worker that reserves, where the node under test is the source.
var dest = engine.Peer{ID: "d", Epoch: 9}

func reservation(id uint64) *transfer.Reserve {
	return &transfer.Reserve{
		ID: id, Source: 4, Dest: dest.ID, DestEpoch: dest.Epoch, Hash: testShape.Hash, Prompt: len(twoBlocks),
		Digest: transfer.DigestOf(twoBlocks), Lease: 5 * time.Second, Blocks: []transfer.Ref{{Block: 1, Generation: 1}, {Block: 2, Generation: 1}},
	}
}

func TestLegsMeet(t *testing.T) {
	other := engine.Peer{ID: "x", Epoch: 9}
	reborn := engine.Peer{ID: "d", Epoch: 10}
	tests := []struct {
		name   string
		lie    func(r *transfer.Reserve)
		peer   engine.Peer
		prompt []int32
		reason string
	}{
		{"well", nil, dest, twoBlocks, ""},
		{"other worker", nil, other, twoBlocks, "epoch"},
		{"other incarnation of the destination", nil, reborn, twoBlocks, "epoch"},
		{"other incarnation of the source", func(r *transfer.Reserve) { r.Source = 3 }, dest, twoBlocks, "epoch"},
		{"other prompt", nil, dest, []int32{1, 2, 3, 4, 5, 6, 8}, "digest"},
		{"longer prompt", nil, dest, append(slices.Clone(twoBlocks), 8), "digest"},
		{"other layout", func(r *transfer.Reserve) { r.Hash++ }, dest, twoBlocks, "layout"},
		{"too few blocks", func(r *transfer.Reserve) { r.Blocks = r.Blocks[:1] }, dest, twoBlocks, "bounds"},
		{"from inside a block", func(r *transfer.Reserve) { r.From = 2 }, dest, twoBlocks, "bounds"},
		{"everything is there", func(r *transfer.Reserve) { r.From, r.Blocks = 8, nil }, dest, twoBlocks, "bounds"},
	}
	for _, tt := range tests {
		for _, order := range []string{"reservation first", "leg first"} {
			t.Run(tt.name+"/"+order, func(t *testing.T) {
				b := newBench(t)
				b.link.peer = dest
				r := reservation(1)
				if tt.lie != nil {
					tt.lie(r)
				}
				var export *transfer.Export
				var err error
				ready := 0
				steps := []func(){
					func() { b.node.Handle(b.link, r) },
					func() {
						b.node.Meet(1, tt.peer, tt.prompt, func(e *transfer.Export, e2 error) { export, err, ready = e, e2, ready+1 })
					},
				}
				if order == "leg first" {
					slices.Reverse(steps)
				}
				for _, step := range steps {
					step()
				}
				if ready != 1 || reason(err) != tt.reason || (export == nil) != (tt.reason != "") {
					t.Fatalf("ready %d times: %v, %v; want reason %q", ready, export, err, tt.reason)
				}
				if tt.reason != "" {
					if got := b.link.aborts(); !slices.Equal(got, []transfer.Reason{transfer.Reason(tt.reason)}) {
						t.Errorf("the destination was told %v", got)
					}
					if b.node.Live() != 0 {
						t.Errorf("%d live", b.node.Live())
					}
				}
			})
		}
	}
}

func TestLegWaitsInVain(t *testing.T) {
	b := newBench(t)
	var err error
	b.node.Meet(1, dest, twoBlocks, func(_ *transfer.Export, e error) { err = e })
	b.clock.Advance(6 * time.Second)
	b.node.Tick()
	if reason(err) != "timeout" || b.node.Live() != 0 {
		t.Errorf("leg ended with %v, %d live", err, b.node.Live())
	}
	b.node.Handle(b.link, reservation(1)) // comes too late, and hears it at once
	b.node.Handle(b.link, reservation(2))
	b.clock.Advance(6 * time.Second)
	b.node.Tick()
	want := []transfer.Reason{transfer.ReasonTimeout, transfer.ReasonTimeout}
	if got := b.link.aborts(); !slices.Equal(got, want) || b.node.Live() != 0 {
		t.Errorf("the destination was told %v, %d live", got, b.node.Live())
	}
	b.clock.Advance(time.Minute)
	b.node.Tick()
	if b.node.Remembered() != 0 {
		t.Errorf("%d remembered for ever", b.node.Remembered())
	}
}

func TestExportEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() {
		_, err := b.node.Export(ctx, 1, dest, twoBlocks)
		errs <- err
	}()
	for b.node.Live() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-errs; reason(err) != "canceled" || !errors.Is(err, context.Canceled) {
		t.Errorf("Export: %v", err)
	}
	b.node.Handle(b.link, reservation(1))
	if got := b.link.aborts(); !slices.Equal(got, []transfer.Reason{transfer.ReasonCanceled}) {
		t.Errorf("the destination was told %v", got)
	}
	if _, err := b.node.Export(ctx, 2, dest, twoBlocks); reason(err) != "canceled" {
		t.Errorf("Export with a dead context: %v", err)
	}
}

func TestRefusedAndDeclined(t *testing.T) {
	for _, first := range []bool{true, false} {
		b := newBench(t)
		b.link.peer = dest
		if first {
			b.node.Refuse(1, transfer.ReasonBusy)
			b.node.Handle(b.link, reservation(1))
		} else {
			b.node.Handle(b.link, reservation(1))
			b.node.Refuse(1, transfer.ReasonBusy)
		}
		if got := b.link.aborts(); !slices.Equal(got, []transfer.Reason{transfer.ReasonBusy}) {
			t.Errorf("refused first %v: told %v", first, got)
		}
		var err error
		meet := func() { b.node.Meet(2, dest, twoBlocks, func(_ *transfer.Export, e error) { err = e }) }
		decline := func() { b.node.Handle(b.link, &transfer.Abort{ID: 2, Why: transfer.ReasonNotNeeded}) }
		if first {
			decline()
			meet()
		} else {
			meet()
			decline()
		}
		if reason(err) != "not_needed" || b.node.Live() != 0 {
			t.Errorf("declined first %v: leg ended with %v, %d live", first, err, b.node.Live())
		}
	}
}

// export brings the legs together and returns the source's side.
func (b *bench) export(t *testing.T) *transfer.Export {
	t.Helper()
	b.link.peer = dest
	b.node.Handle(b.link, reservation(1))
	e, err := b.node.Export(t.Context(), 1, dest, twoBlocks)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestPagesGoWhenComplete(t *testing.T) {
	b := newBench(t)
	e := b.export(t)
	table := []int32{7, 8, 30}
	released := 0
	e.Computed(0, 0, 3, table)
	if len(b.link.moves) != 0 {
		t.Fatal("a half page was sent")
	}
	e.Computed(0, 3, 5, table)
	e.Computed(0, 5, 7, table)
	for layer := 1; layer < testShape.Layers; layer++ {
		e.Computed(layer, 0, 7, table)
	}
	var pages int
	for _, m := range b.link.moves {
		if !m.Begin() {
			t.Fatal("a live move did not begin")
		}
		pages += len(m.Frame.Refs)
	}
	if len(b.link.moves) != 4 || pages != 6 {
		t.Errorf("%d frames of %d pages, want 4 of 6", len(b.link.moves), pages)
	}
	if got := b.link.moves[2].Pages; len(got) != 1 || len(got[0]) != 2*testShape.PageBytes {
		t.Errorf("adjacent pages were not joined: %d pieces", len(got))
	}
	e.Finish([]float32{1, 2}, func() { released++ })
	for i, m := range b.link.moves {
		if _, done := sent[*transfer.Finish](b.link); done || released != 0 {
			t.Fatalf("finished before frame %d was sent", i)
		}
		m.Sent()
	}
	account, ok := sent[*transfer.Finish](b.link)
	if !ok || released != 1 || account.Frames != 4 || account.Bytes != uint64(6*testShape.PageBytes) {
		t.Fatalf("released %d times, account %+v", released, account)
	}
	select {
	case <-e.Done():
		t.Fatal("over before the destination committed")
	default:
	}
	b.node.Handle(b.link, &transfer.Commit{ID: 1})
	if err := e.Wait(t.Context()); err != nil || b.node.Live() != 0 || e.State() != transfer.Released {
		t.Errorf("Wait: %v, %d live, %v", err, b.node.Live(), e.State())
	}
}

func TestExportFaults(t *testing.T) {
	table := []int32{7, 8}
	all := func(e *transfer.Export) {
		for layer := range testShape.Layers {
			e.Computed(layer, 0, 7, table)
		}
	}
	tests := []struct {
		name   string
		do     func(b *bench, e *transfer.Export, release func())
		reason string
		told   bool
	}{
		{"hole", func(_ *bench, e *transfer.Export, r func()) { e.Computed(0, 4, 7, table); e.Finish(nil, r) }, "bounds", true},
		{"beyond the prompt", func(_ *bench, e *transfer.Export, r func()) { e.Computed(0, 0, 8, table); e.Finish(nil, r) }, "bounds", true},
		{"short table", func(_ *bench, e *transfer.Export, r func()) { e.Computed(0, 0, 7, table[:1]); e.Finish(nil, r) }, "bounds", true},
		{"finished early", func(_ *bench, e *transfer.Export, r func()) { e.Computed(0, 0, 7, table); e.Finish(nil, r) }, "coverage", true},
		{"given up", func(_ *bench, e *transfer.Export, r func()) { all(e); e.Abort(errors.New("x"), r) }, "canceled", true},
		{"destination gave up", func(b *bench, e *transfer.Export, r func()) {
			b.node.Handle(b.link, &transfer.Abort{ID: 1, Why: transfer.ReasonCanceled})
			all(e)
			e.Finish(nil, r)
		}, "peer_abort", false},
		{"link lost", func(b *bench, e *transfer.Export, r func()) {
			all(e)
			b.node.Down(b.link, errors.New("reset"))
			e.Finish(nil, r)
		}, "connect", false},
		{"link refuses", func(b *bench, e *transfer.Export, r func()) {
			b.link.broken = errors.New("lost")
			all(e)
			e.Finish(nil, r)
		}, "connect", false},
		{"write failed", func(b *bench, e *transfer.Export, r func()) {
			all(e)
			e.Finish(nil, r)
			b.link.moves[0].Begin()
			b.link.moves[0].Failed(errors.New("broken pipe"))
		}, "connect", false},
		{"destination fell silent", func(b *bench, e *transfer.Export, r func()) {
			all(e)
			e.Finish(nil, r)
			b.clock.Advance(6 * time.Second)
			b.node.Tick()
		}, "lease", true},
		{"closed", func(b *bench, e *transfer.Export, r func()) { b.node.Close(); e.Finish(nil, r) }, "closed", true},
		{"commit before the end", func(b *bench, e *transfer.Export, r func()) {
			b.node.Handle(b.link, &transfer.Commit{ID: 1})
			e.Abort(errors.New("x"), r)
		}, "canceled", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			e := b.export(t)
			released := 0
			tt.do(b, e, func() { released++ })
			if err := e.Wait(t.Context()); reason(err) != tt.reason {
				t.Errorf("Wait: %v, want %s", err, tt.reason)
			}
			if released != 1 || e.State() != transfer.Released || b.node.Live() != 0 {
				t.Errorf("released %d times, state %v, %d live", released, e.State(), b.node.Live())
			}
			if got := len(b.link.aborts()) == 1; got != tt.told {
				t.Errorf("the destination was told: %v", got)
			}
			for _, m := range b.link.moves[min(1, len(b.link.moves)):] {
				if m.Begin() {
					t.Error("pages of a failed export may be read")
				}
			}
		})
	}
}

func TestAbortKeepsPagesUntilTheWriteEnds(t *testing.T) {
	b := newBench(t)
	e := b.export(t)
	e.Computed(0, 0, 7, []int32{7, 8})
	m := b.link.moves[0]
	m.Begin()
	released := 0
	e.Abort(errors.New("x"), func() { released++ })
	if released != 0 || e.State() != transfer.Aborting {
		t.Fatalf("released %d times while a write reads the pages, state %v", released, e.State())
	}
	e.Abort(errors.New("again"), func() { released++ })
	m.Sent()
	if released != 2 || e.State() != transfer.Released {
		t.Errorf("released %d times, state %v", released, e.State())
	}
}

func TestWaitIsBounded(t *testing.T) {
	b := newBench(t)
	e := b.export(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Wait(ctx); reason(err) != "timeout" {
		t.Errorf("Wait: %v", err)
	}
	e.Abort(nil, func() {})
}
