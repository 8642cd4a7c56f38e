package planners

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StartTime bounds the start of a process, and of a member.
const StartTime = 20 * time.Second

// ErrNotReady means that a process did not come up.
var ErrNotReady = errors.New("it does not get ready")

// Node is one of the processes. Its methods are for one goroutine at a time,
// but for Ready and those that only look.
type Node struct {
	ID      string
	Dir     string // its data directory; its log is beside it
	Admin   string // host:port of its admin API
	Peer    string // host:port of its peer port
	Workers string // host:port where workers register

	program string
	role    string // the command that it runs
	probe   string // host:port of /readyz where that is not Admin
	environ []string
	enter   func(f func() error) error // calls f in the node's network; nil: it is this process's

	mu  sync.Mutex
	run *process // nil before the first start
}

// process is one run of a node.
type process struct {
	cmd    *exec.Cmd
	log    *os.File
	exited chan struct{}
	err    error // of Wait, once exited is closed
}

// NewNode is another process of the program than a planner: role is its command,
// settings are names of environment variables without their common beginning,
// and values. Its log is written beside dir. Ready asks probe, host:port.
func NewNode(program, role, id, dir, probe string, settings map[string]string) *Node {
	return &Node{ID: id, Dir: dir, program: program, role: role, probe: probe, environ: environ(settings)}
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

// Set gives the node another setting, from its next start on. name is an
// environment variable's without the common beginning.
func (n *Node) Set(name, value string) { n.environ = append(n.environ, "YARDMASTER_"+name+"="+value) }

// Start runs the node. ctx's end kills it.
func (n *Node) Start(ctx context.Context) error {
	log, err := os.OpenFile(n.Dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, n.program, n.role)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.environ, log, log
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	if err := n.inside(cmd.Start); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", n.ID, err), log.Close())
	}
	p := &process{cmd: cmd, log: log, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		_ = log.Close()
		close(p.exited)
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.run = p
	return nil
}

// inside calls f in the node's network.
func (n *Node) inside(f func() error) error {
	if n.enter == nil {
		return f()
	}
	return n.enter(f)
}

func (n *Node) process() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.run
}

// Exited is closed when the process has ended; it is nil before the first start.
func (n *Node) Exited() <-chan struct{} {
	if p := n.process(); p != nil {
		return p.exited
	}
	return nil
}

// Running reports whether the process runs.
func (n *Node) Running() bool {
	p := n.process()
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// PID is the process's number, 0 while it does not run.
func (n *Node) PID() int {
	if !n.Running() {
		return 0
	}
	return n.process().cmd.Process.Pid
}

// Signal sends a signal to the process. One that has ended is no error.
func (n *Node) Signal(sig syscall.Signal) {
	if p := n.process(); p != nil {
		_ = p.cmd.Process.Signal(sig)
	}
}

// Kill ends the process as a power cut would, and waits for it.
func (n *Node) Kill() {
	n.Signal(syscall.SIGKILL)
	if exited := n.Exited(); exited != nil {
		<-exited
	}
}

// Ready waits until the node says that it is, as long as it runs.
func (n *Node) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StartTime)
	defer cancel()
	for {
		status, said, err := n.get(ctx, cmp.Or(n.probe, n.Admin), "/readyz")
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-n.Exited():
			return fmt.Errorf("%s: %w: it has ended: %s", n.ID, ErrNotReady, n.lastWords(said))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %s", n.ID, ErrNotReady, n.lastWords(said))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// LastWords are the end of what the node logged.
func (n *Node) LastWords() string { return n.lastWords("") }

// lastWords are what the node logged last, or else what it answered.
func (n *Node) lastWords(said string) string {
	text, err := os.ReadFile(n.Dir + ".log")
	if err != nil || len(text) == 0 {
		return strings.TrimSpace(said)
	}
	return strings.TrimSpace(string(text[max(0, len(text)-1000):]))
}

// Get asks the node's admin API.
func (n *Node) Get(ctx context.Context, path string) (status int, body string, err error) {
	return n.get(ctx, n.Admin, path)
}

func (n *Node) get(ctx context.Context, addr, path string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Close = true // connections that were kept would be of processes that were killed
	resp, err := n.client().Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(b), err
}

// client dials in the node's network.
func (n *Node) client() *http.Client {
	if n.enter == nil {
		return http.DefaultClient
	}
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = n.enter(func() (err error) {
			var d net.Dialer
			c, err = d.DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}}
}
