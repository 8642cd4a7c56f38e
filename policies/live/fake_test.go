package live_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/live"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a fake one.
type cluster struct {
	mu          sync.Mutex
	table       *rollout.Table
	index       uint64
	changed     chan struct{}
	blobs       map[rollout.Digest][]byte
	leading     bool
	quarantines []string
	refuse      error // of Quarantine
	unready     error // of Ready
	writes      int
	history     map[uint64]string // index → what was active then
}

func newCluster() *cluster {
	return &cluster{table: &rollout.Table{}, changed: make(chan struct{}), blobs: map[rollout.Digest][]byte{}, history: map[uint64]string{}}
}

func (c *cluster) Rollout() *rollout.Table {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.table
}

func (c *cluster) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unready
}

func (c *cluster) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *cluster) Leading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leading
}

func (c *cluster) Blob(_ context.Context, d rollout.Digest) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.blobs[d]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no blob %s", d.Short())
}

// edit changes the table at the next index.
func (c *cluster) edit(f func(t *rollout.Table, index uint64) (*rollout.Table, error)) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := f(c.table, c.index+1)
	if err != nil {
		return 0, err
	}
	c.index++
	c.table = next
	close(c.changed)
	c.changed = make(chan struct{})
	if b, ok := next.Binding(rollout.Router, ""); ok && b.Index == c.index && !b.Active.Empty() {
		c.history[c.index] = b.Active.Parts[0].Version.String()
	}
	return c.index, nil
}

func (c *cluster) Quarantine(_ context.Context, d rollout.Digest, reason string) error {
	c.mu.Lock()
	c.quarantines = append(c.quarantines, reason)
	refuse := c.refuse
	c.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	_, err := c.edit(func(t *rollout.Table, i uint64) (*rollout.Table, error) { return t.Quarantine(d, reason, i) })
	return err
}

