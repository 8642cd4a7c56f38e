package batch_test

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
	"github.com/yardmaster/yardmaster/gpu/cpu/sample"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests.
const patience = 30 * time.Second

func start(t testing.TB, r batch.Runner, opt batch.Options) *batch.Engine {
	t.Helper()
	if opt.KVBlocks == 0 {
		opt.KVBlocks = 64
	}
	e, err := batch.New(r, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		checkEmpty(t, e)
	})
	return e
}

// checkEmpty proves that nothing is left of any request.
func checkEmpty(t testing.TB, e *batch.Engine) {
	t.Helper()
	if c := e.Cache().Counts(); c.Held != 0 || c.Free != c.Total {
		t.Errorf("blocks left behind: %+v", c)
	}
	if s := e.Stats(); s.Running != 0 || s.Waiting != 0 {
		t.Errorf("requests left behind: %+v", s)
	}
	reg := e.Options().Registry
	for _, d := range []measure.Desc{measure.EngineRunning, measure.EngineWaiting, measure.KVBlocksUsed} {
		if v := reg.Gauge(d).Value(); v != 0 {
			t.Errorf("%s = %v", d.Name, v)
		}
	}
}

// drain reads a stream to its end.
func drain(t testing.TB, s *batch.Stream) (tokens []int32, last batch.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		ev, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			return tokens, last
		}
		if err != nil {
			t.Fatalf("stream: %v", err)
		}
		if ev.Token != batch.NoToken {
			tokens = append(tokens, ev.Token)
		}
		last = ev
	}
}

func submit(t testing.TB, e *batch.Engine, req *batch.Request) *batch.Stream {
	t.Helper()
	s, err := e.Submit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// prompt is n tokens that depend on seed.
func prompt(seed uint64, n int) []int32 {
	rnd := rand.New(rand.NewPCG(seed, 0))
	out := make([]int32, n)
	for i := range out {
		out[i] = rnd.Int32N(97)
	}
	return out
}

func counter(e *batch.Engine, d measure.Desc, labels ...string) float64 {
	return e.Options().Registry.Counter(d, labels...).Value()
}

func TestTextEqualsReference(t *testing.T) {
	r := &batchtest.Runner{}
	tests := []struct {
		name string
		req  batch.Request
	}{
		{"greedy", batch.Request{Prompt: prompt(1, 40), MaxTokens: 30}},
		{"one token prompt", batch.Request{Prompt: prompt(2, 1), MaxTokens: 5}},
		{"whole blocks", batch.Request{Prompt: prompt(3, 64), MaxTokens: 16}},
		{"longer than a step", batch.Request{Prompt: prompt(4, 300), MaxTokens: 3}},
		{"sampled", batch.Request{Prompt: prompt(5, 20), MaxTokens: 40, Sampling: sample.Params{Temperature: 1, TopP: .9, Seed: 7}}},
		{"stop token", batch.Request{Prompt: prompt(6, 20), MaxTokens: 200, EOS: []int32{3, 5, 9, 11, 20, 40}}},
		{"min tokens", batch.Request{Prompt: prompt(6, 20), MaxTokens: 200, MinTokens: 60, EOS: []int32{3, 5, 9, 11, 20, 40}}},
		{"ignore eos", batch.Request{Prompt: prompt(6, 20), MaxTokens: 100, EOS: []int32{3, 5, 9, 11, 20, 40}, IgnoreEOS: true}},
	}
	e := start(t, r, batch.Options{TokenBudget: 48})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := batchtest.Text(r, &tt.req)
			for _, again := range []bool{false, true} {
				s := submit(t, e, &tt.req)
				got, last := drain(t, s)
				if !slices.Equal(got, want) {
					t.Errorf("text %v, want %v (cached: %v)", got, want, again)
				}
				wantFinish := batch.FinishLength
				if len(want) < tt.req.MaxTokens {
					wantFinish = batch.FinishStop
				}
				if last.Finish != wantFinish {
					t.Errorf("finish %q, want %q", last.Finish, wantFinish)
				}
				u := s.Usage()
				wantCached := 0
				if again {
					wantCached = (len(tt.req.Prompt) - 1) / 16 * 16
				}
				if u.Prompt != len(tt.req.Prompt) || u.Completion != len(want) || u.Cached < wantCached || again && u.Cached != wantCached {
					t.Errorf("usage %+v, want cached %d", u, wantCached)
				}
			}
		})
	}
}

