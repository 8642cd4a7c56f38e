package cpu

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
)

func TestHeaders(t *testing.T) {
	heard := make(chan http.Header, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard <- r.Header.Clone()
		w.Header().Set(engine.HeaderKV, "recomputed; checksum")
		w.Header().Set(engine.HeaderReason, engine.ReasonDraining)
		w.WriteHeader(503)
	}))
	defer s.Close()
	a := New(openai.Config{})
	defer a.Close()
	w := &fleet.Worker{ID: "d", Epoch: 7, URL: s.URL}
	peer := &fleet.Worker{ID: "p", Epoch: 6, Transfer: "127.0.0.1:9"}
	tests := []struct {
		name string
		call engine.Call
		want map[string]string
	}{
		{"aggregated", engine.Call{}, map[string]string{engine.HeaderEpoch: "7", engine.HeaderLeg: "", engine.HeaderTransfer: "", engine.HeaderPeer: ""}},
		{"decode", engine.Call{Leg: engine.Decode, TransferID: 0xab, Peer: peer}, map[string]string{
			engine.HeaderEpoch: "7", engine.HeaderLeg: "decode", engine.HeaderTransfer: "00000000000000ab", engine.HeaderPeer: "p;6;127.0.0.1:9",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := a.Do(t.Context(), w, &tt.call)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.KV != "recomputed; checksum" || resp.Reason != engine.ReasonDraining {
				t.Errorf("%+v", resp)
			}
			got := <-heard
			for name, want := range tt.want {
				if got.Get(name) != want {
					t.Errorf("%s: %q, want %q", name, got.Get(name), want)
				}
			}
		})
	}
}
