package tcp_test

import (
	"fmt"
	"testing"

	"github.com/yardmaster/yardmaster/gpu/transfer/tcp"
)

// smollm2 is the shape of 16-token blocks of SmolLM2-135M in F32.
var smollm2 = func() (s struct{ layers, page int }) { s.layers, s.page = 30, 2*3*16*64*4; return }()

// BenchmarkReserveToCommit is the whole life of a transfer of one small block on
// a warm session: control, not bytes.
func BenchmarkReserveToCommit(b *testing.B) {
	shape := testShape
	shape.PageBytes = 512
	p, d := listen(b, "p", 1, "127.0.0.1:0", shape, tcp.Options{}), listen(b, "d", 1, "127.0.0.1:0", shape, tcp.Options{})
	id := uint64(0)
	for b.Loop() {
		id++
		j := newJob(id, d, 1)
		_, out := j.start(d, p.peer())
		e, err := j.export(b.Context(), p, d.peer())
		if err != nil {
			b.Fatal(err)
		}
		j.compute(e, shape.Layers)
		if r := <-out; r.err != nil {
			b.Fatal(r.err)
		}
	}
}

// BenchmarkThroughput moves 128 blocks (2,048 tokens) of SmolLM2's shape, layer
// by layer, from reservation to commit.
func BenchmarkThroughput(b *testing.B) {
	for _, streams := range []int{1, 2, 4} {
		b.Run(fmt.Sprint("streams=", streams), func(b *testing.B) {
			shape := testShape
			shape.Layers, shape.PageBytes, shape.Blocks = smollm2.layers, smollm2.page, 128
			opt := tcp.Options{MaxStreams: streams}
			p, d := listen(b, "p", 1, "127.0.0.1:0", shape, opt), listen(b, "d", 1, "127.0.0.1:0", shape, opt)
			p.fillAll()
			b.SetBytes(int64(shape.Layers) * int64(shape.PageBytes) * 128)
			id := uint64(0)
			for b.Loop() {
				id++
				j := newJob(id, d, 128)
				_, out := j.start(d, p.peer())
				e, err := j.export(b.Context(), p, d.peer())
				if err != nil {
					b.Fatal(err)
				}
				j.compute(e, shape.Layers)
				if r := <-out; r.err != nil {
					b.Fatal(r.err)
				}
			}
		})
	}
}