func (c *cluster) WriteState(_ context.Context, policy string, writes []rollout.Write) error {
	_, err := c.edit(func(t *rollout.Table, i uint64) (*rollout.Table, error) { return t.WriteState(policy, writes, i) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	return err
}

// put uploads a module.
func (c *cluster) put(t testing.TB, name, release string, kind rollout.Kind, wasm []byte) rollout.Digest {
	t.Helper()
	d := rollout.DigestOf(wasm)
	c.mu.Lock()
	c.blobs[d] = wasm
	c.mu.Unlock()
	closed := bytes.Contains(wasm, []byte(`"fail":"closed"`))
	c.must(t, func(table *rollout.Table, i uint64) (*rollout.Table, error) {
		return table.Put(rollout.Version{Policy: name, Release: release, Kind: kind, Digest: d, Size: int64(len(wasm)), FailClosed: closed}, i)
	})
	return d
}

func (c *cluster) must(t testing.TB, f func(*rollout.Table, uint64) (*rollout.Table, error)) uint64 {
	t.Helper()
	index, err := c.edit(f)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func (c *cluster) change(t testing.TB, change rollout.Change) uint64 {
	t.Helper()
	if change.Kind == "" {
		change.Kind = rollout.Router
	}
	return c.must(t, func(table *rollout.Table, i uint64) (*rollout.Table, error) { return table.Change(change, i) })
}

func (c *cluster) promote(t testing.TB, stage rollout.Stage) uint64 {
	t.Helper()
	return c.change(t, rollout.Change{Verb: rollout.VerbPromote, Stage: stage})
}

func only(name string, d rollout.Digest, params ...rollout.Param) rollout.Stage {
	return rollout.Stage{Parts: []rollout.Part{rollout.NewPart(name, d, 1, params...)}}
}

// The places of the test router's buffers, for 256 rows.
const (
	rows    = 256
	header  = 1024
	block   = 2048
	paramAt = 2304
	columnA = 65536
	scores  = columnA + 4*rows
)

// each is a router that gives candidate i (local 1) the score that code leaves.
func each(code string) string {
	return `loop local.get 1 i32.const 4 i32.mul ` + code + ` f32.store 66560
	local.get 1 i32.const 1 i32.add local.tee 1 local.get 0 i32.lt_u br_if 0 end i32.const 0`
}

// Scores: the first candidate is the best, or the last.
const (
	first = `local.get 1 f32.convert_i32_u`
	last  = `local.get 1 f32.convert_i32_u f32.neg`
	// turned is like last if the param is above 0.
	turned = `local.get 1 f32.convert_i32_u i32.const 0 f64.load 2304 f32.demote_f64 f32.mul f32.neg`
)

// Scores that fail.
const (
	endless = `loop br 0 end i32.const 0`
	traps   = `unreachable`
)

func wasmRouter(name, release, code string) []byte {
	m := wattest.New()
	m.Import(abi.ImportModule, "log", "i32 i32 i32 ->")
	m.Import(abi.ImportModule, "counter_add", "i32 i64 ->")
	m.Import(abi.ImportModule, "hist_observe", "i32 f64 ->")
	m.Import(abi.ImportModule, "kv_add", "i32 i32 i32 i64 -> i64")
	m.Import(abi.ImportModule, "rand_u64", "-> i64")
	m.Memory(2, 2)
	m.Export("memory", module.KindMemory, 0)
	m.Export("ym_abi_1", module.KindFunc, m.Func("->", "", ""))
	m.Export("ym_layout", module.KindFunc, m.Func("-> i32", "", "i32.const 1024"))
	m.Export("ym_configure", module.KindFunc, m.Func("i32 -> i32", "", "i32.const 0"))
	m.Export("ym_score", module.KindFunc, m.Func("i32 -> i32", "i32", code))
	words := []uint32{0x314c4d59, 1 << 16, 12, rows, block, abi.RouterRequestSize, paramAt, 8, 1, 1, columnA, scores}
	return finish(m, words, `{"abi":"1.0","kind":"router","name":"`+name+`","version":"`+release+`",
		"columns":[{"name":"requests"}],"params":[{"name":"turn","type":"float","default":1}],
		"capabilities":["log","metrics","state","random"],"counters":[{"name":"calls"}],
		"histograms":[{"name":"depth","buckets":[1,2]}]}`)
}

// wasmObserver adds the number of rows to a replicated number, and to a local one.
func wasmObserver(name, release string) []byte {
	m := wattest.New()
	m.Import(abi.ImportModule, "kv_add", "i32 i32 i32 i64 -> i64")
	m.Memory(2, 2)
	m.Export("memory", module.KindMemory, 0)
	m.Export("ym_abi_1", module.KindFunc, m.Func("->", "", ""))
	m.Export("ym_layout", module.KindFunc, m.Func("-> i32", "", "i32.const 1024"))
	m.Export("ym_configure", module.KindFunc, m.Func("i32 -> i32", "", "i32.const 0"))
	m.Export("ym_observe", module.KindFunc, m.Func("i32 -> i32", "", `i32.const 1 i32.const 64 i32.const 4 local.get 0 i64.extend_i32_u call 0 drop i32.const 0`))
	words := []uint32{0x314c4d59, 1 << 16, 11, rows, block, abi.OutcomesRequestSize, paramAt, 0, 1, 0, columnA}
	return finish(m, words, `{"abi":"1.0","kind":"observer","name":"`+name+`","version":"`+release+`","columns":[{"name":"prompt_tokens"}],"capabilities":["state"]}`)
}

func finish(m *wattest.Module, words []uint32, manifest string) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	m.Data(header, string(b))
	m.Data(64, "seen")
	m.Before(255, wattest.Custom(abi.Section, manifest)...)
	return m.Bytes()
}

// rig is a node with a router that asks it.
type rig struct {
	t        testing.TB
	cluster  *cluster
	node     *live.Node
	registry *measure.Registry
	log      *lines
	table    *load.Table
	view     *fleet.View
	router   *route.Router
}

// lines is a log that is kept.
type lines struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

var _ io.Writer = (*lines)(nil)

func newRig(t testing.TB, c *cluster, cfg live.Config) *rig {
	t.Helper()
	return newRigWith(t, c, cfg, nil)
}

func newRigWith(t testing.TB, c *cluster, cfg live.Config, warm func(context.Context, []byte) error) *rig {
	t.Helper()
	r := &rig{t: t, cluster: c, registry: &measure.Registry{}, log: &lines{}}
	var err error
	r.node, err = live.Start(t.Context(), cfg, live.Deps{
		Cluster: c, Warm: warm, Registry: r.registry, Clock: clock.Real{}, Log: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.node.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	var workers []fleet.Worker
	for i := range 4 {
		workers = append(workers, fleet.Worker{ID: fleet.WorkerID(fmt.Sprintf("w%d", i)), Epoch: 1, Role: fleet.RoleBoth, Models: []string{"m"}})
	}
	r.table, r.view = load.NewTable(&measure.Registry{}), fleet.NewView(1, workers)
	r.router = r.newRouter()
	return r
}

func (r *rig) newRouter() *route.Router {
	return route.New(route.Config{Policy: route.RoundRobin{}, Chooser: r.node, Mode: route.Never, Seed: 1})
}

func (r *rig) await(index uint64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := r.node.Await(ctx, index); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) decide(q route.Query) route.Decision {
	r.t.Helper()
	q.Model, q.Now = "m", time.Now()
	d, err := r.router.Decide(&q, r.table.Columns(r.view), nil, route.Caches{})
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// count is the value of a series whose labels are all there.
func (r *rig) count(d measure.Desc, labels ...string) float64 {
	return r.registry.Counter(d, labels...).Value()
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("in vain: %s", what)
}
