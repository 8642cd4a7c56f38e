package e2e

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/cpu/gguf/gguftest"
	"github.com/yardmaster/yardmaster/gpu/launch"
)

// TestADrainingWorkerFinishesItsStreams sends SIGTERM to the decode worker while
// it generates: the streams under way must be whole, and the worker must leave
// and come back as another incarnation.
func TestADrainingWorkerFinishesItsStreams(t *testing.T) {
	s := startStack(t)
	c := client(t)
	random := rand.New(rand.NewPCG(3, 4))
	const streams, tokens = 8, 1900
	var running sync.WaitGroup
	answers := make([]answer, streams)
	for i := range streams {
		p := prompt(random, 20)
		running.Go(func() { answers[i] = complete(t.Context(), c, s.Gateway.URL(), s.Model(), p, tokens) })
	}
	decode, _ := s.Worker("decode-0")
	eventually(t, "all streams generate", func() bool {
		return metric(t, c, decode.URL, measure.EngineRunning) == streams
	})
	s.Children()[1].Signal(syscall.SIGTERM)
	running.Wait()
	for i, a := range answers {
		if !a.whole {
			t.Errorf("stream %d: status %d, fault %q, err %v, %d bytes of text", i, a.status, a.fault, a.err, len(a.text))
		}
	}
	eventually(t, "the worker is back", func() bool {
		now, ok := s.Worker("decode-0")
		return ok && now.Epoch != decode.Epoch
	})
	if a := complete(t.Context(), c, s.Gateway.URL(), s.Model(), "hello again", 4); !a.whole {
		t.Errorf("after the drain: %+v", a)
	}
	if n := s.Children()[1].Restarts(); n != 1 {
		t.Errorf("%d restarts", n)
	}
}

// line is a planner and workers as processes of their own, as an operator would
// run them.
type line struct {
	url     string
	planner *launch.Child
}

func startLine(t *testing.T) *line {
	t.Helper()
	logs := &journal{}
	t.Cleanup(func() {
		if t.Failed() {
			logs.show(t)
		}
	})
	run := func(name string, args ...string) *launch.Child {
		child := launch.Start(launch.Command{Name: name, Path: binary, Args: args, Output: logs},
			launch.Options{FirstPause: 5 * time.Millisecond, LongestPause: 5 * time.Millisecond})
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := child.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
		return child
	}
	control, api := freeAddr(t), freeAddr(t)
	model := gguftest.TinyModelFile(t, 1, gguftest.Options{Context: contextTokens})
	l := &line{url: "http://" + api}
	l.planner = run("planner", "planner", "--data-dir", filepath.Join(t.TempDir(), "state"), "--listen", control, "--peer-listen", "127.0.0.1:0",
		"--gateway-listen", api, "--gateway-disaggregate", "always", "--gateway-explain")
	for _, role := range []string{"prefill", "decode"} {
		run(role, "worker", "--id", role, "--role", role, "--model", model, "--planner", control, "--threads", "1")
	}
	return l
}

func (l *line) ready(t *testing.T, c *http.Client) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.url+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close() //nolint:errcheck // only the status matters
	return resp.StatusCode == http.StatusOK
}

// TestAPlannerComesBackWithItsFleet kills the planner: its successor reads the
// fleet from disk, and serves with the workers it finds there although they
// had no part in it.
func TestAPlannerComesBackWithItsFleet(t *testing.T) {
	l := startLine(t)
	c := client(t)
	disaggregated := func() bool {
		a := complete(t.Context(), c, l.url, "tiny", "The quick brown fox jumps over the lazy dog.", 8)
		return a.whole && strings.HasPrefix(a.path, "disaggregated")
	}
	eventually(t, "the line serves", disaggregated)
	for range 3 {
		restarts := l.planner.Restarts()
		l.planner.Signal(syscall.SIGKILL)
		eventually(t, "the planner was started again", func() bool { return l.planner.Restarts() > restarts })
		eventually(t, "the planner is ready", func() bool { return l.ready(t, c) })
		if !disaggregated() {
			t.Error("the planner is ready and does not serve")
		}
	}
}