func TestNeighboursDoNotChangeText(t *testing.T) {
	all := make(chan struct{})
	r := &batchtest.Runner{}
	gated := &batchtest.Runner{OnForward: func([]batch.Span) { <-all }}
	e := start(t, gated, batch.Options{KVBlocks: 20, MaxRunning: 6, TokenBudget: 32}) // too few blocks: they preempt each other
	var wg sync.WaitGroup
	for i := range 24 {
		req := &batch.Request{
			Prompt: append(prompt(0, 32), prompt(uint64(i%5), 1+13*(i%5))...), MaxTokens: 60,
			Sampling: sample.Params{Temperature: float32(i % 2), Seed: uint64(i)},
		}
		want := batchtest.Text(r, req)
		s := submit(t, e, req)
		wg.Go(func() {
			if got, last := drain(t, s); !slices.Equal(got, want) {
				t.Errorf("request %d: text %v (%+v), want %v", i, got, last, want)
			}
		})
	}
	close(all)
	wg.Wait()
	if counter(e, measure.Preemptions) == 0 {
		t.Error("no preemption: the test tests less than it should")
	}
	if counter(e, measure.PrefixHits) == 0 {
		t.Error("no prefix hit")
	}
}

func TestSubmitRefuses(t *testing.T) {
	e := start(t, &batchtest.Runner{}, batch.Options{KVBlocks: 4, MaxRunning: 1, MaxWaiting: 1})
	tests := []struct {
		name string
		req  batch.Request
		want error
	}{
		{"empty", batch.Request{}, batch.ErrRequest},
		{"foreign token", batch.Request{Prompt: []int32{97}}, batch.ErrRequest},
		{"negative token", batch.Request{Prompt: []int32{-1}}, batch.ErrRequest},
		{"min over max", batch.Request{Prompt: []int32{1}, MaxTokens: 2, MinTokens: 3}, batch.ErrRequest},
		{"prompt fills the context", batch.Request{Prompt: prompt(1, 64)}, batch.ErrTooLong},
		{"output too long", batch.Request{Prompt: prompt(1, 60), MaxTokens: 5}, batch.ErrTooLong},
		{"overflowing output", batch.Request{Prompt: prompt(1, 60), MaxTokens: 1<<63 - 1}, batch.ErrTooLong},
		{"bad sampling", batch.Request{Prompt: []int32{1}, Sampling: sample.Params{TopP: 2}}, sample.ErrParams},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := e.Submit(t.Context(), &tt.req); !errors.Is(err, tt.want) {
				t.Errorf("Submit = %v, want %v", err, tt.want)
			}
		})
	}
	_, err := e.Submit(t.Context(), &batch.Request{Prompt: prompt(1, 60), MaxTokens: 5})
	if tooLong, ok := errors.AsType[*batch.TooLongError](err); !ok || tooLong.Prompt != 60 || tooLong.Output != 5 || tooLong.Limit != 64 {
		t.Errorf("%#v does not carry the numbers", err)
	}
}

func TestBusy(t *testing.T) {
	gate := make(chan struct{})
	r := &batchtest.Runner{OnForward: func([]batch.Span) { <-gate }}
	e := start(t, r, batch.Options{MaxRunning: 1, MaxWaiting: 2})
	var streams []*batch.Stream
	for range 3 {
		streams = append(streams, submit(t, e, &batch.Request{Prompt: prompt(1, 5), MaxTokens: 1}))
	}
	if _, err := e.Submit(t.Context(), &batch.Request{Prompt: prompt(1, 5), MaxTokens: 1}); !errors.Is(err, batch.ErrBusy) {
		t.Errorf("Submit = %v, want ErrBusy", err)
	}
	close(gate)
	for _, s := range streams {
		drain(t, s)
	}
	drain(t, submit(t, e, &batch.Request{Prompt: prompt(1, 5), MaxTokens: 1}))
}

func TestCancelFreesBlocks(t *testing.T) {
	e := start(t, &batchtest.Runner{TokenDelay: time.Millisecond}, batch.Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := e.Submit(ctx, &batch.Request{Prompt: prompt(1, 20), MaxTokens: 900})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := errors.New("client left")
	cancel(left)
	if _, last := drain(t, s); last.Finish != batch.FinishAbort || !errors.Is(last.Err, left) {
		t.Errorf("last event %+v", last)
	}
	checkEmpty(t, e)
}

func TestSlowReaderPausesOnlyItself(t *testing.T) {
	tests := []struct {
		name string
		opt  batch.Options
	}{
		{"others need its place", batch.Options{StreamBuffer: 4, MaxRunning: 1}},
		{"others need its blocks", batch.Options{StreamBuffer: 4, KVBlocks: 16}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &batchtest.Runner{}
			e := start(t, r, tt.opt)
			slowReq := &batch.Request{Prompt: prompt(1, 40), MaxTokens: 100}
			slow := submit(t, e, slowReq)
			for slow.Usage().Completion < 4 {
				time.Sleep(time.Millisecond)
			}
			for i := range 10 {
				req := &batch.Request{Prompt: prompt(uint64(100+i), 200), MaxTokens: 50}
				want := batchtest.Text(r, req)
				if got, _ := drain(t, submit(t, e, req)); !slices.Equal(got, want) {
					t.Fatalf("text %v, want %v", got, want)
				}
			}
			if u := slow.Usage(); u.Completion > 4 {
				t.Errorf("%d tokens were generated for a reader that took none", u.Completion)
			}
			if got, _ := drain(t, slow); !slices.Equal(got, batchtest.Text(r, slowReq)) {
				t.Errorf("slow reader's text %v", got)
			}
		})
	}
}

