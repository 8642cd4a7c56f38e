package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/assemble"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/launch"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/server/admin"
)

// scaled is a dev whose pools follow the load: scripted workers that compute two
// requests at once, as children of the built binary.
type scaled struct {
	*assemble.Dev
	process assemble.Process
	most    atomic.Int32 // processes that there were at once
}

// scaledBudget bounds the workers of all pools.
const scaledBudget = 5

func startScaled(t *testing.T, pools ...string) *scaled {
	t.Helper()
	logs := &journal{}
	t.Cleanup(func() {
		if t.Failed() {
			logs.show(t)
		}
	})
	s := &scaled{process: assemble.NewProcess("test", slog.New(slog.NewTextHandler(logs, nil)))}
	c := settings(t)
	c.Gateway.Admin = "127.0.0.1:0"
	c.Dev.Scale = true
	c.Scale.Interval, c.Scale.Hold, c.Scale.Budget, c.Scale.Pools = 200*time.Millisecond, time.Second, scaledBudget, pools
	few := []string{"--max-running", "2"}
	var err error
	s.Dev, err = assemble.StartDev(t.Context(), s.process, c, assemble.DevOptions{
		Executable: binary, Engine: "scripted", Output: logs,
		Workers:     []assemble.DevWorker{{ID: "prefill-0", Role: "prefill", Args: few}, {ID: "decode-0", Role: "decode", Args: few}},
		ScaledArgs:  few,
		Supervision: launch.Options{FirstPause: 5 * time.Millisecond, LongestPause: 50 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// ready is the workers of a role that take requests.
func (s *scaled) ready(role fleet.Role) (n int) {
	view := s.Planner.View()
	for i := range view.Workers {
		if w := &view.Workers[i]; w.Role == role && !w.Draining {
			n++
		}
	}
	return n
}

// watch looks how many processes there are, until stop is called.
func (s *scaled) watch() (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			n := int32(len(s.Children()))
			s.most.Store(max(s.most.Load(), n))
			select {
			case <-end:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	return func() { close(end); wg.Wait() }
}

// load keeps n requests going until stop is called, which returns how many were
// answered whole, and what went wrong.
func (s *scaled) load(t *testing.T, n, tokens int) (stop func() (whole int, faults []answer)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		whole  int
		faults []answer
	)
	c := client(t)
	for i := range n {
		wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				a := complete(context.WithoutCancel(ctx), c, s.Gateway.URL(), s.Model(), strings.Repeat("word ", 50)+strconv.Itoa(i)+" "+strconv.Itoa(k), tokens)
				mu.Lock()
				if a.whole {
					whole++
				} else {
					faults = append(faults, a)
				}
				mu.Unlock()
			}
		})
	}
	return func() (int, []answer) {
		cancel()
		wg.Wait()
		return whole, faults
	}
}

// dev --scale has a decode worker for each few requests, within the budget at every
// moment, and one again when they are gone. No request fails for it.
func TestDevGrowsAndShrinks(t *testing.T) {
	s := startScaled(t, "decode=1-3", "prefill=1-2")
	unwatch := s.watch()
	many := s.load(t, 24, 150)
	eventually(t, "three decode workers serve", func() bool { return s.ready(fleet.RoleDecode) == 3 })
	few := s.load(t, 1, 400)
	whole, faults := many()
	// A worker that is busy with a stream of the few drains meanwhile.
	eventually(t, "one decode worker is left", func() bool { return s.ready(fleet.RoleDecode) == 1 && len(s.Children()) <= 3 })
	slow, more := few()
	unwatch()
	for _, a := range append(faults, more...) {
		t.Errorf("a request failed: %+v", a)
	}
	if whole < 24 || slow == 0 {
		t.Errorf("only %d and %d requests were answered", whole, slow)
	}
	if n := s.most.Load(); n > scaledBudget || n < 4 {
		t.Errorf("%d workers at once, of a budget of %d", n, scaledBudget)
	}
	for _, state := range []string{"starting", "draining"} {
		eventually(t, "no process is "+state, func() bool { return s.process.Registry.Gauge(measure.ScaleProcesses, state).Value() == 0 })
	}
	if killed := s.process.Registry.Counter(measure.ScaleStarts, "killed").Value(); killed != 0 {
		t.Errorf("%v workers had to be killed", killed)
	}
}

// Pools that may be empty are, when nobody asks, and come back for the first who does.
func TestPoolsSleep(t *testing.T) {
	s := startScaled(t, "decode=0-2", "prefill=0-1")
	ask := func() {
		t.Helper()
		if a := complete(t.Context(), client(t), s.Gateway.URL(), "scripted", "hello", 5); !a.whole {
			t.Errorf("%+v", a)
		}
	}
	ask() // so that the gateway knows the model
	eventually(t, "nobody is left", func() bool { return len(s.Planner.View().Workers) == 0 && len(s.Children()) == 0 })
	ask()
}

// A worker that is killed comes back under its name, as another incarnation.
func TestScaledWorkerIsReplaced(t *testing.T) {
	s := startScaled(t)
	eventually(t, "there is a plan", func() bool { return s.desired(t, "decode") == 1 })
	before, _ := s.Worker("decode-0")
	for _, child := range s.Children() {
		if child.Name() == "decode-0" {
			child.Signal(syscall.SIGKILL)
		}
	}
	eventually(t, "decode-0 is back", func() bool {
		now, ok := s.Worker("decode-0")
		return ok && now.Epoch != before.Epoch
	})
	if a := complete(t.Context(), client(t), s.Gateway.URL(), s.Model(), "hello", 5); !a.whole {
		t.Errorf("%+v", a)
	}
}

// status is what yardmaster scale show says.
func (s *scaled) status(t *testing.T) (out admin.ScaleStatus) {
	t.Helper()
	if err := json.Unmarshal(s.cli(t, "scale", "show", "-o", "json"), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (s *scaled) desired(t *testing.T, role string) int {
	t.Helper()
	for _, p := range s.status(t).Pools {
		if p.Role == role && p.Desired != nil {
			return int(*p.Desired)
		}
	}
	return -1
}

// cli runs a command against the admin API.
func (s *scaled) cli(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append(args, "--admin", s.Gateway.AdminURL())...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out, said.String())
	}
	return out
}

// An autoscaler in Wasm takes over while the planner runs, is held by an operator, and
// gives way to the configured policy again.
func TestAutoscalerIsPromoted(t *testing.T) {
	s := startScaled(t, "decode=1-3", "prefill=1-2")
	wasm := filepath.Join(t.TempDir(), "threes.wasm")
	policy := abitest.Policy{Kind: abi.Autoscaler, Name: "threes", Columns: []string{"ready"}, Locals: "i32", Rows: 64, Code: abitest.Loop("local.get 1 i32.const 3 i32.store @out")}
	if err := os.WriteFile(wasm, policy.Build(), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is a plan, and so the feature level that policies need", func() bool { return s.desired(t, "decode") == 1 })
	s.cli(t, "policy", "push", "--unsigned", wasm)
	if n := s.desired(t, "decode"); n > 1 {
		t.Errorf("%d are desired of a policy that is not bound", n)
	}
	s.cli(t, "policy", "promote", "threes")
	eventually(t, "the plan is the policy's", func() bool { return s.desired(t, "decode") == 3 && s.desired(t, "prefill") == 2 })
	eventually(t, "the fleet is the plan's", func() bool { return s.ready(fleet.RoleDecode) == 3 && s.ready(fleet.RolePrefill) == 2 })
	if by := s.status(t).Plan.Policy; !strings.HasPrefix(by, "threes@") {
		t.Errorf("the plan is by %q", by)
	}
	s.cli(t, "scale", "set", s.Model()+"/decode=2")
	eventually(t, "two are left", func() bool { return s.ready(fleet.RoleDecode) == 2 })
	s.cli(t, "policy", "rollback", "--kind", "autoscaler")
	time.Sleep(2 * time.Second) // longer than the hold
	if st := s.status(t); !st.Plan.Held || s.desired(t, "decode") != 2 {
		t.Errorf("%+v: an operator holds the plan", st.Plan)
	}
	s.cli(t, "scale", "resume")
	eventually(t, "one is left", func() bool { return s.ready(fleet.RoleDecode) == 1 && s.ready(fleet.RolePrefill) == 1 })
}

// A planner whose settings say so keeps the fewest workers of a pool as its own
// processes, replaces those that are killed, and ends with them.
func TestPlannerRunsWorkers(t *testing.T) {
	operators, dir := freeAddr(t), t.TempDir()
	settings := filepath.Join(dir, "yardmaster.yaml")
	text := "planner:\n  data-dir: " + dir + "/data\n  listen: 127.0.0.1:0\ncluster:\n  peer-listen: " + freeAddr(t) +
		"\ngateway:\n  listen: 127.0.0.1:0\n  admin: " + operators + "\nscale:\n  policy: queue-and-kv\n  interval: 200ms\n  pool: [tiny/both=2-3]\n  actuator: process\n" +
		"worker:\n  engine: scripted\n  served-name: tiny\n  listen: 127.0.0.1:1\n"
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	said := &journal{}
	t.Cleanup(func() {
		if t.Failed() {
			said.show(t)
		}
	})
	planner := exec.CommandContext(t.Context(), binary, "planner", "--config", settings)
	planner.Stderr = said
	if err := planner.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- planner.Wait() }()
	t.Cleanup(func() { planner.Process.Kill() }) //nolint:errcheck // it has usually ended
	pool := func() (out admin.ScalePool) {
		var s admin.ScaleStatus
		answer, err := exec.CommandContext(t.Context(), binary, "scale", "show", "-o", "json", "--admin", operators).Output()
		if err == nil && json.Unmarshal(answer, &s) == nil && len(s.Pools) == 1 {
			out = s.Pools[0]
		}
		return out
	}
	eventually(t, "two workers serve", func() bool { return pool().Ready == 2 })
	workers := func() []string {
		pids, err := exec.CommandContext(t.Context(), "pgrep", "-P", strconv.Itoa(planner.Process.Pid), "-f", " worker ").Output()
		if err != nil {
			return nil
		}
		return strings.Fields(string(pids))
	}
	pids := workers()
	if len(pids) != 2 {
		t.Fatalf("workers %v", pids)
	}
	killed, err := strconv.Atoi(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another is in its place", func() bool { now := workers(); return len(now) == 2 && now[0] != pids[0] && now[1] != pids[0] })
	eventually(t, "two workers serve again", func() bool { return pool().Ready == 2 })
	pids = workers()
	if err := planner.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the planner ended with %v", err)
	}
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("worker %s outlived its planner", pid)
		}
	}
}
