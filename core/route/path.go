package route

import (
	"time"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/unit"
)

// LabelKVTokenBytes is the label by which a worker states how many bytes of KV
// a token takes, which the prediction of a transfer needs.
const LabelKVTokenBytes = "kv-token-bytes"

// maxTokenBytes bounds what a worker may say there.
const maxTokenBytes = 1 << 30

// choosePath decides whether another worker computes the prompt for d.Serve.
// What the serving worker holds already is computed by nobody.
func (r *Router) choosePath(q *Query, lined *load.Columns, d *Decision) {
	server := d.Server()
	switch {
	case r.cfg.Mode == Never:
		d.Reason = ReasonOff
		return
	case r.cfg.Mode == Auto && q.Prompt < r.cfg.MinPrompt:
		d.Reason = ReasonShortPrompt
		return
	case r.cfg.Mode == Auto && q.Prompt-d.ServeHit < r.cfg.MinPrompt:
		d.Reason = ReasonCached
		return
	case server.Compat == "" || server.Transfer == "":
		d.Reason = ReasonNoTransfer
		return
	}
	prefill, next := r.choose(prefilling, q, lined, d.Serve, false)
	if prefill == None {
		d.Reason = ReasonNoPrefillWorker
		return
	}
	hit := r.hit(prefill)
	d.Path, d.Reason = Disaggregated, ReasonForced
	if r.cfg.Mode == Auto {
		d.Path, d.Reason = r.judge(q, lined, leg{prefill, hit}, leg{d.Serve, d.ServeHit})
	}
	if d.Path == Disaggregated {
		d.Prefill, d.NextPrefill, d.PrefillHit = prefill, next, hit
	}
}

// leg is a worker that could compute the prompt, and what it holds of it.
type leg struct {
	worker int
	hit    unit.Tokens
}

// judge compares the two ways to the first token. With both rates measured it
// predicts; without, it compares the tokens in front of it on either side.
func (r *Router) judge(q *Query, lined *load.Columns, prefill, serve leg) (Path, string) {
	queuedThere, queuedHere := lined.Slots[prefill.worker].QueuedPrompt(), lined.Slots[serve.worker].QueuedPrompt()
	rateThere, rateHere := r.aligned.facts[prefill.worker].rate, r.aligned.facts[serve.worker].rate
	there, okThere := cost.PrefillTime(queuedThere, q.Prompt, prefill.hit, rateThere)
	here, okHere := cost.PrefillTime(queuedHere, q.Prompt, serve.hit, rateHere)
	if !okThere || !okHere {
		if queuedThere-prefill.hit > queuedHere-serve.hit+r.cfg.BusyTokens {
			return Aggregated, ReasonPrefillBusy
		}
		return Disaggregated, ReasonLongPrompt
	}
	own, _ := cost.PrefillTime(0, q.Prompt, prefill.hit, rateThere)
	there += r.exposed(q.Prompt, own, &lined.View.Workers[serve.worker])
	if float64(there) > float64(here)*(1+r.cfg.Slack) {
		return Aggregated, ReasonPredictedSlower
	}
	return Disaggregated, ReasonPredictedFaster
}

// exposed is the transfer time not hidden behind the prompt's own computation.
// While the size of the KV is unknown only the link's set-up is certain.
func (r *Router) exposed(prompt unit.Tokens, prefill time.Duration, w *fleet.Worker) time.Duration {
	transfer, ok := cost.TransferTime(r.cfg.Link, unit.Bytes(prompt)*kvTokenBytes(w))
	if !ok {
		return r.cfg.Link.Setup
	}
	return cost.Exposed(transfer, prefill, r.cfg.Link)
}

// kvTokenBytes reads LabelKVTokenBytes; 0 is unknown.
func kvTokenBytes(w *fleet.Worker) unit.Bytes {
	if n := labelled(w, LabelKVTokenBytes, maxTokenBytes); n > 0 {
		return unit.Bytes(n)
	}
	return 0
}
