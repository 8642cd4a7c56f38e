package planners

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/yardmaster/yardmaster/raftstore/identity"
)

// Cluster is some planners.
type Cluster struct {
	Nodes []*Node
	token string // file of the cluster token
	host  string // this process's address, as the planners see it
}

// Place is a network that a planner is in.
type Place struct {
	Host  string                     // IP address there, for its peers
	Enter func(f func() error) error // calls f in that network; nil: it is this process's
}

// loopbackHost is where clusters are that need no network.
const loopbackHost = "127.0.0.1"

// New describes a cluster of count planners of this program whose files are
// under dir. Nothing runs yet.
func New(program, dir string, count int) (*Cluster, error) {
	places := make([]Place, count)
	for i := range places {
		places[i].Host = loopbackHost
	}
	return NewAt(program, dir, loopbackHost, places)
}

// NewAt is New for a planner at each of the places. This process, and so its
// members, are at host.
func NewAt(program, dir, host string, places []Place) (*Cluster, error) {
	c := &Cluster{token: filepath.Join(dir, "token"), host: host}
	if err := os.WriteFile(c.token, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		return nil, err
	}
	ports, err := FreePorts(3 * len(places))
	if err != nil {
		return nil, err
	}
	for i, place := range places {
		addr := func(host string, k int) string { return net.JoinHostPort(host, strconv.Itoa(ports[3*i+k])) }
		id := fmt.Sprintf("planner-%d", i)
		c.Nodes = append(c.Nodes, &Node{
			ID: id, Dir: filepath.Join(dir, id), Peer: addr(place.Host, 0), Admin: addr(loopbackHost, 1), Workers: addr(loopbackHost, 2),
			program: program, role: "planner", enter: place.Enter,
		})
	}
	for _, n := range c.Nodes {
		n.environ = environ(c.settings(n))
	}
	return c, nil
}

// settings are those of a planner.
func (c *Cluster) settings(n *Node) map[string]string {
	return map[string]string{
		"PLANNER_ID": n.ID, "PLANNER_DATA_DIR": n.Dir, "PLANNER_LISTEN": n.Workers, "PLANNER_GATEWAY": "false", "GATEWAY_ADMIN": n.Admin,
		"CLUSTER_PEER_LISTEN": n.Peer, "CLUSTER_JOIN": strings.Join(c.Peers(), ","),
		"CLUSTER_BOOTSTRAP_EXPECT": strconv.Itoa(len(c.Nodes)), "CLUSTER_TOKEN_FILE": c.token, "LOG_LEVEL": "warn",
	}
}

// Token is the file of the cluster's token.
func (c *Cluster) Token() string { return c.token }

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

// Ready waits until each node is. The error names all that are not: most wait for
// one that has ended.
func (c *Cluster) Ready(ctx context.Context) error {
	faults := make([]error, len(c.Nodes))
	var all sync.WaitGroup
	for i, n := range c.Nodes {
		all.Go(func() { faults[i] = n.Ready(ctx) })
	}
	all.Wait()
	return errors.Join(faults...)
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

// The ports that are given out lie below those that systems give to clients,
// which would take those of a node that is down.
const firstPort, lastPort = 12000, 30000

// given are the ports that were given out: whose they are may be down for a while.
var given sync.Map

// FreePorts finds n ports of the loopback address that nobody listens on now. It
// gives out none twice.
func FreePorts(n int) ([]int, error) {
	var held []net.Listener
	defer func() {
		for _, ln := range held {
			_ = ln.Close() // it has served its purpose
		}
	}()
	var ports []int
	for range 100 * n {
		if len(ports) == n {
			break
		}
		port := firstPort + rand.IntN(lastPort-firstPort)                                //nolint:gosec // any will do
		ln, err := net.Listen("tcp", net.JoinHostPort(loopbackHost, strconv.Itoa(port))) //nolint:noctx // it asks nobody
		if err != nil {
			continue
		}
		held = append(held, ln)
		if _, taken := given.LoadOrStore(port, true); !taken {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("%d free ports: %w", n, syscall.EADDRINUSE)
	}
	return ports, nil
}
