package builtin_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/policies/builtin"
	"github.com/yardmaster/yardmaster/policies/host"
)

// nothing is what policies that ask for nothing get.
type nothing struct{}

func (nothing) Log(string, int, []byte)                           {}
func (nothing) Count(string, int, int64)                          {}
func (nothing) Observe(string, int, float64)                      {}
func (nothing) NowMillis() int64                                  { return 0 }
func (nothing) Get(string, bool, []byte, []byte) int              { return -1 }
func (nothing) Set(string, bool, []byte, []byte) bool             { return false }
func (nothing) Add(string, bool, []byte, int64) (v int64, b bool) { return 0, false }

// never is a fallback that must not be asked.
type never struct{ t *testing.T }

func (never) Name() string                                    { return "never" }
func (n never) Score(*route.Query, *route.Columns, []float64) { n.t.Error("the fallback was asked") }

func kvCost(t *testing.T) *host.Router {
	t.Helper()
	ctx := context.Background()
	h, err := host.New(ctx, nothing{}, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.Load(ctx, builtin.KVCost(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	r, err := host.NewRouter(p, never{t})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fleet makes candidates as they occur: counts that are whole, blocks that are not,
// many workers alike, some that report nothing.
func fleet(random *rand.Rand, n int, c *route.Columns, q *route.Query) {
	resize := func(s []float64) []float64 { return slices.Grow(s[:0], n)[:n] }
	c.Queued, c.Hit, c.Active, c.Requests = resize(c.Queued), resize(c.Hit), resize(c.Active), resize(c.Requests)
	c.Worker = slices.Grow(c.Worker[:0], n)[:n]
	*q = route.Query{Prompt: unit.Tokens(random.IntN(1 << (1 + random.IntN(17)))), BlockTokens: []unit.Tokens{0, 16, 32, 64, 48, 256}[random.IntN(6)]}
	alike, size := random.IntN(4) == 0, 1<<(1+random.IntN(20))
	block := float64(max(q.BlockTokens, 16))
	for i := range n {
		if alike && i > 0 && random.IntN(3) > 0 {
			from := random.IntN(i)
			c.Queued[i], c.Hit[i], c.Active[i], c.Requests[i] = c.Queued[from], c.Hit[from], c.Active[from], c.Requests[from]
			continue
		}
		c.Requests[i] = float64(random.IntN(200))
		c.Queued[i] = float64(random.IntN(size))
		c.Hit[i] = min(block*float64(random.IntN(1+int(float64(q.Prompt)/block))), float64(q.Prompt))
		c.Active[i] = float64(random.IntN(size)) / block
		if random.IntN(50) == 0 {
			c.Active[i] = math.NaN()
		}
	}
}

// round makes columns what the contract hands over: numbers of 32 bits.
func round(c *route.Columns) {
	for _, column := range [][]float64{c.Queued, c.Hit, c.Active, c.Requests} {
		for i, v := range column {
			column[i] = float64(float32(v))
		}
	}
}

// best are the rows of the least cost, of which the router draws one.
func best(cost []float64) []int {
	var rows []int
	least := math.Inf(1)
	for i, v := range cost {
		switch {
		case v < least:
			rows, least = append(rows[:0], i), v
		case v == least:
			rows = append(rows, i)
		}
	}
	return rows
}

// Of 100,000 fleets, native and Wasm have the same best workers, all of them, so that
// the same draw picks the same one; and the order of the others is kept.
func TestKVCostIsTheNativeOne(t *testing.T) {
	const fleets = 100_000
	r, random := kvCost(t), rand.New(rand.NewPCG(6, 6))
	var c route.Columns
	var q route.Query
	native, wasm, ties := make([]float64, 512), make([]float64, 512), 0
	for k := range fleets {
		n := 1 + random.IntN(40)
		if k%500 == 0 {
			n = 512
		}
		fleet(random, n, &c, &q)
		round(&c)
		route.KVCost{}.Score(&q, &c, native[:n])
		want := best(native[:n])
		if len(want) == 0 {
			continue // nothing is known of any worker; the fallback would answer
		}
		r.Score(&q, &c, wasm[:n])
		got := best(wasm[:n])
		if !slices.Equal(want, got) {
			t.Fatalf("fleet %d: native %v, wasm %v\n%v\n%v", k, want, got, native[:n], wasm[:n])
		}
		if len(want) > 1 {
			ties++
		}
		for i := range n {
			if math.IsNaN(native[i]) != math.IsNaN(wasm[i]) || wasm[i] < 0 {
				t.Fatalf("fleet %d, row %d: native %v, wasm %v", k, i, native[i], wasm[i])
			}
			if i > 0 && (native[i]-native[i-1])*(wasm[i]-wasm[i-1]) < 0 {
				t.Fatalf("fleet %d: rows %d and %d change places", k, i-1, i)
			}
		}
	}
	if ties < fleets/100 {
		t.Errorf("only %d fleets had a tie", ties)
	}
}

// What is lost when the columns become numbers of 32 bits: the pick may be another one
// where costs differ by less than that.
func TestKVCostOfUnroundedColumns(t *testing.T) {
	const fleets = 20_000
	r, random := kvCost(t), rand.New(rand.NewPCG(7, 7))
	var c route.Columns
	var q route.Query
	native, wasm := make([]float64, 64), make([]float64, 64)
	for k := range fleets {
		n := 1 + random.IntN(64)
		fleet(random, n, &c, &q)
		route.KVCost{}.Score(&q, &c, native[:n])
		want := best(native[:n])
		if len(want) == 0 {
			continue
		}
		r.Score(&q, &c, wasm[:n])
		least := native[want[0]]
		for _, i := range best(wasm[:n]) {
			if worse := native[i] - least; worse > 1e-6*max(least, 1) {
				t.Fatalf("fleet %d: worse by %v of %v", k, worse, least)
			}
		}
	}
}
