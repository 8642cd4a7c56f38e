package tcp

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/gpu/transfer"
)

func FuzzHello(f *testing.F) {
	h := &hello{Version: version, Stream: 1, Session: 2, Hash: 3, Self: engine.Peer{ID: "d", Epoch: 4}, Addressee: 5, Receiver: "p"}
	f.Add(appendHello(h)[transfer.HeadBytes:])
	f.Add([]byte("YMKV"))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := decodeHello(transfer.KindHello, body)
		if err != nil {
			if !errors.Is(err, transfer.ErrMalformed) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		if diff := cmp.Diff(body, appendHello(h)[transfer.HeadBytes:]); diff != "" {
			t.Errorf("hello does not survive its own encoding: %s", diff)
		}
	})
}
