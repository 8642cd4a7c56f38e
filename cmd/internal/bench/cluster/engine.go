package cluster

import (
	"fmt"
	"strings"
	"time"
)

// model is what the workers serve.
const model = "bench"

// engine is how the workers' scripted engines behave.
type engine struct {
	kvBlocks int           // of 16 tokens
	timing   string        // preset of core/cost
	speed    float64       // divides its times
	token    time.Duration // between two tokens, beside the timing
	streamed bool          // the pace is that of streams only
	events   bool          // they publish KV events
}

// script is the engine's script. The worker's name is an adapter of the model.
func (e engine) script(worker string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `engine:
  model: %s
  adapters: [%s]
  max_context: 262144
  max_running: 256
  kv_blocks: %d
`, model, worker, e.kvBlocks)
	if e.timing != "" {
		fmt.Fprintf(&b, "  timing: %s\n  speed: %g\n", e.timing, e.speed)
	}
	if e.events {
		b.WriteString("events:\n  publish: 127.0.0.1:0\n  replay: 127.0.0.1:0\n")
	}
	if e.token > 0 {
		match := "route: /v1/*"
		if e.streamed {
			match += ", stream: true"
		}
		fmt.Fprintf(&b, "rules:\n  - match: {%s}\n    do: {generate: {token: %s}}\n", match, e.token)
	}
	return b.String()
}
