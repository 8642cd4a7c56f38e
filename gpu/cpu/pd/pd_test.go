package pd_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
	"github.com/yardmaster/yardmaster/gpu/cpu/pd"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
	"github.com/yardmaster/yardmaster/gpu/transfer"
	"github.com/yardmaster/yardmaster/gpu/transfer/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testLease = 20 * time.Second // a busy machine must not look like a dead peer
	kvBlocks  = 64
)

// worker is an engine with its transfer endpoint, as a worker process has them.
type worker struct {
	t        testing.TB
	id       fleet.WorkerID
	epoch    fleet.Epoch
	engine   *batch.Engine
	registry measure.Registry
	options  tcp.Options
	endpoint *tcp.Endpoint
	legs     *pd.Legs
}

// tuning is what a test changes about its workers.
type tuning struct {
	runner  batchtest.Runner
	options tcp.Options
	blocks  int
}

func newWorker(t testing.TB, id fleet.WorkerID, tune tuning) *worker {
	t.Helper()
	if tune.blocks == 0 {
		tune.blocks = kvBlocks
	}
	w := &worker{t: t, id: id, epoch: 1, options: tune.options}
	runner := tune.runner
	var err error
	w.engine, err = batch.New(&runner, batch.Options{KVBlocks: tune.blocks, TokenBudget: 48, MaxRunning: 8, Registry: &w.registry})
	if err != nil {
		t.Fatal(err)
	}
	w.options.Memory = pd.NewMemory(w.engine.Pool(), w.engine.Cache(), runner.Dim(), "test")
	w.options.Registry = &w.registry
	if w.options.Lease == 0 {
		w.options.Lease = testLease
	}
	w.listen()
	t.Cleanup(w.close)
	return w
}

// listen opens an endpoint for the worker's present epoch.
func (w *worker) listen() {
	w.t.Helper()
	w.options.ID, w.options.Own = w.id, new(engine.OwnEpoch)
	w.options.Own.Set(w.epoch)
	endpoint, err := tcp.Listen(w.t.Context(), "127.0.0.1:0", w.options)
	if err != nil {
		w.t.Fatal(err)
	}
	w.endpoint, w.legs = endpoint, pd.New(endpoint.Node())
}