// TestOneLineSaysWhatToDo starts commands in worlds where they cannot work.
func TestOneLineSaysWhatToDo(t *testing.T) {
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // it only had to be there
	sealed := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(sealed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(garbage, []byte("GGUF and no more"), 0o600); err != nil {
		t.Fatal(err)
	}
	tiny := gguftest.TinyModelFile(t, 1, gguftest.Options{})
	tests := []struct {
		name string
		args []string
		code int
		text string
	}{
		{"port taken", []string{"gateway", "--engine", "http://127.0.0.1:1", "--listen", taken.Addr().String()}, 1, "another process has that port"},
		{"port taken in dev", []string{"dev", "--engine", "scripted", "--gateway-listen", taken.Addr().String()}, 1, "another process has that port"},
		{"no engines", []string{"gateway"}, 2, "give --engine URL"},
		{"no data folder", []string{"planner"}, 2, "--data-dir"},
		{"data folder is a file", []string{"planner", "--data-dir", sealed, "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"}, 1, "planner.data-dir"},
		{"model missing", []string{"worker", "--planner", ""}, 3, "yardmaster model fetch smollm2"},
		{"model file missing", []string{"worker", "--planner", "", "--model", "no/such.gguf"}, 3, "no/such.gguf"},
		{"model damaged", []string{"worker", "--planner", "", "--model", garbage}, 1, "offset"},
		{"script missing", []string{"worker", "--planner", "", "--engine", "scripted", "--script", "no.yaml"}, 3, "no.yaml"},
		{"foreign address", []string{"worker", "--planner", "", "--engine", "scripted", "--listen", "192.0.2.1:0"}, 1, "this machine has no such address"},
		{"every address", []string{"worker", "--planner", "", "--engine", "scripted", "--listen", ":0", "--plain-api"}, 2, "worker.advertise"},
		{"plain text abroad", []string{"planner", "--data-dir", filepath.Join(t.TempDir(), "s"), "--listen", ":0", "--gateway-listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"}, 2, "--tls-cert"},
		{"plain KV abroad", []string{"worker", "--planner", "", "--transfer", ":0", "--advertise", "h", "--model", tiny}, 2, "--tls-cert"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, tt.args...)
			cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir(), "YARDMASTER_LOG_LEVEL=error")
			var said strings.Builder
			cmd.Stdout, cmd.Stderr = &said, &said
			err := cmd.Run()
			code := cmd.ProcessState.ExitCode()
			if err == nil || code != tt.code || !strings.Contains(said.String(), tt.text) {
				t.Errorf("code %d, want %d with %q; it said:\n%s", code, tt.code, tt.text, said.String())
			}
			if lines := strings.Count(strings.TrimSpace(said.String()), "\n") + 1; lines != 1 {
				t.Errorf("%d lines:\n%s", lines, said.String())
			}
		})
	}
}

// TestAPlannerIsStoppedWhileItStarts: that is the user's wish and no fault, at whatever
// moment after its admin API answers, which is before it leads.
func TestAPlannerIsStoppedWhileItStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	for i := range 10 {
		operators, logs := freeAddr(t), &journal{}
		c := exec.CommandContext(t.Context(), binary, "planner", "--data-dir", dir, "--gateway=false", "--gateway-admin", operators,
			"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0")
		c.Stderr = logs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the admin API is there", func() bool {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", operators)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
		time.Sleep(time.Duration(i) * 30 * time.Millisecond)
		sent, want := os.Signal(syscall.SIGTERM), 0
		if i%2 == 1 {
			sent, want = os.Interrupt, 130
		}
		if err := c.Process.Signal(sent); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if got := c.ProcessState.ExitCode(); got != want || logs.says("yardmaster: ") {
			t.Errorf("stopped by %v after %d × 30 ms: exit %d, want %d", sent, i, got, want)
			logs.show(t)
		}
	}
}
