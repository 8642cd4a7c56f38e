package assemble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/gpu/collect"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
	"github.com/yardmaster/yardmaster/gpu/cpu/batch/batchtest"
	"github.com/yardmaster/yardmaster/gpu/cpu/kv"
)

// cacheHost is a CPU engine that computes nothing, as a worker.
type cacheHost struct{ engine *batch.Engine }

const cacheBlock = 4

func (h *cacheHost) describe(w *fleet.Worker) {
	w.URL, w.Transfer, w.Models = "http://127.0.0.1:1", "127.0.0.1:1", []string{"m"}
	w.Capacity = fleet.Capacity{KVBlocks: unit.Blocks(h.engine.Options().KVBlocks), BlockTokens: cacheBlock}
}
func (h *cacheHost) epoch(fleet.Epoch)           {}
func (h *cacheHost) stats() fleet.Stats          { return fleet.Stats{} }
func (h *cacheHost) drain(context.Context) error { return nil }
func (h *cacheHost) close(ctx context.Context) error {
	return h.engine.Close(ctx)
}

func (h *cacheHost) sources() []collect.Source {
	return []collect.Source{collect.CPU{Cache: h.engine.Cache()}}
}

// compute sends a prompt through the engine.
func (h *cacheHost) compute(ctx context.Context, salt string, prompt []int32) error {
	s, err := h.engine.Submit(ctx, &batch.Request{Prompt: prompt, MaxTokens: 6, Salt: salt})
	for err == nil {
		_, err = s.Recv(ctx)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// truth is what the engine's cache holds, by the index's names.
func (h *cacheHost) truth() []prefix.Hash {
	_, dump := h.engine.Cache().Dump()
	names := map[kv.Hash]prefix.Hash{}
	var out []prefix.Hash
	for _, e := range dump {
		parent := names[e.Parent]
		if e.First {
			parent = prefix.Scope{Base: "m", Salt: e.Salt}.Seed()
		}
		name := prefix.AppendChain(nil, parent, e.Tokens, cacheBlock)[0]
		names[e.Hashes[0]] = name
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// startCacheWorker joins such an engine to the planner at addr. Call leave, or it
// dies silently at the end of the test.
func startCacheWorker(t *testing.T, id, addr string) (*Worker, *cacheHost) {
	t.Helper()
	e, err := batch.New(&batchtest.Runner{}, batch.Options{KVBlocks: 40, BlockTokens: cacheBlock})
	if err != nil {
		t.Fatal(err)
	}
	h := &cacheHost{engine: e}
	w := &Worker{host: h, wanted: make(chan struct{})}
	w.self = fleet.Worker{ID: fleet.WorkerID(id), Role: fleet.RoleBoth, Engine: "cpu"}
	h.describe(&w.self)
	if err := w.join(t.Context(), quiet(), config.Worker{Planners: []string{addr}}, config.TLS{}); err != nil {
		t.Fatal(err)
	}
	return w, h
}

func closeWithin(t *testing.T, what string, closer func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	if err := closer(ctx); err != nil {
		t.Errorf("close %s: %v", what, err)
	}
}

// believed is what the planner's index says a worker holds, and whether it is
// sure.
func believed(p *Planner, id fleet.WorkerID) (blocks []prefix.Hash, exact bool) {
	view, table := p.View(), p.Prefix().Table()
	i := view.Find(id)
	if i < 0 {
		return nil, false
	}
	row, ok := table.Find(id, view.Workers[i].Epoch)
	if !ok {
		return nil, false
	}
	table.Index.Each(row.Worker, func(h prefix.Hash) { blocks = append(blocks, h) })
	slices.Sort(blocks)
	return blocks, row.Exact
}

// TestIndexEqualsTheWorkersCaches is invariant 9 on real parts: two engines'
// caches, real gRPC, evictions, salts, a planner that restarts and forgets, a
// worker that leaves.
func TestIndexEqualsTheWorkersCaches(t *testing.T) {
	c := settings(t)
	process := quiet()
	p, err := StartPlanner(t.Context(), process, c)
	if err != nil {
		t.Fatal(err)
	}
	addr := p.Addr()
	workers, hosts := map[fleet.WorkerID]*Worker{}, map[fleet.WorkerID]*cacheHost{}
	for _, id := range []string{"w0", "w1"} {
		workers[fleet.WorkerID(id)], hosts[fleet.WorkerID(id)] = startCacheWorker(t, id, addr)
	}
	work := func() {
		var tasks sync.WaitGroup
		for id, h := range hosts {
			tasks.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(len(id)), 1))
				for range 60 {
					prompt := make([]int32, 8+rng.IntN(80))
					for i := range prompt {
						prompt[i] = int32(i) // many share a beginning
					}
					prompt[rng.IntN(len(prompt))] = rng.Int32N(97)
					if err := h.compute(t.Context(), []string{"", "tenant"}[rng.IntN(2)], prompt); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		tasks.Wait()
	}
	check := func(when string) {
		t.Helper()
		for id, h := range hosts {
			eventually(t, fmt.Sprintf("%s, the index equals the cache of %s", when, id), func() bool {
				got, exact := believed(p, id)
				return exact && slices.Equal(got, h.truth()) && len(got) > 20
			})
		}
	}
	work()
	known := []int32{0, 1, 2, 3, 4, 5, 6, 7}
	if err := hosts["w0"].compute(t.Context(), "", known); err != nil {
		t.Fatal(err)
	}
	check("after work")
	var hits prefix.Hits
	table := p.Prefix().Table()
	table.Index.Lookup(prefix.AppendChain(nil, prefix.Scope{Base: "m"}.Seed(), known, cacheBlock), &hits)
	if row, ok := table.Find("w0", workers["w0"].Epoch()); !ok || hits.Of(row.Worker) != 2 {
		t.Errorf("w0 has just computed two blocks, and the index finds %d", hits.Of(row.Worker))
	}

	closeWithin(t, "the planner", p.Close)
	work() // while it is away
	restarted := *c
	restarted.Planner.Listen = addr
	if p, err = StartPlanner(t.Context(), process, &restarted); err != nil {
		t.Fatal(err)
	}
	defer func() { closeWithin(t, "the planner", p.Close) }()
	check("after a planner restart")
	work()
	check("after more work")

	closeWithin(t, "w0", workers["w0"].Close)
	delete(hosts, "w0")
	eventually(t, "w0 is detached and its memory swept", func() bool {
		return p.Prefix().Stats().Workers == 1 && !p.Prefix().Sweeping()
	})
	check("after w0 left")
	if held, want := p.Prefix().Stats().Held, int64(len(hosts["w1"].truth())); held != want {
		t.Errorf("the index holds %d pairs, w1 %d", held, want)
	}
	closeWithin(t, "w1", workers["w1"].Close)
	for outcome, want := range map[string]bool{"applied": true, "gap": false, "mismatch": false} {
		if n := process.Registry.Counter(measure.PrefixFrames, outcome).Value(); n > 0 != want {
			t.Errorf("%v frames %s", n, outcome)
		}
	}
}

// An engine that publishes its events on sockets feeds the index the same way.
func TestAScriptedWorkerFeedsTheIndex(t *testing.T) {
	c := settings(t)
	p, err := StartPlanner(t.Context(), quiet(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closeWithin(t, "the planner", p.Close) }()
	script := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(script, []byte("events: {publish: 127.0.0.1:0, replay: 127.0.0.1:0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Worker.Engine, c.Worker.Planners, c.Worker.ID, c.Worker.Script = "scripted", []string{p.Addr()}, "w0", script
	w, err := StartWorker(t.Context(), quiet(), c.Worker, config.TLS{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { closeWithin(t, "w0", w.Close) }()
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":1}`, w.Self().Models[0], strings.Repeat("0123456789abcdef", 40))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.Self().URL+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	eventually(t, "the prompt's ten blocks are in the index", func() bool {
		blocks, exact := believed(p, "w0")
		return exact && len(blocks) >= 10
	})
}
