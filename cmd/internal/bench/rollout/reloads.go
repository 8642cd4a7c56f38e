package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/bench/policy"
	"github.com/yardmaster/yardmaster/cmd/internal/bench/rig"
	"github.com/yardmaster/yardmaster/cmd/internal/planners"
	"github.com/yardmaster/yardmaster/server/admin"
)

// Reloads is what many versions, one after the other, do to the memory of the nodes:
// each is pushed, compiled and loaded by every node, bound, and deleted when its
// successor decides.
type Reloads struct {
	Count    int     `json:"count"`
	Seconds  float64 `json:"seconds"`
	Nodes    []RSS   `json:"nodes"`
	GrowthMB float64 `json:"growth_mib"` // of the node that grew most, over the second half of the reloads
	Share    float64 `json:"growth"`     // of what the node had
}

// RSS is the resident memory of a node, in bytes.
type RSS struct {
	Node  string `json:"node"`
	Start int64  `json:"start_bytes"` // before the first reload
	Half  int64  `json:"half_bytes"`  // after half of them: the log's window and the heap have filled
	End   int64  `json:"end_bytes"`
}

// flat is how much a node may grow by chance: its share, and at least so many bytes,
// for collections come when they come.
const (
	flatShare = 0.10
	flatBytes = 8 << 20
)

func (b *bench) reloads(ctx context.Context) error {
	r := &Reloads{Count: b.Reloads}
	b.result.Reloads = r
	if err := b.measured(ctx, r, func(n *RSS, v int64) { n.Start = v }); err != nil {
		return err
	}
	b.say(fmt.Sprintf("%d versions, one after the other", b.Reloads))
	began, before := time.Now(), ""
	for i := range b.Reloads {
		if i == b.Reloads/2 {
			if err := b.measured(ctx, r, func(n *RSS, v int64) { n.Half = v }); err != nil {
				return err
			}
		}
		ref, err := b.reload(ctx, before)
		if err != nil {
			return fmt.Errorf("after %d: %w", i, err)
		}
		before = ref
	}
	r.Seconds = time.Since(began).Seconds()
	if err := b.measured(ctx, r, func(n *RSS, v int64) { n.End = v }); err != nil {
		return err
	}
	excess := 0.0
	for _, n := range r.Nodes {
		grown := float64(n.End - n.Half)
		if share := grown / float64(n.Half); share > r.Share {
			r.GrowthMB, r.Share = grown/(1<<20), share
		}
		excess = max(excess, grown-max(flatShare*float64(n.Half), flatBytes))
	}
	b.most("bytes by which a node grew more than a tenth over the second half of the reloads", excess, 0)
	return nil
}

// reload pushes and binds another version, waits until every node decides by it, and
// deletes the one before.
func (b *bench) reload(ctx context.Context, before string) (ref string, err error) {
	module, ref, err := b.version(policy.Scorer(), smallBytes)
	if err != nil {
		return "", err
	}
	if err := b.fleet.push(ctx, module); err != nil {
		return "", err
	}
	index, err := b.fleet.change(ctx, "promote", admin.PolicyPartWant{Policy: ref})
	if err != nil {
		return "", err
	}
	if err := b.fleet.follow(ctx, index); err != nil {
		return "", err
	}
	if before == "" {
		return ref, nil
	}
	return ref, b.fleet.call(ctx, b.fleet.asked(), http.MethodDelete, "/admin/policies/"+before, nil, nil)
}

// samples are taken of each node's memory, of which the least counts: what a collection
// is about to free is not the node's.
const samples = 8

// measured notes the memory of every node.
func (b *bench) measured(ctx context.Context, r *Reloads, note func(*RSS, int64)) error {
	nodes := b.fleet.nodes()
	least := slices.Repeat([]int64{math.MaxInt64}, len(nodes))
	for range samples {
		for i, n := range nodes {
			v, err := residentBytes(n)
			if err != nil {
				return err
			}
			least[i] = min(least[i], v)
		}
		if err := rig.Pause(ctx, b.Rest); err != nil {
			return err
		}
	}
	for i, n := range nodes {
		if len(r.Nodes) <= i {
			r.Nodes = append(r.Nodes, RSS{Node: n.ID})
		}
		note(&r.Nodes[i], least[i])
	}
	return nil
}

// ErrNoMemory means that the system does not tell how much memory a process has.
var ErrNoMemory = errors.New("rollout: the memory of a process is not known here")

// residentBytes is what a node has in memory.
func residentBytes(n *planners.Node) (int64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(n.PID()) + "/status")
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", ErrNoMemory, n.ID, err)
	}
	for line := range bytes.Lines(text) {
		if kib, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			v, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(kib), []byte("kB")))), 10, 64)
			return v << 10, err
		}
	}
	return 0, ErrNoMemory
}

// quantile is the value below which the share q lies; 0 when there are none. It sorts v.
func quantile(v []time.Duration, q float64) time.Duration {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}
