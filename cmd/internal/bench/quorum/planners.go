package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// voters is how many planners are measured.
const voters = 3

// startTime bounds the start of a process.
const startTime = 20 * time.Second

// ErrNotReady means that a process did not come up.
var ErrNotReady = errors.New("it does not get ready")

// node is one of the processes.
type node struct {
	id                   string
	dir                  string
	workers, peer, admin string // host:port
	environ              []string
	log                  *os.File
	cmd                  *exec.Cmd // nil while it does not run
}

// planners are a cluster.
type planners struct {
	program string
	token   string // file of the cluster token
	nodes   []*node
}

// newPlanners describes a cluster whose files are under dir; nothing runs yet.
func newPlanners(program, dir, token string) (*planners, error) {
	ports, err := freePorts(3 * voters)
	if err != nil {
		return nil, err
	}
	all := &planners{program: program, token: token}
	var peers []string
	for i := range voters {
		addr := func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[3*i+k]) }
		id := fmt.Sprintf("planner-%d", i)
		all.nodes = append(all.nodes, &node{id: id, dir: filepath.Join(dir, id), workers: addr(0), peer: addr(1), admin: addr(2)})
		peers = append(peers, addr(1))
	}
	for _, n := range all.nodes {
		n.environ = settings(map[string]string{
			"PLANNER_ID": n.id, "PLANNER_DATA_DIR": n.dir, "PLANNER_LISTEN": n.workers, "PLANNER_GATEWAY": "false",
			"GATEWAY_ADMIN": n.admin, "CLUSTER_PEER_LISTEN": n.peer, "CLUSTER_JOIN": strings.Join(peers, ","),
			"CLUSTER_BOOTSTRAP_EXPECT": fmt.Sprint(voters), "CLUSTER_TOKEN_FILE": token, "LOG_LEVEL": "warn",
		})
	}
	return all, nil
}

// settings are the environment of a process: this one's, less its settings for
// this program, and values.
func settings(values map[string]string) []string {
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

// start runs node n.
func (p *planners) start(ctx context.Context, n *node) error {
	log, err := os.OpenFile(n.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n.log = log
	cmd := exec.CommandContext(ctx, p.program, "planner")
	cmd.Env, cmd.Stdout, cmd.Stderr = n.environ, log, log
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", n.id, err), log.Close())
	}
	n.cmd = cmd
	return nil
}

// startAll runs all nodes and waits until each is ready.
func (p *planners) startAll(ctx context.Context) error {
	for _, n := range p.nodes {
		if err := p.start(ctx, n); err != nil {
			return err
		}
	}
	for _, n := range p.nodes {
		if err := n.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ready waits until the node says so.
func (n *node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		status, said, err := get(ctx, "http://"+n.admin+"/readyz")
		if err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %s", n.id, ErrNotReady, n.lastWords(said))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lastWords are what the node logged last, or else what it answered.
func (n *node) lastWords(said string) string {
	text, err := os.ReadFile(n.dir + ".log")
	if err != nil || len(text) == 0 {
		return strings.TrimSpace(said)
	}
	return strings.TrimSpace(string(text[max(0, len(text)-1000):]))
}

func get(ctx context.Context, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(b), err
}

// kill ends the node as a power cut would end the process.
func (n *node) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	_ = n.cmd.Wait()
	_ = n.log.Close()
	n.cmd = nil
}

func (p *planners) stop() {
	for _, n := range p.nodes {
		n.kill()
	}
}

// find is the node of that id.
func (p *planners) find(id string) (*node, error) {
	for _, n := range p.nodes {
		if n.id == id {
			return n, nil
		}
	}
	return nil, fmt.Errorf("quorum: no planner is called %q", id)
}
