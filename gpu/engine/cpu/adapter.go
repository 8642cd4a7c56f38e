package cpu

import (
	"fmt"
	"strconv"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/gpu/engine/openai"
)

// New makes the adapter. The timing fields of c are the OpenAI adapter's; the
// others are set here. Close gives the connections back.
func New(c openai.Config) *openai.Adapter {
	c.Repeatable = true // our engines only compute
	c.Request = setHeaders
	c.Response = readHeaders
	return openai.New(c)
}

func setHeaders(head []byte, w *fleet.Worker, c *engine.Call) []byte {
	head = openai.AppendHeader(head, engine.HeaderEpoch, strconv.FormatUint(uint64(w.Epoch), 10))
	if c.Leg == engine.Aggregated {
		return head
	}
	head = openai.AppendHeader(head, engine.HeaderLeg, c.Leg.String())
	head = openai.AppendHeader(head, engine.HeaderTransfer, fmt.Sprintf("%016x", c.TransferID))
	if c.Peer != nil {
		head = openai.AppendHeader(head, engine.HeaderPeer, engine.PeerOf(c.Peer).String())
	}
	return head
}

func readHeaders(header func(string) string, r *engine.Response) {
	r.KV = header(engine.HeaderKV)
	r.Reason = header(engine.HeaderReason)
}
