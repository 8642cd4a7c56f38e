package policies

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/policies/bind"
	"github.com/yardmaster/yardmaster/policies/host"
)

// BenchmarkLanguages is a whole decision of kv-cost but for the pick: an instance is
// lent, columns go in, the guest is called, scores come out. Beside it, what loading
// costs.
func BenchmarkLanguages(b *testing.B) {
	for _, lang := range bind.Languages() {
		wasm := module(b, filepath.Join(same, "kv-cost", string(lang)))
		b.Run(string(lang), func(b *testing.B) {
			p := loaded(b, wasm)
			r, err := host.NewRouter(p, route.KVCost{})
			if err != nil {
				b.Fatal(err)
			}
			for _, n := range []int{16, 256, 4096} {
				b.Run(strconv.Itoa(n), func(b *testing.B) { score(b, r, n) })
			}
		})
	}
}

// loaded compiles a module and makes two instances, and reports how long that took.
func loaded(b *testing.B, wasm []byte) *host.Policy {
	b.Helper()
	ctx := context.Background()
	h, err := host.New(ctx, nil, host.Options{})
	if err != nil {
		b.Fatal(err)
	}
	metered, err := host.Prepare(wasm)
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	code, err := h.Compile(ctx, metered)
	if err != nil {
		b.Fatal(err)
	}
	compiled := time.Since(began)
	began = time.Now()
	p, err := code.StartWith(ctx, still{}, 2, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d bytes, compiled in %v, two instances in %v", len(wasm), compiled, time.Since(began))
	b.Cleanup(func() {
		if err := errors.Join(p.Close(ctx), code.Close(ctx), h.Close(ctx)); err != nil {
			b.Error(err)
		}
	})
	return p
}

func score(b *testing.B, r *host.Router, n int) {
	column := func(v float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = v * float64(i%97)
		}
		return out
	}
	c := &route.Columns{Worker: make([]int32, n), Queued: column(100), Hit: column(16), Active: column(7), Requests: column(1)}
	q, cost := &route.Query{Model: "m", Prompt: 2000, BlockTokens: 16}, make([]float64, n)
	b.ReportAllocs()
	for b.Loop() {
		r.Score(q, c, cost)
	}
	if counts := r.Faults(host.FaultFuel) + r.Faults(host.FaultTrap) + r.Faults(host.FaultRefused); counts > 0 {
		b.Errorf("%d faults", counts)
	}
}

// still is a world in which nothing happens.
type still struct{}

func (still) Log(string, int, []byte)                       {}
func (still) Count(string, int, int64)                      {}
func (still) Observe(string, int, float64)                  {}
func (still) NowMillis() int64                              { return 0 }
func (still) Get(string, bool, []byte, []byte) int          { return -1 }
func (still) Set(string, bool, []byte, []byte) bool         { return false }
func (still) Add(string, bool, []byte, int64) (int64, bool) { return 0, false }