func (w *worker) close() {
	if err := w.endpoint.Close(); err != nil && !errors.Is(err, context.Canceled) {
		w.t.Logf("close: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := w.engine.Close(ctx); err != nil {
		w.t.Errorf("%s: %v", w.id, err)
	}
	if free := w.engine.Cache().Counts().Free; free != w.engine.Pool().Blocks {
		w.t.Errorf("%s: %d of %d blocks free at the end", w.id, free, w.engine.Pool().Blocks)
	}
	if n := w.endpoint.Node().Live(); n != 0 {
		w.t.Errorf("%s: %d transfers left", w.id, n)
	}
	if q := w.registry.Gauge(measure.TransferQuarantined).Value(); q != 0 {
		w.t.Errorf("%s: %v bytes quarantined at the end", w.id, q)
	}
}

func (w *worker) peer() engine.Peer {
	return engine.Peer{ID: w.id, Epoch: w.epoch, Transfer: w.endpoint.Addr().String()}
}

// outcome is what a client would see, and how it came about.
type outcome struct {
	text    []int32
	kv      string
	prefill error
	err     error
}

// disaggregated runs both legs at once, as a gateway does. toP and toD are the
// peers as the gateway knows them.
func disaggregated(ctx context.Context, id uint64, p, d *worker, toP, toD engine.Peer, req batch.Request) outcome {
	var out outcome
	var wg sync.WaitGroup
	wg.Go(func() { out.prefill = prefill(ctx, id, p, toD, req.Prompt) })
	req.Import = d.legs.Import(id, toP)
	out.text, out.kv, out.err = generate(ctx, d.engine, &req)
	wg.Wait()
	return out
}

// prefill runs one prefill leg as a worker's front end does.
func prefill(ctx context.Context, id uint64, p *worker, toD engine.Peer, prompt []int32) error {
	exporter, err := p.legs.Export(ctx, id, toD, prompt)
	if err != nil {
		return err
	}
	stream, err := p.engine.Submit(ctx, &batch.Request{Prompt: prompt, Export: exporter})
	if err != nil {
		exporter.Abort(err, func() {})
		return err
	}
	if _, err := drain(ctx, stream); err != nil {
		return err
	}
	return exporter.(*pd.Exporter).Wait(ctx)
}

func generate(ctx context.Context, e *batch.Engine, req *batch.Request) (text []int32, kv string, err error) {
	stream, err := e.Submit(ctx, req)
	if err != nil {
		return nil, "", err
	}
	text, err = drain(ctx, stream)
	return text, stream.KV(), err
}

// drain takes a stream's events to the end, which the engine owes even when ctx
// is over.
func drain(ctx context.Context, stream *batch.Stream) (text []int32, failed error) {
	for {
		ev, err := stream.Recv(context.WithoutCancel(ctx))
		if errors.Is(err, io.EOF) {
			return text, failed
		}
		if ev.Token != batch.NoToken {
			text = append(text, ev.Token)
		}
		if ev.Err != nil {
			failed = ev.Err
		}
	}
}

func request(random *rand.Rand, tokens int) batch.Request {
	prompt := make([]int32, tokens)
	for i := range prompt {
		prompt[i] = int32(random.IntN(97))
	}
	return batch.Request{Prompt: prompt, MaxTokens: 5, Sampling: sample.Params{}}
}

func TestSameTextAsAggregated(t *testing.T) {
	p, d := newWorker(t, "p-0", tuning{}), newWorker(t, "d-0", tuning{})
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 50 {
		req := request(random, 17+random.IntN(300))
		want := batchtest.Text(&batchtest.Runner{}, &req)
		got := disaggregated(t.Context(), uint64(i)+1, p, d, p.peer(), d.peer(), req)
		if got.err != nil || got.prefill != nil || !slices.Equal(got.text, want) || got.kv != "moved" {
			t.Fatalf("prompt of %d: %+v, want %v", len(req.Prompt), got, want)
		}
	}
	if got := d.registry.Counter(measure.Transfers, "tcp", "committed").Value(); got != 50 {
		t.Errorf("%v transfers committed", got)
	}
}

// TestSharedPrefixes moves what the destination lacks, of prompts that begin
// alike: the source finds a part in its cache, the destination another.
func TestSharedPrefixes(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	p := newWorker(t, "p-0", tuning{})
	d := []*worker{newWorker(t, "d-0", tuning{}), newWorker(t, "d-1", tuning{})}
	system := request(random, 400).Prompt
	moved := 0
	for i := range 60 {
		req := request(random, 1+random.IntN(60))
		req.Prompt = slices.Concat(system[:random.IntN(len(system))], req.Prompt)
		to := d[random.IntN(2)]
		got := disaggregated(t.Context(), uint64(i)+1, p, to, p.peer(), to.peer(), req)
		if want := batchtest.Text(&batchtest.Runner{}, &req); got.err != nil || !slices.Equal(got.text, want) {
			t.Fatalf("prompt of %d: %+v, want %v", len(req.Prompt), got, want)
		}
		switch got.kv {
		case "moved":
			moved++
		case "local":
		default:
			t.Errorf("prompt of %d: %s", len(req.Prompt), got.kv)
		}
	}
	if moved < 20 {
		t.Errorf("only %d of 60 prompts were moved", moved)
	}
}

// reason is the word in a decode leg's "recomputed; word", or the whole.
func reason(kv string) string { return strings.TrimPrefix(kv, "recomputed; ") }

// TestMismatches pairs legs that do not belong together: the decode leg
// recomputes, and both say why.
func TestMismatches(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	p, d := newWorker(t, "p-0", tuning{}), newWorker(t, "d-0", tuning{})
	stale := p.peer()
	stale.Epoch = 9
	absent := p.peer()
	absent.Transfer = "127.0.0.1:1"
	reborn := d.peer()
	reborn.Epoch = 9
	for name, tt := range map[string]struct {
		toP, toD     engine.Peer
		decode, fill string // reasons
	}{
		"stale prefill worker":  {stale, d.peer(), "epoch", ""},
		"absent prefill worker": {absent, d.peer(), "connect", ""},
		"stale decode worker":   {p.peer(), reborn, "epoch", "epoch"},
	} {
		req := request(random, 100)
		if tt.fill == "" { // this leg would wait for a reservation that cannot come
			req.Import = d.legs.Import(1, tt.toP)
			text, kv, err := generate(t.Context(), d.engine, &req)
			check(t, name, req, outcome{text: text, kv: kv, err: err}, tt.decode)
			continue
		}
		got := disaggregated(t.Context(), 1, p, d, tt.toP, tt.toD, req)
		check(t, name, req, got, tt.decode)
		if why := transfer.AsError("", got.prefill).Reason(); why != tt.fill {
			t.Errorf("%s: prefill leg ended with %v", name, got.prefill)
		}
	}
}

func check(t *testing.T, name string, req batch.Request, got outcome, why string) {
	t.Helper()
	req.Import = nil
	if want := batchtest.Text(&batchtest.Runner{}, &req); got.err != nil || !slices.Equal(got.text, want) || reason(got.kv) != why {
		t.Errorf("%s: %+v, want text %v and reason %s", name, got, want, why)
	}
}

// TestNothingToMove gives the decode worker a prompt it has: the prefill leg is
// told at once.
func TestNothingToMove(t *testing.T) {
	p, d := newWorker(t, "p-0", tuning{}), newWorker(t, "d-0", tuning{})
	req := request(rand.New(rand.NewPCG(5, 6)), 100)
	if got := disaggregated(t.Context(), 1, p, d, p.peer(), d.peer(), req); got.kv != "moved" {
		t.Fatalf("%+v", got)
	}
	got := disaggregated(t.Context(), 2, p, d, p.peer(), d.peer(), req)
	check(t, "second time", req, got, "local")
	if why := transfer.AsError("", got.prefill).Reason(); why != "not_needed" {
		t.Errorf("prefill leg ended with %v", got.prefill)
	}
}

// TestRefusedLeg turns the prefill leg away: the decode leg falls back at once,
// whichever comes first.
func TestRefusedLeg(t *testing.T) {
	p, d := newWorker(t, "p-0", tuning{}), newWorker(t, "d-0", tuning{})
	random := rand.New(rand.NewPCG(7, 8))
	p.legs.Refuse(1, transfer.ReasonBusy)
	for id := range uint64(2) {
		if id == 1 {
			time.AfterFunc(10*time.Millisecond, func() { p.legs.Refuse(2, transfer.ReasonBusy) })
		}
		req := request(random, 100)
		req.Import = d.legs.Import(id+1, p.peer())
		text, kv, err := generate(t.Context(), d.engine, &req)
		check(t, "refused", req, outcome{text: text, kv: kv, err: err}, "busy")
	}
}
