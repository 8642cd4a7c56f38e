package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/identity"
)

// Voters is how many planners a cluster has.
const Voters = 3

// StartTime bounds the start of a process, and what is waited for between
// processes.
const StartTime = time.Minute

// poll is how often something is asked for that is waited for.
const poll = 20 * time.Millisecond

// Config describes a cluster.
type Config struct {
	Program  string // this program
	Dir      string // an empty folder, for all files of the cluster
	Gateways int
	Workers  int
	// Gateway holds further settings of the gateways: names of environment
	// variables without their common beginning, and values.
	Gateway map[string]string
	// Script is the script of a worker's engine. It must serve the worker's id as
	// a model too: that is how a gateway is seen to know the worker.
	Script func(worker string) string
}

// Cluster is a cluster of processes. One goroutine at a time starts and kills
// them.
type Cluster struct {
	Planners, Gateways, Workers []*Node

	cfg      Config
	controls []string // where workers register
}

// New describes a cluster and writes its files; nothing runs yet.
func New(c Config) (*Cluster, error) {
	ports, err := freePorts(3*Voters + 2*c.Gateways)
	if err != nil {
		return nil, err
	}
	token := filepath.Join(c.Dir, "token")
	if err := os.WriteFile(token, []byte(identity.NewToken()+"\n"), 0o600); err != nil {
		return nil, err
	}
	next := func() string {
		addr := "127.0.0.1:" + strconv.Itoa(ports[0])
		ports = ports[1:]
		return addr
	}
	all := &Cluster{cfg: c}
	var peers []string
	for range Voters {
		peers = append(peers, next())
	}
	member := map[string]string{"CLUSTER_JOIN": strings.Join(peers, ","), "CLUSTER_TOKEN_FILE": token}
	for i := range Voters {
		control, admin := next(), next()
		all.controls = append(all.controls, control)
		n := all.node("planner", fmt.Sprintf("planner-%d", i), member, map[string]string{
			"PLANNER_DATA_DIR": filepath.Join(c.Dir, fmt.Sprintf("planner-%d", i)), "PLANNER_LISTEN": control, "PLANNER_GATEWAY": "false",
			"GATEWAY_ADMIN": admin, "CLUSTER_PEER_LISTEN": peers[i], "CLUSTER_BOOTSTRAP_EXPECT": strconv.Itoa(Voters),
		})
		n.Admin, n.probe, n.Peer = admin, admin, peers[i]
		all.Planners = append(all.Planners, n)
	}
	for i := range c.Gateways {
		api, admin := next(), next()
		n := all.node("gateway", fmt.Sprintf("gateway-%d", i), member, c.Gateway, map[string]string{"GATEWAY_LISTEN": api, "GATEWAY_ADMIN": admin})
		n.API, n.Admin, n.probe = api, admin, api
		all.Gateways = append(all.Gateways, n)
	}
	for i := range c.Workers {
		if _, err := all.AddWorker(fmt.Sprintf("worker-%d", i)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// node is a process of the given role.
func (c *Cluster) node(role, id string, settings ...map[string]string) *Node {
	values := map[string]string{strings.ToUpper(role) + "_ID": id, "LOG_LEVEL": "warn"}
	for _, some := range settings {
		maps.Copy(values, some)
	}
	return &Node{ID: id, program: c.cfg.Program, role: role, environ: environ(values), log: filepath.Join(c.cfg.Dir, id+".log")}
}

// AddWorker describes one more worker; it does not run yet.
func (c *Cluster) AddWorker(id string) (*Node, error) {
	script := filepath.Join(c.cfg.Dir, id+".yaml")
	if err := os.WriteFile(script, []byte(c.cfg.Script(id)), 0o600); err != nil {
		return nil, err
	}
	n := c.node("worker", id, map[string]string{
		"WORKER_ENGINE": "scripted", "WORKER_SCRIPT": script, "WORKER_PLANNER": strings.Join(c.controls, ","),
	})
	c.Workers = append(c.Workers, n)
	return n, nil
}

// Start runs all and waits until each gateway knows every worker.
func (c *Cluster) Start(ctx context.Context) error {
	if err := StartAll(ctx, c.Planners...); err != nil {
		return err
	}
	for _, some := range [][]*Node{c.Gateways, c.Workers} {
		for _, n := range some {
			if err := n.Start(ctx); err != nil {
				return err
			}
		}
	}
	for _, g := range c.Gateways { // which are not before they know a worker
		if err := g.Ready(ctx); err != nil {
			return err
		}
	}
	for _, w := range c.Workers {
		if err := c.Knows(ctx, w.ID, true); err != nil {
			return fmt.Errorf("%w: %s", err, w.lastWords())
		}
	}
	return nil
}

// StartAll runs nodes at once and waits until each is ready.
func StartAll(ctx context.Context, nodes ...*Node) error {
	for _, n := range nodes {
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop kills all that run.
func (c *Cluster) Stop() {
	for _, some := range [][]*Node{c.Workers, c.Gateways, c.Planners} {
		for _, n := range some {
			n.Kill()
		}
	}
}

// Knows waits until each gateway serves the model, or until none does.
func (c *Cluster) Knows(ctx context.Context, model string, served bool) error {
	want := http.StatusOK
	if !served {
		want = http.StatusNotFound
	}
	for _, g := range c.Gateways {
		err := Eventually(ctx, func(ctx context.Context) bool {
			status, _, err := get(ctx, "http://"+g.API+"/v1/models/"+model)
			return err == nil && status == want
		})
		if err != nil {
			return fmt.Errorf("%s, model %s, served %v: %w", g.ID, model, served, err)
		}
	}
	return nil
}

// ErrNoLeader means that no planner that runs knows a leader.
var ErrNoLeader = errors.New("rig: no planner leads")

// Leaders are the ids of the planners that lead the groups core and prefix, as
// a planner knows them that runs.
func (c *Cluster) Leaders(ctx context.Context) (core, prefix string, err error) {
	for _, p := range c.Planners {
		if !p.Running() {
			continue
		}
		status, body, err := get(ctx, "http://"+p.Admin+"/admin/cluster/status")
		if err != nil || status != http.StatusOK {
			continue
		}
		var said struct {
			Leader       string `json:"leader"`
			PrefixLeader string `json:"prefix_leader"`
		}
		if json.Unmarshal([]byte(body), &said) == nil && c.runs(said.Leader) && c.runs(said.PrefixLeader) {
			return said.Leader, said.PrefixLeader, nil
		}
	}
	return "", "", ErrNoLeader
}

func (c *Cluster) runs(planner string) bool {
	n, err := c.Planner(planner)
	return err == nil && n.Running()
}

// WaitLeaders waits until planners that run lead both groups.
func (c *Cluster) WaitLeaders(ctx context.Context) (core, prefix *Node, err error) {
	err = Eventually(ctx, func(ctx context.Context) bool {
		one, other, err := c.Leaders(ctx)
		if err != nil {
			return false
		}
		core, err = c.Planner(one)
		if err != nil {
			return false
		}
		prefix, err = c.Planner(other)
		return err == nil
	})
	return core, prefix, err
}

// Planner is the planner of that id.
func (c *Cluster) Planner(id string) (*Node, error) {
	for _, n := range c.Planners {
		if n.ID == id {
			return n, nil
		}
	}
	return nil, fmt.Errorf("rig: no planner is called %q", id)
}

// Eventually waits until it is true, for StartTime at most.
func Eventually(ctx context.Context, it func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, StartTime)
	defer cancel()
	for !it(ctx) {
		if err := Pause(ctx, poll); err != nil {
			return fmt.Errorf("%w: %w", ErrNotReady, err)
		}
	}
	return nil
}

// Pause waits.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
