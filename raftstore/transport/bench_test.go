package transport

import (
	"testing"

	"github.com/hashicorp/raft"
)

// BenchmarkDial is a connection from TCP's first packet to the peer's welcome,
// and its end.
func BenchmarkDial(b *testing.B) {
	f := newFleet(b, "a", "b")
	for _, p := range f.ports {
		p.cfg.Dialer = PortConfig{}.withDefaults().Dialer // past the fault proxy
	}
	echo(b, f.ports["b"], ProtoPeer)
	for b.Loop() {
		c, err := f.ports["a"].Dial(b.Context(), "b", f.ports["b"].addr(), ProtoPeer)
		if err != nil {
			b.Fatal(err)
		}
		_ = c.Close()
	}
}

// BenchmarkRequest is a Raft request and its answer; MB/s is of the entry.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []int{0, 100, 16 << 10} {
		b.Run(byteName(size), func(b *testing.B) {
			f := newFleet(b, "a", "b")
			f.ports["a"].cfg.Dialer = PortConfig{}.withDefaults().Dialer // past the fault proxy
			answer(b, f.rafts["b"], nil)
			req := &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 1, PrevLogEntry: 1}
			if size > 0 {
				req.Entries = []*raft.Log{{Index: 1, Data: make([]byte, size)}}
				b.SetBytes(int64(size))
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := f.rafts["a"].AppendEntries("b", "", req, &raft.AppendEntriesResponse{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func byteName(n int) string {
	switch {
	case n == 0:
		return "heartbeat"
	case n < 1024:
		return "100B"
	default:
		return "16KiB"
	}
}
