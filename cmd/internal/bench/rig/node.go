package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// ErrNotReady means that a process did not come up, or that what depends on
// processes did not come true.
var ErrNotReady = errors.New("it does not get ready")

// Node is one process.
type Node struct {
	ID    string
	API   string // host:port of a gateway's clients
	Admin string // host:port of its admin API; workers have none
	Peer  string // host:port where a planner talks with members

	program, role string
	environ       []string
	probe         string // host:port that answers /readyz
	log           string
	cmd           *exec.Cmd     // nil while it does not run
	ended         chan struct{} // closed when cmd has ended
}

// environ is the environment of a process: this one's, less its settings for
// this program, and values.
func environ(values map[string]string) []string {
	var out []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "YARDMASTER_") {
			out = append(out, entry)
		}
	}
	for name, value := range values {
		out = append(out, "YARDMASTER_"+name+"="+value)
	}
	return out
}

// Running reports whether it was started and not killed since.
func (n *Node) Running() bool { return n.cmd != nil }

// PID is the process's id; 0 while it does not run.
func (n *Node) PID() int {
	if n.cmd == nil {
		return 0
	}
	return n.cmd.Process.Pid
}

// Start runs it. It ends with ctx.
func (n *Node) Start(ctx context.Context) error {
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process has its own
	cmd := exec.CommandContext(ctx, n.program, n.role)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.environ, log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", n.ID, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended stands in its log
		close(ended)
	}()
	n.cmd, n.ended = cmd, ended
	return nil
}

// Ready waits until the node says that it is. A gateway is not before it knows a
// worker.
func (n *Node) Ready(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := Eventually(ctx, func(ctx context.Context) bool {
		select {
		case <-n.ended:
			cancel() // there is nothing to wait for
			return false
		default:
		}
		status, _, err := get(ctx, "http://"+n.probe+"/readyz")
		return err == nil && status == http.StatusOK
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %s", n.ID, err, n.lastWords())
	}
	return nil
}

// Kill ends it as a power cut would: it is not asked (SIGKILL).
func (n *Node) Kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-n.ended
	n.cmd = nil
}

// lastWords are what the node logged last.
func (n *Node) lastWords() string {
	text, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-1000):]))
}

// get asks one of the nodes, over a connection of its own: those that are kept
// would be of processes that were killed.
func get(ctx context.Context, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	return resp.StatusCode, string(b), err
}

// Ports that are given out lie below those that systems give to clients, which
// would take a dead node's.
const firstPort, lastPort = 12000, 30000

// freePorts finds n ports of the loopback address that nobody listens on now.
func freePorts(n int) ([]int, error) {
	var held []net.Listener
	defer func() {
		for _, ln := range held {
			_ = ln.Close() // it has served its purpose
		}
	}()
	var ports []int
	for range 100 * n {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)                               //nolint:gosec // any will do
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // it asks nobody
		if err != nil {
			continue
		}
		held, ports = append(held, ln), append(ports, port)
	}
	return nil, fmt.Errorf("rig: %d free ports: %w", n, syscall.EADDRINUSE)
}
