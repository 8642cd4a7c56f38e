package trace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	got, err := Read(strings.NewReader(`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}

{"timestamp": 1500, "input_length": 10, "output_length": 1, "hash_ids": [9007199254740993]}
`))
	want := []Request{{0, 6758, 500, []uint64{0, 1, 2}, 2}, {1500 * time.Millisecond, 10, 1, []uint64{1<<53 + 1}, 4}}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"{", `{"timestamp":1}`, `{"timestamp":-1,"input_length":1,"output_length":1}`, `{"timestamp":1,"input_length":-1,"output_length":1}`, `{"timestamp":1,"input_length":2000000000,"output_length":1}`, `{"timestamp":1,"input_length":1,"output_length":2000000000}`, `{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[-1]}`} {
		if _, err := Read(strings.NewReader(bad)); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestGenerateIsLikeTheOriginal holds the generator to the statistics of the
// Mooncake conversation trace (12,031 rows): input mean 12,035, median 6,909,
// 90 % 27,367; output mean 343; 36.6 % of blocks seen before; 75.8 % of blocks
// used once. What a request finds of an earlier one was last used 45, 123 and 531 s
// before (10, 50, 90 %), so of the first 1,000 requests 21.6 % hit.
func TestGenerateIsLikeTheOriginal(t *testing.T) {
	rows := Generate(1, 12_031)
	var inputs, outputs []float64
	uses := map[uint64]int{}
	var blocks, hits, early float64
	last := map[uint64]time.Duration{}
	var pauses []float64
	for i, r := range rows {
		if i == 1000 {
			early = hits / blocks
		}
		deepest := uint64(0)
		inputs, outputs = append(inputs, float64(r.Input)), append(outputs, float64(r.Output))
		hit := true
		for _, b := range r.Blocks {
			if hit = hit && uses[b] > 0; hit {
				hits++
				deepest = b
			}
			uses[b]++
			blocks++
		}
		if deepest != 0 {
			pauses = append(pauses, (r.At - last[deepest]).Seconds())
		}
		for _, b := range r.Blocks {
			last[b] = r.At
		}
	}
	slices.Sort(pauses)
	once := 0
	for _, n := range uses {
		if n == 1 {
			once++
		}
	}
	slices.Sort(inputs)
	mean := func(x []float64) (m float64) {
		for _, v := range x {
			m += v / float64(len(x))
		}
		return m
	}
	near := func(what string, got, want, tolerance float64) {
		t.Logf("%s: %.3f, original %.3f", what, got, want)
		if got < want*(1-tolerance) || got > want*(1+tolerance) {
			t.Errorf("%s: %.3f, want %.3f", what, got, want)
		}
	}
	near("input mean", mean(inputs), 12_035, .1)
	near("input median", inputs[len(inputs)/2], 6_909, .1)
	near("input 90 %", inputs[len(inputs)*9/10], 27_367, .1)
	near("output mean", mean(outputs), 343, .1)
	near("block hit", hits/blocks, .366, .1)
	near("blocks used once", float64(once)/float64(len(uses)), .758, .1)
	near("hit of the first 1,000", early, .216, .25)
	for share, want := range map[int]float64{10: 45, 50: 123, 90: 531} {
		near(fmt.Sprintf("pause, %d %%", share), pauses[len(pauses)*share/100], want, .25)
	}
	near("requests a second", float64(len(rows))/rows[len(rows)-1].At.Seconds(), 3.4, .05)
	if !cmp.Equal(rows[:100], Generate(1, 100)) {
		t.Error("the same seed made another trace")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}`)
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := Read(strings.NewReader(s)); err != nil && !errors.Is(err, ErrFormat) && !strings.Contains(err.Error(), "token too long") {
			t.Errorf("untyped error %v", err)
		}
	})
}
