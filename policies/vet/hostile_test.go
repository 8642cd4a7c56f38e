package vet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// Every hostile policy is refused at the step that it should be, with a sentence that
// says why; what attacks only when it is woken up passes, for package host to contain.
func TestHostilePolicies(t *testing.T) {
	inside := pipeline(t, func(c *vet.Config) { c.Command = nil })
	apart := pipeline(t, nil)
	for i, h := range abitest.Corpus() {
		t.Run(h.Name, func(t *testing.T) {
			p := inside
			if i%6 == 0 { // a process takes a while to start
				p = apart
			}
			r, err := p.Check(t.Context(), h.Wasm, nil)
			if !errors.Is(err, vet.ErrRefused) || r.Accepted {
				t.Fatalf("accepted: %v", err)
			}
			last := r.Steps[len(r.Steps)-1]
			if last.Name != h.Step || last.Verdict != vet.Refused || !strings.Contains(last.Text, h.Says) {
				t.Errorf("refused at %s: %s\nwant %s: %s", last.Name, last.Text, h.Step, h.Says)
			}
			if testing.Verbose() {
				t.Logf("refused at %s: %s", last.Name, strings.ReplaceAll(last.Text, "\n", "; "))
			}
			if h.Sleeper == nil {
				return
			}
			if r, err := inside.Check(t.Context(), h.Sleeper, nil); err != nil {
				t.Errorf("asleep: %v", err)
			} else if r.Trial.Fuel.Max > 100_000 {
				t.Errorf("asleep it uses %d units", r.Trial.Fuel.Max)
			}
		})
	}
}

// A child that does not end, dies, or talks nonsense is no trouble, and no accusation
// of the policy.
func TestChildrenThatFail(t *testing.T) {
	t.Parallel()
	sh := func(script string) func(*vet.Config) {
		return func(c *vet.Config) { c.Command, c.Timeout = []string{"/bin/sh", "-c", script}, 2*time.Second }
	}
	tests := []struct {
		name   string
		change func(*vet.Config)
		want   error
		says   string
	}{
		{"no such program", func(c *vet.Config) { c.Command = []string{"/nonexistent"} }, vet.ErrChild, "nonexistent"},
		{"gets no processor", func(c *vet.Config) { sh("sleep 60")(c); c.Timeout = 500 * time.Millisecond }, vet.ErrChild, "the machine is busy"},
		{"killed from outside", sh("kill -9 $$"), vet.ErrChild, "signal: killed; try again"},
		{"ended from outside", sh("kill -TERM $$; sleep 5"), vet.ErrChild, "signal: terminated; try again"},
		{"stopped for its time", sh("kill -XCPU $$; sleep 5"), vet.ErrRefused, "was stopped: signal: CPU time limit exceeded"},
		{"out of memory", sh("echo 'fatal error: runtime: out of memory' >&2; exit 2"), vet.ErrRefused, "more memory than is allowed"},
		{"the compiler panics", sh("echo 'panic: index out of range' >&2; exit 2"), vet.ErrRefused, "the runtime's compiler fails on it: panic: index out of range"},
		{"fails", sh("echo no space left >&2; exit 1"), vet.ErrChild, "no space left"},
		{"says nonsense", sh("echo hello"), vet.ErrChild, "its answer of 6 bytes is none"},
		{"says too little", sh(`cat >/dev/null; echo '{}'`), vet.ErrChild, "what came of step compile"},
		{"says half", sh(`cat >/dev/null; echo '{"steps":[{"name":"compile","verdict":"passed"}]}'`), vet.ErrChild, "what came of step start"},
		{"says what is no verdict", sh(`cat >/dev/null; echo '{"steps":[{"name":"compile","verdict":"fine"}]}'`), vet.ErrChild, `step compile was "fine"`},
		{"says nothing", sh("cat >/dev/null"), vet.ErrChild, "its answer of 0 bytes"},
		{"says it all day", sh("cat >/dev/null; yes '{' | head -c 5000000"), vet.ErrChild, "its answer of 1048576 bytes is none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			_, err := pipeline(t, tt.change).Check(t.Context(), product().Build(), nil)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	p := pipeline(t, func(c *vet.Config) { c.Command = []string{"/bin/sh", "-c", "sleep 60"} })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := p.Check(ctx, product().Build(), nil); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, vet.ErrRefused) {
		t.Errorf("got %v", err)
	}
}

// The cache is private, and stays within its bound.
func TestCacheIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	p := pipeline(t, func(c *vet.Config) { c.Cache, c.CacheBytes, c.Command = dir, 4000, nil })
	for i := range 10 {
		policy := product()
		policy.Rows = 100 + 4*i
		if err := p.Warm(t.Context(), policy.Build()); err != nil {
			t.Fatal(err)
		}
	}
	total, files := int64(0), 0
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			info, err := d.Info()
			if err != nil {
				return err
			}
			total, files = total+info.Size(), files+1
		}
		return err
	})
	if err != nil || total > 4000+1500 || files < 2 {
		t.Errorf("%d files of %d bytes: %v", files, total, err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	if err := p.Warm(t.Context(), product().Build()); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a directory that others may read: %v", err)
	}
}

// A child that needs more memory than it may have is no trouble for anybody else.
func TestMemoryOfTheChildIsBounded(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system does not hold processes to a limit of address space")
	}
	p := pipeline(t, func(c *vet.Config) { c.Command[1] = "hog" })
	_, err := p.Check(t.Context(), product().Build(), nil)
	// The race detector dies of it in words of its own.
	if !errors.Is(err, vet.ErrRefused) || !strings.Contains(err.Error(), "more memory than is allowed") && !strings.Contains(err.Error(), "address space") {
		t.Errorf("got %v", err)
	}
}

// What a child has started dies with it.
func TestTheWholeGroupIsKilled(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	p := pipeline(t, func(c *vet.Config) {
		c.Command, c.Timeout = []string{"/bin/sh", "-c", "sleep 60 & echo $! >" + file + "; while :; do :; done"}, time.Second
	})
	// On a machine that others use too the loop may hardly have run.
	_, err := p.Check(t.Context(), product().Build(), nil)
	if !errors.Is(err, vet.ErrRefused) && !errors.Is(err, vet.ErrChild) || !strings.Contains(err.Error(), " 1s") {
		t.Errorf("got %v", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if dead(pid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("process %d lives on", pid)
}

// dead says whether a process has ended, also if nobody has taken note of it yet.
func dead(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z")
}

// A module within all limits that takes a minute to compile is stopped.
func TestCompileBomb(t *testing.T) {
	bomb := product()
	bomb.More = func(m *wattest.Module) {
		for range 100 {
			m.Func("", "", strings.Repeat("i32.const 1 if nop end ", 5000))
		}
	}
	began := time.Now()
	_, err := pipeline(t, func(c *vet.Config) { c.Timeout = time.Second }).Check(t.Context(), bomb.Build(), nil)
	if !errors.Is(err, vet.ErrRefused) && !errors.Is(err, vet.ErrChild) || !strings.Contains(err.Error(), " 1s") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
