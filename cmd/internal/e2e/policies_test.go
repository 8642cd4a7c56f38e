package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/server/admin"
)

// governed is a cluster whose routers follow policies, with a client at its gateway that
// never stops asking.
type governed struct {
	*rig.Cluster
	dir    string
	client *http.Client

	stop     context.CancelFunc
	wait     sync.WaitGroup
	answered atomic.Int64
	mu       sync.Mutex
	faults   []string
}

func startGoverned(t *testing.T) *governed {
	t.Helper()
	dir := t.TempDir()
	all, err := rig.New(rig.Config{
		Program: binary, Dir: dir, Gateways: 2, Workers: 2, Admin: true,
		Script:  func(w string) string { return fmt.Sprintf("engine: {model: m, adapters: [%s]}\n", w) },
		Gateway: map[string]string{"GATEWAY_TOKENIZER": "m=scripted", "GATEWAY_DISAGGREGATE": "never"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all.Planners.Nodes {
		n.Set("POLICY_ALLOW_UNSIGNED", "true")
	}
	g := &governed{Cluster: all, dir: dir, client: &http.Client{Timeout: 20 * time.Second}}
	t.Cleanup(all.Stop)
	late := g.Gateways[1]
	g.Gateways = g.Gateways[:1] // the other one is started later
	ctx := context.WithoutCancel(t.Context())
	if err := g.Start(ctx); err != nil {
		t.Fatal(err)
	}
	g.Gateways = append(g.Gateways, late)
	ctx, g.stop = context.WithCancel(ctx)
	g.wait.Go(func() { g.keepAsking(ctx) })
	t.Cleanup(func() {
		g.stop()
		g.wait.Wait()
		g.client.CloseIdleConnections()
	})
	return g
}

// keepAsking sends requests until ctx ends, and remembers those that failed.
func (g *governed) keepAsking(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := g.ask(0); err != nil {
			g.mu.Lock()
			g.faults = append(g.faults, err.Error())
			g.mu.Unlock()
		} else {
			g.answered.Add(1)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ask sends one request to a gateway and returns how it was placed.
func (g *governed) ask(gateway int) (placement string, err error) {
	r, err := http.NewRequest(http.MethodPost, "http://"+g.APIs[gateway]+"/v1/completions", strings.NewReader(`{"model":"m","max_tokens":1,"prompt":"Hello!"}`)) //nolint:noctx // the client has a timeout
	if err != nil {
		return "", err
	}
	r.Header.Set("x-yardmaster-explain", "1")
	resp, err := g.client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return resp.Header.Get("x-yardmaster-path"), err
}

// operate runs `yardmaster policy ARGS` at a node.
func operate(ctx context.Context, n *planners.Node, args ...string) (said string, err error) {
	c := exec.CommandContext(ctx, binary, append(append([]string{"policy"}, args...), "--admin", n.Admin)...)
	out, err := c.CombinedOutput()
	return string(out), err
}

func mustOperate(t *testing.T, n *planners.Node, args ...string) string {
	t.Helper()
	said, err := operate(t.Context(), n, args...)
	if err != nil {
		t.Fatalf("policy %v at %s: %v\n%s", args, n.ID, err, said)
	}
	return said
}

// guest writes one of guests into a file.
func (g *governed) guest(t *testing.T, kind, name, version string) (path string) {
	t.Helper()
	p := guests()[kind]
	p.Name, p.Version = name, version
	path = filepath.Join(g.dir, name+version+".wasm")
	if err := os.WriteFile(path, p.Build(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// policies is what a node says of them.
func policies(t *testing.T, n *planners.Node) (l admin.PolicyList, err error) {
	t.Helper()
	status, body, err := n.Get(t.Context(), "/admin/policies")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal([]byte(body), &l)
}

// follows waits until a node decides by what was bound last, with everything ready.
func follows(t *testing.T, n *planners.Node, policy string) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Logf("%s: %s", n.ID, last)
		}
	}()
	eventually(t, n.ID+" follows "+policy, func() bool {
		l, err := policies(t, n)
		last = fmt.Sprintf("%+v, %v", l, err)
		if err != nil || len(l.Bindings) == 0 {
			return false
		}
		b := l.Bindings[len(l.Bindings)-1]
		return len(b.Active) == 1 && b.Active[0].Policy == policy && l.Here.Index >= b.Index && len(l.Here.NotReady) == 0
	})
}

// Policies on three planners and two gateways: what is pushed to one decides on all,
// survives planners that are killed while it is pushed, and comes to nodes that start
// later. No request fails meanwhile.
func TestPoliciesOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts seven processes")
	}
	g := startGoverned(t)
	nodes := g.Planners.Nodes

	mustOperate(t, nodes[0], "push", g.guest(t, "least", "blue", "1"), "--unsigned")
	mustOperate(t, nodes[1], "promote", "blue")
	for _, n := range append([]*planners.Node{g.Gateways[0]}, nodes...) {
		follows(t, n, "blue@1")
	}
	placed := func(gateway int, policy string) {
		t.Helper()
		if placement, err := g.ask(gateway); err != nil || !strings.Contains(placement, "policy="+policy+"; policy-index=") {
			t.Errorf("gateway %d: %q, %v", gateway, placement, err)
		}
	}
	placed(0, "blue@1")

	// The planner that is asked dies in the middle, and then the leader does. Whoever
	// pushed tries again, at another one.
	for i, delay := range []time.Duration{20 * time.Millisecond, 60 * time.Millisecond} {
		file, version := g.guest(t, "most", "blue", strconv.Itoa(i+2)), fmt.Sprintf("blue@%d", i+2)
		victim := nodes[i]
		if i > 0 {
			eventually(t, "a planner leads", func() bool {
				core, _, err := g.Leaders(t.Context())
				victim = core
				return err == nil
			})
		}
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			time.Sleep(delay)
			victim.Kill()
		}()
		said, err := operate(t.Context(), nodes[i], "push", file, "--unsigned")
		<-killed
		t.Logf("%s is killed after %v: %v\n%s", victim.ID, delay, err, lastLine(said))
		other := nodes[0]
		if other == victim {
			other = nodes[1]
		}
		eventually(t, "it is pushed to another one", func() bool {
			said, err = operate(t.Context(), other, "push", file, "--unsigned")
			return err == nil
		})
		eventually(t, "it is promoted", func() bool {
			_, err := operate(t.Context(), other, "promote", version)
			return err == nil
		})
		follows(t, g.Gateways[0], version)
		placed(0, version)
		if err := victim.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		if err := victim.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		follows(t, victim, version)
	}

	// A gateway that is started later fetches what decides.
	if err := rig.StartAll(context.WithoutCancel(t.Context()), g.Gateways[1]); err != nil {
		t.Fatal(err)
	}
	follows(t, g.Gateways[1], "blue@3")
	placed(1, "blue@3")

	g.stop()
	g.wait.Wait()
	if len(g.faults) > 0 || g.answered.Load() < 20 {
		t.Errorf("%d answered, %d failed: %.2000s", g.answered.Load(), len(g.faults), strings.Join(g.faults, "\n"))
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
