package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/sim/trace"
	"github.com/yardmaster/yardmaster/core/unit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every part runs, small, and what it must show is so.
func TestWhatAClusterMustShow(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds and starts the program")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "yardmaster")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/yardmaster/yardmaster/cmd/yardmaster")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	opts := Options{
		Program: program,
		Streams: 10, StreamTokens: 40, TokenEvery: 50 * time.Millisecond, RequestsPerS: 20, Rest: 500 * time.Millisecond, Outage: 2 * time.Second, SameWorkers: true,
		Trace: trace.Generate(7, 20), Speed: 20, Groups: 8, PerPass: 16, Bursts: 3, Settle: 300 * time.Millisecond,
	}
	for part, check := range map[string]func(*testing.T, *Result){
		PartStreams: func(t *testing.T, r *Result) {
			if s := r.Streams; s.Whole < 20 || s.RequestsOK < 40 || s.LongestGapMS <= 0 || s.ReturnMS <= 0 || len(s.Phases) < 4 {
				t.Errorf("%+v", s)
			}
		},
		PartPrefix: func(t *testing.T, r *Result) {
			r.Bars = r.Bars[1:] // so few requests differ by chance
			if p := r.Prefix; p.One.CachedShare <= 0 || p.Four.CachedShare <= 0 || p.Oracle <= 0 {
				t.Errorf("%+v", p)
			}
		},
		PartRestart: func(t *testing.T, r *Result) {
			if p := r.Restart; p.Warm <= 0 || p.Warm > p.Best || len(p.Cases) != 6 {
				t.Errorf("%+v", p)
			}
		},
		PartHerding: func(t *testing.T, r *Result) {
			r.Bars = slices.Delete(r.Bars, 1, 2) // one burst on a busy machine proves nothing
			if h := r.Herding; h.Distinct.All < 1 || h.Hot.All < 1 {
				t.Errorf("%+v", h)
			}
		},
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			opts := opts
			opts.Parts, opts.Dir = []string{part}, t.TempDir()
			r, err := Run(context.WithoutCancel(t.Context()), opts, func(what string) { t.Log(time.Now().Format("05.0"), what) })
			if err != nil {
				t.Fatal(err)
			}
			check(t, &r)
			for _, b := range r.Missed() {
				t.Errorf("%s: %v, bound %v", b.What, b.Value, b.Bound)
			}
			if left, err := os.ReadDir(opts.Dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestAPartThatDoesNotExist(t *testing.T) {
	if _, err := Run(t.Context(), Options{Parts: []string{"tea"}}, func(string) {}); !errors.Is(err, ErrPart) {
		t.Errorf("%v", err)
	}
}

// A stream counts only with its end marker and all of its tokens, once each.
func TestStreamsThatAreNotWhole(t *testing.T) {
	event := func(text string) string { return `data: {"choices":[{"text":"` + text + `"}]}` + "\n\n" }
	const done = "data: [DONE]\n\n"
	tests := []struct {
		name, answer string
		status       int
		want         error
	}{
		{"whole", event(" bad") + event(" bed bid") + event("") + done, 200, nil},
		{"no end marker", event(" bad") + event(" bed bid"), 200, ErrNotWhole},
		{"a token short", event(" bad bed") + done, 200, ErrNotWhole},
		{"a token twice", event(" bad bed bid bid") + done, 200, ErrNotWhole},
		{"an error in the end", event(" bad bed") + `data: {"error":{"message":"lost"}}` + "\n\n" + done, 200, ErrNotWhole},
		{"refused", `{"error":{"message":"busy"}}`, 429, ErrStatus},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.answer)
			}))
			defer s.Close()
			c := newClient(s.Listener.Addr().String())
			defer c.close()
			got := 0
			err := c.follow(t.Context(), request{prompt: "x", tokens: 3}, func(tokens int) { got += tokens })
			if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || got != 3) {
				t.Errorf("%d tokens, %v", got, err)
			}
		})
	}
}

// A broken stream is counted with its phase, and its error is told.
func TestWatchCountsByPhase(t *testing.T) {
	r := &Streams{}
	w := newWatch(r)
	w.phase("calm")
	calm := w.now()
	w.token(2, 30*time.Millisecond)
	w.streamed(nil)
	w.phase("storm")
	w.asked(calm, 4*time.Millisecond, nil)
	w.asked(w.now(), time.Second, ErrStatus)
	w.streamed(ErrNotWhole)
	w.sum()
	want := &Streams{
		Whole: 1, Failed: 1, Tokens: 2, LongestGapMS: 30, RequestsOK: 1, RequestsFail: 1,
		Phases: []Phase{
			{Name: "calm", Requests: 1, P50MS: 4, P99MS: 4, MaxMS: 4, LongestGapMS: 30},
			{Name: "storm", Requests: 1, Failed: 1, StreamsFailed: 1},
		},
		Errors: []string{"request, storm, after 1s: " + ErrStatus.Error(), "stream, storm: " + ErrNotWhole.Error()},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(w.fault(), ErrStatus) {
		t.Error(w.fault())
	}
}

func TestRowsOfOneStepAreSpread(t *testing.T) {
	rows := []trace.Request{{At: 0}, {At: 0}, {At: 0}, {At: 3 * time.Second}, {At: 9 * time.Second}, {At: 9 * time.Second}}
	want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 9 * time.Second, 9 * time.Second}
	if diff := cmp.Diff(want, dueTimes(rows)); diff != "" {
		t.Error(diff)
	}
}

// Equal ids make equal text, up to the token, also where the last is cut short.
func TestTextOfATrace(t *testing.T) {
	long := traceText(&trace.Request{Input: 1024 + 100, Blocks: []uint64{0, 1, 2}})
	short := traceText(&trace.Request{Input: 1024 - 100, Blocks: []uint64{0, 1}})
	other := traceText(&trace.Request{Input: 1024, Blocks: []uint64{0, 3}})
	if len(long) != 4*1124 || !strings.HasPrefix(long, short) || len(short) != 4*924 {
		t.Errorf("%d and %d bytes", len(long), len(short))
	}
	if long[:2048] != other[:2048] || long[2048:2100] == other[2048:2100] {
		t.Error("texts do not follow the ids")
	}
}

func TestOracle(t *testing.T) {
	row := func(input unit.Tokens, blocks ...uint64) trace.Request {
		return trace.Request{Input: input, Blocks: blocks}
	}
	tests := []struct {
		name   string
		rows   []trace.Request
		blocks int
		want   float64
	}{
		{"nothing", nil, 8, 0},
		{"the same again, but its last token", []trace.Request{row(512, 1), row(512, 1)}, 64, 496.0 / 1024},
		{"half of it", []trace.Request{row(1024, 1, 2), row(1024, 1, 3)}, 128, 512.0 / 2048},
		{"no room", []trace.Request{row(512, 1), row(512, 2), row(512, 1)}, 32, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := oracle(tt.rows, tt.blocks); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestWorkerOfAPlacement(t *testing.T) {
	for placement, want := range map[string]string{
		"aggregated; reason=forced; policy=sticky; worker=worker-3; next=worker-1": "worker-3",
		"aggregated; reason=forced; worker=w":                                      "w",
		"disaggregated; prefill=a; decode=b; next=c":                               "",
		"": "",
	} {
		if got := workerOf(placement); got != want {
			t.Errorf("%q: %q, want %q", placement, got, want)
		}
	}
}
