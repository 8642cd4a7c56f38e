package cost

import (
	"math"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/unit"
)

func TestPrefillTime(t *testing.T) {
	tests := []struct {
		name                      string
		queued, prompt, prefixHit unit.Tokens
		rate                      float64 // tokens/s
		want                      time.Duration
		wantOK                    bool
	}{
		{"half cached", 0, 2000, 1000, 10_000, 100 * time.Millisecond, true},
		{"hit beyond prompt", 500, 100, 128, 10_000, 50 * time.Millisecond, true},
		{"unmeasured worker", 0, 2000, 0, 0, 0, false},
		{"broken gauge", 0, 2000, 0, math.NaN(), 0, false},
		{"hostile rate", 0, math.MaxInt32, 0, 1e-300, 24 * time.Hour, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := PrefillTime(tt.queued, tt.prompt, tt.prefixHit, tt.rate)
			if got != tt.want || ok != tt.wantOK {
				t.Errorf("got %v, %v; want %v, %v", got, ok, tt.want, tt.wantOK)
			}
		})
	}
}

func TestTransferTime(t *testing.T) {
	link := Link{Setup: time.Millisecond, BytesPerSecond: 1e9, Efficiency: .5}
	got, ok := TransferTime(link, 50_000_000)
	if got != 101*time.Millisecond || !ok {
		t.Errorf("got %v, %v", got, ok)
	}
	for name, l := range map[string]Link{"no bandwidth": {Efficiency: 1}, "no efficiency": {BytesPerSecond: 1}, "nan": {BytesPerSecond: math.NaN(), Efficiency: 1}} {
		if _, ok := TransferTime(l, 1); ok {
			t.Errorf("%s: claimed to know", name)
		}
	}
	if _, ok := TransferTime(link, 0); ok {
		t.Error("unknown size: claimed to know")
	}
	if d := Exposed(got, 100*time.Millisecond, link); d != time.Millisecond {
		t.Errorf("exposed %v", d)
	}
	if d := Exposed(got, 80*time.Millisecond, link); d != 21*time.Millisecond {
		t.Errorf("exposed %v", d)
	}
}

func TestRatioLearns(t *testing.T) {
	var r Ratio
	if got := r.Tokens(10); got != 3 {
		t.Errorf("first estimate %d", got)
	}
	for range 200 {
		r.Learn(300, 100)
	}
	if got := r.BytesPerToken(); math.Abs(got-3) > .01 {
		t.Errorf("learned %v", got)
	}
	r.Learn(0, 5)
	r.Learn(5, 0)
	r.Learn(1<<40, 1)
	if got := r.BytesPerToken(); got > 3+64.0/16 {
		t.Errorf("one absurd report moved it to %v", got)
	}
}
