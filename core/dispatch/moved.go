package dispatch

import (
	"context"
	"io"
	"strings"

	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// maxReport bounds the answer to a prefill leg that is read for its usage, in bytes.
const maxReport = 64 << 10

// report reads the answer to a prefill leg to its end, and what it says of usage if it
// is not too long to be more than that.
func report(ctx context.Context, body io.Reader) (edge.Usage, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxReport))
	if err == nil && len(text) == maxReport {
		text = nil
		_, err = io.Copy(io.Discard, io.LimitReader(body, maxRefusal))
	}
	if err != nil && ctx.Err() == nil {
		return edge.Usage{}, err
	}
	usage, _, _ := edge.Answer(text)
	return usage, nil
}

// found is the usage of a request whose prompt another worker computed: cached is what
// that one found in its cache, not what was moved, which engines that decode call
// cached as well. It is unknown where the prefill leg has not said it, because its
// engine does not or because the output ended first. kv is what the decode worker
// said of the transfer.
func found(decode, prefill edge.Usage, kv string) edge.Usage {
	what, _, _ := strings.Cut(kv, ";")
	if what = strings.TrimSpace(what); what == "recomputed" || what == "local" {
		return decode // nothing was moved
	}
	decode.Cached, decode.CachedKnown = 0, false
	if decode.Known && prefill.Known && prefill.CachedKnown {
		decode.Cached, decode.CachedKnown = min(prefill.Cached, decode.Prompt), true
	}
	return decode
}
