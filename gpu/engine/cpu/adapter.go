package cpu

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
)

// New makes the adapter. The timing fields of c are the OpenAI adapter's; its
// hooks are set here. Close gives the connections back.
func New(c openai.Config) *openai.Adapter {
	c.Request = setHeaders
	c.Response = readHeaders
	return openai.New(c)
}

func setHeaders(h http.Header, w *fleet.Worker, c *engine.Call) {
	h[engine.HeaderEpoch] = []string{strconv.FormatUint(uint64(w.Epoch), 10)}
	if c.Leg == engine.Aggregated {
		return
	}
	h[engine.HeaderLeg] = []string{c.Leg.String()}
	h[engine.HeaderTransfer] = []string{fmt.Sprintf("%016x", c.TransferID)}
	if c.Peer != nil {
		h[engine.HeaderPeer] = []string{engine.PeerOf(c.Peer).String()}
	}
}

func readHeaders(h http.Header, r *engine.Response) {
	r.KV = h.Get(engine.HeaderKV)
	r.Reason = h.Get(engine.HeaderReason)
}
