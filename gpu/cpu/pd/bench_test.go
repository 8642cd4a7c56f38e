package pd_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkControl is a request of 32 tokens and one of output on a model that
// costs nothing: what is left is scheduling and, disaggregated, the control path.
func BenchmarkControl(b *testing.B) {
	for _, split := range []bool{false, true} {
		b.Run(fmt.Sprint("disaggregated=", split), func(b *testing.B) {
			p, d := newWorker(b, "p-0", tuning{}), newWorker(b, "d-0", tuning{})
			random := rand.New(rand.NewPCG(1, 1))
			id := uint64(0)
			for b.Loop() {
				id++
				req := request(random, 32)
				req.MaxTokens = 1
				if !split {
					if _, _, err := generate(b.Context(), d.engine, &req); err != nil {
						b.Fatal(err)
					}
					continue
				}
				if got := disaggregated(b.Context(), id, p, d, p.peer(), d.peer(), req); got.kv != "moved" {
					b.Fatalf("%+v", got)
				}
			}
		})
	}
}
