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

	"github.com/yardmaster/yardmaster/cmd/internal/planners"
)

// Voters is how many planners a cluster has.
const Voters = 3

// poll is how often something is asked for that is waited for.
const poll = 20 * time.Millisecond

// Config describes a cluster.
type Config struct {
	Program  string // this program
	Dir      string // an empty folder, for all files of the cluster
	Gateways int
	Workers  int
	Admin    bool // the gateways have an admin API
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
	Planners          *planners.Cluster
	Gateways, Workers []*planners.Node
	// APIs are the addresses of the gateways' clients, in their order.
	APIs []string

	cfg Config
}

// New describes a cluster and writes its files; nothing runs yet.
func New(c Config) (*Cluster, error) {
	voters, err := planners.New(c.Program, c.Dir, Voters)
	if err != nil {
		return nil, err
	}
	all := &Cluster{Planners: voters, cfg: c}
	ports, err := planners.FreePorts(2 * c.Gateways)
	if err != nil {
		return nil, err
	}
	for i := range c.Gateways {
		api, operated := "127.0.0.1:"+strconv.Itoa(ports[2*i]), ""
		if c.Admin {
			operated = "127.0.0.1:" + strconv.Itoa(ports[2*i+1])
		}
		all.APIs = append(all.APIs, api)
		settings := map[string]string{
			"CLUSTER_JOIN": strings.Join(voters.Peers(), ","), "CLUSTER_TOKEN_FILE": voters.Token(), "GATEWAY_LISTEN": api, "GATEWAY_ADMIN": operated,
		}
		maps.Copy(settings, c.Gateway)
		n := all.node("gateway", fmt.Sprintf("gateway-%d", i), api, settings)
		n.Admin = operated
		all.Gateways = append(all.Gateways, n)
	}
	for i := range c.Workers {
		if _, err := all.AddWorker(fmt.Sprintf("worker-%d", i)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (c *Cluster) node(role, id, probe string, settings map[string]string) *planners.Node {
	settings[strings.ToUpper(role)+"_ID"], settings["LOG_LEVEL"] = id, "warn"
	return planners.NewNode(c.cfg.Program, role, id, filepath.Join(c.cfg.Dir, id), probe, settings)
}

// AddWorker describes one more worker; it does not run yet.
func (c *Cluster) AddWorker(id string) (*planners.Node, error) {
	script := filepath.Join(c.cfg.Dir, id+".yaml")
	if err := os.WriteFile(script, []byte(c.cfg.Script(id)), 0o600); err != nil {
		return nil, err
	}
	var control []string
	for _, p := range c.Planners.Nodes {
		control = append(control, p.Workers)
	}
	n := c.node("worker", id, "", map[string]string{
		"WORKER_ENGINE": "scripted", "WORKER_SCRIPT": script, "WORKER_PLANNER": strings.Join(control, ","),
	})
	c.Workers = append(c.Workers, n)
	return n, nil
}

// Start runs all and waits until each gateway knows every worker.
func (c *Cluster) Start(ctx context.Context) error {
	if err := c.Planners.Start(ctx); err != nil {
		return err
	}
	for _, some := range [][]*planners.Node{c.Gateways, c.Workers} {
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
			return fmt.Errorf("%w: %s", err, w.LastWords())
		}
	}
	return nil
}

// StartAll runs nodes at once and waits until each is ready.
func StartAll(ctx context.Context, nodes ...*planners.Node) error {
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
	for _, some := range [][]*planners.Node{c.Workers, c.Gateways, c.Planners.Nodes} {
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
	for i, g := range c.Gateways {
		err := eventually(ctx, func(ctx context.Context) bool {
			status, err := ask(ctx, "http://"+c.APIs[i]+"/v1/models/"+model)
			return err == nil && status == want
		})
		if err != nil {
			return fmt.Errorf("%s, model %s, served %v: %w", g.ID, model, served, err)
		}
	}
	return nil
}

func ask(ctx context.Context, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Close = true // connections that were kept would be of processes that were killed
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// ErrNoLeader means that no planner that runs knows leaders that run.
var ErrNoLeader = errors.New("no planner leads")

// Leaders are the planners that lead the groups core and prefix, as a planner
// knows them that runs.
func (c *Cluster) Leaders(ctx context.Context) (core, prefix *planners.Node, err error) {
	for _, p := range c.Planners.Nodes {
		if !p.Running() {
			continue
		}
		status, body, err := p.Get(ctx, "/admin/cluster/status")
		if err != nil || status != http.StatusOK {
			continue
		}
		var said struct {
			Leader       string `json:"leader"`
			PrefixLeader string `json:"prefix_leader"`
		}
		if json.Unmarshal([]byte(body), &said) != nil {
			continue
		}
		core, prefix := c.running(said.Leader), c.running(said.PrefixLeader)
		if core != nil && prefix != nil {
			return core, prefix, nil
		}
	}
	return nil, nil, ErrNoLeader
}

// running is the planner of that id if it runs, else nil.
func (c *Cluster) running(id string) *planners.Node {
	n, err := c.Planners.Find(id)
	if err != nil || !n.Running() {
		return nil
	}
	return n
}

// WaitLeaders waits until planners that run lead both groups.
func (c *Cluster) WaitLeaders(ctx context.Context) (core, prefix *planners.Node, err error) {
	err = eventually(ctx, func(ctx context.Context) bool {
		var fault error
		core, prefix, fault = c.Leaders(ctx)
		return fault == nil
	})
	return core, prefix, err
}

// waitTime bounds what is waited for between processes. The longest is the end of
// a dead worker under a new leader, which gives all a grace.
const waitTime = time.Minute

// eventually waits until it is true.
func eventually(ctx context.Context, it func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	for !it(ctx) {
		if err := Pause(ctx, poll); err != nil {
			return fmt.Errorf("%w: %w", planners.ErrNotReady, err)
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
