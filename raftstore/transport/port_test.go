package transport

import (
	"testing"
)

func TestPortCarriesProtocols(t *testing.T) {
	c := newCluster(t)
	a, b := c.port("a"), c.port("b")
	echo(t, b, ProtoPeer)
	echo(t, b, ProtoHub)
	for _, proto := range []string{ProtoPeer, ProtoHub} {
		conn, err := a.Dial(t.Context(), "b", b.addr(), proto)
		if err != nil {
			t.Fatal(err)
		}
		if conn.PeerID != "b" || conn.Proto != proto {
			t.Errorf("peer %q, protocol %q", conn.PeerID, conn.Proto)
		}
		says(t, conn, "hello over "+proto)
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
