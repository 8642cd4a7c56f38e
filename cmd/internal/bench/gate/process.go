package gate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// process is the gateway under measurement.
type process struct {
	cmd    *exec.Cmd
	addr   string
	pinned bool
	logs   sync.WaitGroup
}

// ErrNotReady means that the gateway did not say that it is ready.
var ErrNotReady = errors.New("the gateway did not start")

// startTime bounds the gateway's start.
const startTime = 20 * time.Second

func startProcess(ctx context.Context, o Options, engine string) (*process, error) {
	args := append([]string{"gateway", "--listen", "127.0.0.1:0", "--engine", engine}, o.Args...)
	cmd := exec.CommandContext(ctx, o.Program, args...)
	logs, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd}
	if p.pinned, err = startPinned(cmd); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	ready := make(chan string, 1)
	p.logs.Go(func() { readLogs(logs, ready) })
	select {
	case p.addr = <-ready:
	case <-time.After(startTime):
	}
	if p.addr == "" {
		return nil, errors.Join(ErrNotReady, p.stop())
	}
	return p, nil
}

// readLogs finds the address in the gateway's log and reads on to its end.
func readLogs(logs io.Reader, ready chan<- string) {
	defer close(ready)
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		_, rest, ok := strings.Cut(lines.Text(), `msg="gateway ready" url=http://`)
		if ok {
			addr, _, _ := strings.Cut(rest, " ")
			ready <- addr
			break
		}
	}
	_, _ = io.Copy(io.Discard, logs)
}

// stop ends the gateway.
func (p *process) stop() error {
	_ = p.cmd.Process.Kill() // what it does at the end is not measured
	p.logs.Wait()
	if err := p.cmd.Wait(); err != nil {
		if _, killed := errors.AsType[*exec.ExitError](err); !killed {
			return err
		}
	}
	return nil
}

// watch follows the resident memory until the returned function is called, which
// gives the most.
func (p *process) watch() (peak func() int64) {
	done := make(chan struct{})
	var most int64
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			if rss, err := p.resident(); err == nil {
				most = max(most, rss)
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() int64 {
		close(done)
		watching.Wait()
		return most
	}
}
