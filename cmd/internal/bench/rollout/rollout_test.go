package rollout

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every part runs, small, and what it must show is so.
func TestWhatRolloutsMustShow(t *testing.T) {
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
		Program: program, Dir: t.TempDir(), Gateways: 2, Workers: 2, Rate: 200, Clients: 4, Swaps: 4, Pause: 30 * time.Millisecond, Reloads: 4, Pushes: 1, Rest: 20 * time.Millisecond,
	}
	r, err := Run(context.WithoutCancel(t.Context()), opts, func(what string) { t.Log(time.Now().Format("05.0"), what) })
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Missed() {
		if b.What != "push of 4 KB until active everywhere, ms" { // a busy machine has other things to do
			t.Errorf("%s: %v, bound %v", b.What, b.Value, b.Bound)
		}
	}
	if s := r.Swaps; s.Changes != 8 || s.Decisions < 20 || s.Bindings < 2 || s.Failed+s.Wrong+s.Back > 0 {
		t.Errorf("%+v", s)
	}
	if p := r.Push; len(p.Small.ActiveMS) != 1 || p.Small.ActiveMS[0] < p.Small.PushMS[0] || p.Go != nil {
		t.Errorf("%+v", p)
	}
	if l := r.Reloads; len(l.Nodes) != 5 || l.Nodes[0].Start <= 0 || l.Nodes[4].End <= 0 {
		t.Errorf("%+v", l)
	}
	if left, err := os.ReadDir(opts.Dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestUnknownParts(t *testing.T) {
	if _, err := Run(t.Context(), Options{Parts: []string{"all"}}, nil); !errors.Is(err, ErrPart) {
		t.Errorf("got %v", err)
	}
}

// Decisions are judged by the index that they name, answers without a policy by nothing.
func TestJudge(t *testing.T) {
	f := &fleet{history: map[uint64]string{5: "a@1", 7: "a@2"}, ended: map[uint64]time.Time{}}
	l := &load{fleet: f}
	newest := uint64(0)
	for _, placement := range []string{
		"aggregated; reason=off; policy=a@1; policy-index=5; worker=w",
		"aggregated; reason=off; policy=a@2; policy-index=7; worker=w",
		"aggregated; reason=off; policy=a@2; policy-index=5; worker=w",                // wrong, and back
		"aggregated; reason=off; policy=a@2; policy-index=7; fallback=trap; worker=w", // failed
		"aggregated; reason=off; policy=sticky; worker=w",                             // failed
	} {
		l.note(placement, nil, time.Now(), &newest)
	}
	l.note("", errStatus, time.Now(), &newest)
	l.judge()
	if l.answered != 3 || l.failed != 3 || l.wrong != 1 || l.back != 1 || len(l.errs) != 4 {
		t.Errorf("answered %d, failed %d, wrong %d, back %d, %v", l.answered, l.failed, l.wrong, l.back, l.errs)
	}
}
