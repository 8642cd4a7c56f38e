package bench

import (
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
)

func TestEngineCountsWhatTheEngineComputed(t *testing.T) {
	runner := &batchtest.Runner{TokenDelay: 100 * time.Microsecond}
	e, err := batch.New(runner, batch.Options{KVBlocks: 256})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	r, err := Engine(t.Context(), e, runner.Vocab(), EngineOptions{Prompt: 64, Output: 8, Runs: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Prefill) != 3 || len(r.Decode) != 3 || len(r.DecodeBatch8) != 3 {
		t.Errorf("runs: %+v", r)
	}
	for _, run := range r.Decode {
		if run.Tokens != 7 { // the first token belongs to the prompt
			t.Errorf("decode run: %+v", run)
		}
	}
	// A token cannot take less than the runner sleeps for it.
	if limit := 10_000.0; r.PrefillTokS <= 0 || r.PrefillTokS > limit || r.DecodeTokS <= 0 || r.DecodeTokS > limit || r.DecodeTokSBatch8 <= 0 || r.DecodeTokSBatch8 > limit {
		t.Errorf("rates: %v %v %v", r.PrefillTokS, r.DecodeTokS, r.DecodeTokSBatch8)
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 2, 3}, 2.5}} {
		if got := median(tt.in); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.in, got, tt.want)
		}
	}
}

func TestWindowCountsOnlyWhileAllRun(t *testing.T) {
	at := func(ms ...int) (out []time.Time) {
		for _, m := range ms {
			out = append(out, time.UnixMilli(int64(m)))
		}
		return out
	}
	got := window([][]time.Time{at(0, 10, 20, 30), at(5, 15, 25, 100)})
	if want := newRun(5, 25*time.Millisecond); got != want { // 10, 15, 20, 25, 30
		t.Errorf("got %+v, want %+v", got, want)
	}
}