func TestTheStalledArePutBackFirst(t *testing.T) {
	r := &batchtest.Runner{}
	e := start(t, r, batch.Options{KVBlocks: 11, StreamBuffer: 64})
	stalled := submit(t, e, &batch.Request{Prompt: prompt(1, 40), MaxTokens: 100})
	for stalled.Usage().Completion < 64 { // 7 blocks
		time.Sleep(time.Millisecond)
	}
	drain(t, submit(t, e, &batch.Request{Prompt: prompt(2, 20), MaxTokens: 60})) // grows to 5
	if n := counter(e, measure.Preemptions); n != 1 {
		t.Errorf("%v preemptions, want that of the stalled one", n)
	}
	drain(t, stalled)
}

func TestCloseAborts(t *testing.T) {
	e := start(t, &batchtest.Runner{TokenDelay: time.Millisecond}, batch.Options{MaxRunning: 2})
	var streams []*batch.Stream
	for i := range 5 {
		streams = append(streams, submit(t, e, &batch.Request{Prompt: prompt(uint64(i), 20), MaxTokens: 900}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		for {
			ev, err := s.Recv(t.Context())
			if err != nil {
				t.Fatalf("no last event: %v", err)
			}
			if ev.Finish != "" {
				if ev.Finish != batch.FinishAbort || !errors.Is(ev.Err, batch.ErrClosed) {
					t.Errorf("last event %+v", ev)
				}
				break
			}
		}
	}
	if _, err := e.Submit(t.Context(), &batch.Request{Prompt: []int32{1}}); !errors.Is(err, batch.ErrClosed) {
		t.Errorf("Submit after Close = %v", err)
	}
}

func TestCloseDrains(t *testing.T) {
	r := &batchtest.Runner{}
	e := start(t, r, batch.Options{MaxRunning: 2})
	req := &batch.Request{Prompt: prompt(1, 20), MaxTokens: 50}
	s := submit(t, e, req)
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, _ := drain(t, s); !slices.Equal(got, batchtest.Text(r, req)) {
		t.Errorf("text %v", got)
	}
}

func TestDecodeGoesFirst(t *testing.T) {
	var mu sync.Mutex
	var steps [][]int // tokens of each span of each step
	both := make(chan struct{})
	r := &batchtest.Runner{OnForward: func(spans []batch.Span) {
		if spans[0].Start > 0 {
			<-both
		}
		mu.Lock()
		defer mu.Unlock()
		var step []int
		for _, s := range spans {
			step = append(step, len(s.Tokens))
		}
		steps = append(steps, step)
	}}
	e := start(t, r, batch.Options{MaxRunning: 4, TokenBudget: 40, StreamBuffer: 600})
	first := submit(t, e, &batch.Request{Prompt: prompt(1, 10), MaxTokens: 500})
	if _, err := first.Recv(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := submit(t, e, &batch.Request{Prompt: prompt(2, 200), MaxTokens: 1})
	close(both)
	drain(t, second)
	first.Close()
	drain(t, first)
	mu.Lock()
	defer mu.Unlock()
	mixed := 0
	for _, step := range steps {
		total := 0
		for _, n := range step {
			total += n
		}
		if total > 40 {
			t.Errorf("a step of %v tokens", step)
		}
		if len(step) == 2 {
			mixed++
			if step[0] != 1 || step[1] != 32 && step[1] != 200-6*32 {
				t.Errorf("a mixed step of %v, want the generated token and whole blocks", step)
			}
		}
	}
	if mixed == 0 {
		t.Error("the prompt was not computed beside the stream")
	}
}

func TestOptionsReportEverything(t *testing.T) {
	_, err := batch.New(&batchtest.Runner{}, batch.Options{
		BlockTokens: -1, MaxRunning: -1, TokenBudget: -5, MaxWaiting: -1, StreamBuffer: -1, ImportTimeout: -1,
	})
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 8 || !errors.Is(err, batch.ErrOptions) {
		t.Errorf("New = %v, want 8 faults", err)
	}
	_, err = batch.New(&batchtest.Runner{}, batch.Options{KVBlocks: 4, MaxRunning: 8, TokenBudget: 4})
	if !errors.Is(err, batch.ErrOptions) {
		t.Errorf("New = %v with a budget that starves running requests", err)
	}
	_, err = batch.New(&batchtest.Runner{}, batch.Options{KVBlocks: 1 << 60})
	if !errors.Is(err, batch.ErrOptions) {
		t.Errorf("New = %v with more memory than there is", err)
	}
}

func TestLogProbsReachTheStream(t *testing.T) {
	e := start(t, &batchtest.Runner{}, batch.Options{})
	s := submit(t, e, &batch.Request{
		Prompt: prompt(1, 5), MaxTokens: 3, Sampling: sample.Params{LogProbs: true, TopLogProbs: 2},
	})
	for range 3 {
		ev, err := s.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(ev.Top) != 2 || ev.Top[0].Token != ev.Token || ev.Top[0].LogProb != ev.LogProb || ev.LogProb >= 0 {
			t.Errorf("event %+v", ev)
		}
	}
}

// broken is a model whose logits are not numbers.
type broken struct{ *batchtest.Runner }

func (broken) Logits(_ []float32, _ int, logits []float32) {
	for i := range logits {
		logits[i] = float32(math.NaN())
	}
}

func TestBrokenModelIsAnError(t *testing.T) {
	e := start(t, broken{&batchtest.Runner{}}, batch.Options{})
	got, last := drain(t, submit(t, e, &batch.Request{Prompt: prompt(1, 5), MaxTokens: 3}))
	if len(got) != 0 || last.Finish != batch.FinishError || !errors.Is(last.Err, sample.ErrNoToken) {
		t.Errorf("tokens %v, last event %+v", got, last)
	}
	checkEmpty(t, e)
}

func TestStats(t *testing.T) {
	c := clock.NewVirtual(time.Unix(0, 0))
	gate := make(chan struct{})
	r := &batchtest.Runner{OnForward: func(spans []batch.Span) {
		<-gate
		c.Advance(time.Duration(len(spans[0].Tokens)) * time.Millisecond)
	}}
	e := start(t, r, batch.Options{Clock: c, KVBlocks: 16, MaxRunning: 1})
	a := submit(t, e, &batch.Request{Prompt: prompt(1, 100), MaxTokens: 3})
	b := submit(t, e, &batch.Request{Prompt: prompt(2, 100), MaxTokens: 3})
	for e.Stats().Running == 0 {
		time.Sleep(time.Millisecond)
	}
	if s := e.Stats(); s.Running != 1 || s.Waiting != 1 || s.BlocksFree != 16-7 || s.BlocksTotal != 16 || s.PrefillTokensPerSecond != 0 {
		t.Errorf("at first: %+v", s)
	}
	close(gate)
	drain(t, a)
	drain(t, b)
	s := e.Stats()
	if math.Abs(s.PrefillTokensPerSecond-1000) > 1 || s.DecodeStep != time.Millisecond {
		t.Errorf("rates %+v, want 1000 tokens/s and 1ms", s)
	}
	if busy := counter(e, measure.PhaseBusy, "prefill"); math.Abs(busy-.2) > 1e-9 {
		t.Errorf("prefill was busy for %v s, want 0.2", busy)
	}
	if n := counter(e, measure.PhaseTokens, "decode"); n != 4 {
		t.Errorf("%v decoded tokens, want 4", n)
	}
}

// Nothing of a request may hang on whether somebody reads KV events.
func TestKVEventsMirrorTheCache(t *testing.T) {
	e := start(t, &batchtest.Runner{}, batch.Options{KVBlocks: 12})
	sub := e.Cache().Subscribe(0)
	defer sub.Close()
	for i := range 10 {
		drain(t, submit(t, e, &batch.Request{Prompt: prompt(uint64(i), 40), MaxTokens: 30}))
	}
	found := map[kv.Hash]bool{}
	last, dump := e.Cache().Dump()
	for seen := uint64(0); seen < last; {
		events, gap, err := sub.Next(t.Context(), nil)
		if err != nil || gap {
			t.Fatalf("gap %v, error %v", gap, err)
		}
		for _, ev := range events {
			seen = ev.Seq
			for _, h := range ev.Hashes {
				if ev.Kind == kv.Stored {
					found[h] = true
				} else {
					delete(found, h)
				}
			}
		}
	}
	for _, ev := range dump {
		if !found[ev.Hashes[0]] {
			t.Errorf("%v is cached and was never announced", ev)
		}
	}
	if len(found) != len(dump) || len(dump) == 0 {
		t.Errorf("%d blocks announced, %d cached", len(found), len(dump))
	}
}
