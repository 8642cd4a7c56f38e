package engine

import (
	"errors"
	"testing"
)

func TestPeerRoundTrip(t *testing.T) {
	for _, p := range []Peer{{"p-0", 7, "127.0.0.1:9"}, {"a;b", 1 << 63, ""}, {"x", 0, "[::1]:80"}} {
		got, err := ParsePeer(p.String())
		if err != nil || got != p {
			t.Errorf("ParsePeer(%q) = %+v, %v", p.String(), got, err)
		}
	}
}

func FuzzParsePeer(f *testing.F) {
	for _, s := range []string{"", ";", ";;", "a;1;b", "a;x;b", "a;18446744073709551616;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePeer(s)
		if err != nil {
			if !errors.Is(err, ErrPeer) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if again, err := ParsePeer(p.String()); err != nil || again != p {
			t.Fatalf("%q: %+v does not survive its own encoding", s, p)
		}
	})
}
