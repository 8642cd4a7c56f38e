package cases

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// runBinary runs the command to its end, and returns its exit code and what it
// said.
func runBinary(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), args...)
	cmd.Env = append(os.Environ(), "YARDMASTER_LOG_LEVEL=error")
	out, _ := cmd.CombinedOutput() // the code says it
	return cmd.ProcessState.ExitCode(), string(out)
}

// process is a gateway as a process of its own.
type process struct {
	cmd   *exec.Cmd
	url   string
	ended chan struct{}
	logs  *journal
}

// serveProcess starts the built gateway in front of engines.
func serveProcess(t *testing.T, engines []*scripted.Engine, args ...string) *process {
	t.Helper()
	args = append([]string{"gateway", "--listen", "127.0.0.1:0", "--log-format", "json", "--admin", "", "--unready-time", "0s"}, args...)
	for _, e := range engines {
		args = append(args, "--engine", e.URL())
	}
	p := &process{ended: make(chan struct{}), logs: &journal{}}
	p.cmd = exec.Command(binary(t), args...) //nolint:noctx // signals end it, which is what is tested
	output, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		p.follow(output, ready)
		_ = p.cmd.Wait() // the exit code says it
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			p.logs.show(t)
		}
	})
	select {
	case p.url = <-ready:
	case <-time.After(patience):
		t.Fatalf("the gateway is not ready:\n%s", p.logs)
	}
	return p
}

// follow keeps the log and finds the address in it.
func (p *process) follow(output io.Reader, ready chan<- string) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fmt.Fprintln(p.logs, lines.Text())
		var line struct{ Msg, URL string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "gateway ready" {
			ready <- line.URL
		}
	}
}

func (p *process) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// wait returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatal("the process does not end")
		return 0
	}
}

// memory is the process's resident size in bytes, field VmRSS or VmHWM.
func (p *process) memory(t *testing.T, field string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Skipf("resident memory is read from /proc: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), field+":")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}
