package planners

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/raftstore/identity"
)

// Cluster is some planners.
type Cluster struct {
	Nodes []*Node
	token string // file of the cluster token
}

// New describes a cluster of count planners of this program whose files are
// under dir. Nothing runs yet.
func New(program, dir string, count int) (*Cluster, error) {
	c := &Cluster{token: filepath.Join(dir, "token")}
	if err := os.WriteFile(c.token, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		return nil, err
	}
	ports, err := FreePorts(3 * count)
	if err != nil {
		return nil, err
	}
	for i := range count {
		addr := func(k int) string { return fmt.Sprintf("127.0.0.1:%d", ports[3*i+k]) }
		id := fmt.Sprintf("planner-%d", i)
		n := &Node{ID: id, Dir: filepath.Join(dir, id), Peer: addr(0), Admin: addr(1), program: program}
		n.environ = []string{"YARDMASTER_PLANNER_LISTEN=" + addr(2)}
		c.Nodes = append(c.Nodes, n)
	}
	for _, n := range c.Nodes {
		n.environ = append(n.environ, c.settings(n)...)
	}
	return c, nil
}

// settings are the environment of a process: this one's, less its settings for
// this program, and those of the node.
func (c *Cluster) settings(n *Node) []string {
	var out []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "YARDMASTER_") {
			out = append(out, entry)
		}
	}
	for name, value := range map[string]string{
		"PLANNER_ID": n.ID, "PLANNER_DATA_DIR": n.Dir, "PLANNER_GATEWAY": "false", "GATEWAY_ADMIN": n.Admin,
		"CLUSTER_PEER_LISTEN": n.Peer, "CLUSTER_JOIN": strings.Join(c.Peers(), ","),
		"CLUSTER_BOOTSTRAP_EXPECT": strconv.Itoa(len(c.Nodes)), "CLUSTER_TOKEN_FILE": c.token, "LOG_LEVEL": "warn",
	} {
		out = append(out, "YARDMASTER_"+name+"="+value)
	}
	return out
}

// Peers are the addresses of the peer ports.
func (c *Cluster) Peers() (out []string) {
	for _, n := range c.Nodes {
		out = append(out, n.Peer)
	}
	return out
}

// Start runs all nodes and waits until each is ready. ctx's end kills them.
func (c *Cluster) Start(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	return c.Ready(ctx)
}

// Ready waits until each node is.
func (c *Cluster) Ready(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop kills all nodes.
func (c *Cluster) Stop() {
	for _, n := range c.Nodes {
		n.Kill()
	}
}

// Find is the node of that id.
func (c *Cluster) Find(id string) (*Node, error) {
	for _, n := range c.Nodes {
		if n.ID == id {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no planner is called %q", id)
}

// FreePorts finds n ports of the loopback address that nobody listens on now.
func FreePorts(n int) ([]int, error) {
	var held []net.Listener
	defer func() {
		for _, ln := range held {
			_ = ln.Close() // it has served its purpose
		}
	}()
	var ports []int
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it asks nobody
		if err != nil {
			return nil, err
		}
		held = append(held, ln)
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // of a TCP listener
	}
	return ports, nil
}
