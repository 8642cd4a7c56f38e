package prefix

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// filled is an index of n blocks in chains of chainLen, each held by holders of
// the workers.
func filled(n, chainLen, workers, holders int) (*Index, [][]Hash) {
	x := New(Options{Budget: 2 << 30, Memory: hugeMemory()})
	ws := make([]Worker, workers)
	for i := range ws {
		ws[i], _ = x.Attach(uint64(i + 1))
	}
	rng := rand.New(rand.NewPCG(1, 1))
	chains := make([][]Hash, n/chainLen)
	for i := range chains {
		chains[i] = make([]Hash, chainLen)
		for j := range chains[i] {
			chains[i][j] = Hash(rng.Uint64())
		}
		for range holders {
			x.Store(ws[rng.IntN(workers)], chains[i])
		}
	}
	return x, chains
}

func BenchmarkLookup(b *testing.B) {
	for _, c := range []struct{ total, chain, workers, holders int }{
		{1 << 20, 8192, 64, 8}, {1 << 20, 512, 256, 4}, {98_304, 512, 8, 8}, {8192, 512, 8, 8}, {1 << 20, 32, 128, 2},
	} {
		b.Run(fmt.Sprintf("blocks=%d/chain=%d/workers=%d", c.total, c.chain, c.workers), func(b *testing.B) {
			x, chains := filled(c.total, c.chain, c.workers, c.holders)
			var hits Hits
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				x.Lookup(chains[i*7919%len(chains)], &hits)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.chain), "ns/block")
		})
	}
}

func BenchmarkStoreRemove(b *testing.B) {
	x := New(Options{Budget: 1 << 30, Memory: hugeMemory()})
	w, _ := x.Attach(1)
	const n = 1 << 20
	rng := rand.New(rand.NewPCG(1, 1))
	all := make([]Hash, n)
	for i := range all {
		all[i] = Hash(rng.Uint64())
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := i * 64 % n
		x.Store(w, all[at:at+64])
		x.Remove(w, all[(at+n/2)%n:][:64])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*128), "ns/op-block")
}

func BenchmarkLookupBesideWriter(b *testing.B) {
	x, chains := filled(1<<20, 512, 64, 8)
	w, _ := x.Attach(999)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			c := chains[i%len(chains)]
			x.Store(w, c)
			x.Remove(w, c)
		}
	}()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var hits Hits
		for i := 0; pb.Next(); i++ {
			x.Lookup(chains[i*31%len(chains)], &hits)
		}
	})
	stop.Store(true)
	<-done
}
