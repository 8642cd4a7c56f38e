package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/server/admin"
)

// fleet is a cluster and its operator.
type fleet struct {
	*rig.Cluster
	http *http.Client
	asks int
	// history is which policy each index bound.
	history map[uint64]string
	// ended is when the binding of an index was known to be superseded: when the answer
	// to the next change came.
	mu    sync.Mutex
	last  uint64
	ended map[uint64]time.Time
}

func newFleet(c *rig.Cluster) *fleet {
	return &fleet{Cluster: c, http: &http.Client{Timeout: 2 * time.Minute}, history: map[uint64]string{}, ended: map[uint64]time.Time{}}
}

// nodes are all that follow bindings.
func (f *fleet) nodes() []*planners.Node {
	return append(append([]*planners.Node{}, f.Planners.Nodes...), f.Gateways...)
}

// ErrRefused means that a node refused what the operator asked.
var ErrRefused = errors.New("rollout: refused")

// maxAnswer bounds an answer.
const maxAnswer = 4 << 20

// call asks a node's admin API and decodes the answer.
func (f *fleet) call(ctx context.Context, n *planners.Node, method, path string, body []byte, into any) error {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+n.Admin+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set(admin.Intent, "1")
	resp, err := f.http.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%w: %s %s at %s: status %d: %.600s", ErrRefused, method, path, n.ID, resp.StatusCode, said)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(said, into)
}

// asked is the planner that is asked next: one after the other.
func (f *fleet) asked() *planners.Node {
	f.asks++
	return f.Planners.Nodes[f.asks%len(f.Planners.Nodes)]
}

// push uploads a module.
func (f *fleet) push(ctx context.Context, module []byte) error {
	return f.call(ctx, f.asked(), http.MethodPost, "/admin/policies", module, nil)
}

// change moves the binding of routers and notes what is bound now. index is that of the
// binding.
func (f *fleet) change(ctx context.Context, verb string, parts ...admin.PolicyPartWant) (index uint64, err error) {
	body, err := json.Marshal(admin.PolicyChange{Verb: verb, Kind: "router", Parts: parts})
	if err != nil {
		return 0, err
	}
	var now admin.PolicyBinding
	if err := f.call(ctx, f.asked(), http.MethodPost, "/admin/bindings", body, &now); err != nil {
		return 0, err
	}
	var names []string
	for _, p := range now.Active {
		names = append(names, p.Policy)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.history[now.Index] = strings.Join(names, ",")
	f.ended[f.last], f.last = time.Now(), now.Index
	return now.Index, nil
}

// superseded is for how long a binding was known to be over at a moment; 0 while it
// was not.
func (f *fleet) superseded(index uint64, at time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	end, over := f.ended[index]
	if !over {
		return 0
	}
	return max(at.Sub(end), 0)
}

// settleTime bounds how long nodes may take to follow.
const settleTime = time.Minute

// follow waits until every node decides by the binding of that index.
func (f *fleet) follow(ctx context.Context, index uint64) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	nodes := f.nodes()
	errs := make([]error, len(nodes))
	var wait sync.WaitGroup
	for i, n := range nodes {
		wait.Go(func() { errs[i] = f.followed(ctx, n, index) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

func (f *fleet) followed(ctx context.Context, n *planners.Node, index uint64) error {
	var l admin.PolicyList
	for {
		if err := f.call(ctx, n, http.MethodGet, "/admin/policies", nil, &l); err != nil {
			return err
		}
		if l.Here.Index >= index {
			return nil
		}
		if err := rig.Pause(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("%s decides by index %d, not %d: %s: %w", n.ID, l.Here.Index, index, l.Here.Behind, err)
		}
	}
}
