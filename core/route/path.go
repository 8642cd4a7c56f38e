package route

import (
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/unit"
)

// LabelKVTokenBytes is the label by which a worker states how many bytes of KV
// a token takes, which the prediction of a transfer needs.
const LabelKVTokenBytes = "kv-token-bytes"

// choosePath decides whether another worker computes the prompt for d.Serve.
func (r *Router) choosePath(q *Query, lined *load.Columns, samples *fleet.Samples, serving []int32, d *Decision) {
	server := d.Server()
	switch {
	case r.cfg.Mode == Never:
		d.Reason = ReasonOff
		return
	case r.cfg.Mode == Auto && q.Prompt < r.cfg.MinPrompt:
		d.Reason = ReasonShortPrompt
		return
	case server.Compat == "" || server.Transfer == "":
		d.Reason = ReasonNoTransfer
		return
	}
	pairs := func(w *fleet.Worker) bool {
		return w.Role&fleet.RolePrefill != 0 && w.ID != server.ID && w.Compat == server.Compat && w.Transfer != ""
	}
	prefill, next := r.choose(q, lined, serving, pairs, false)
	if prefill == None {
		d.Reason = ReasonNoPrefillWorker
		return
	}
	d.Path, d.Reason = Disaggregated, ReasonForced
	if r.cfg.Mode == Auto {
		d.Path, d.Reason = r.judge(q, lined, samples, prefill, d.Serve)
	}
	if d.Path == Disaggregated {
		d.Prefill, d.NextPrefill = prefill, next
	}
}

// judge compares the two ways to the first token. With both rates measured it
// predicts; without, it compares what this gateway has queued on either side.
func (r *Router) judge(q *Query, lined *load.Columns, samples *fleet.Samples, prefill, serve int) (Path, string) {
	queuedThere, queuedHere := lined.Slots[prefill].QueuedPrompt(), lined.Slots[serve].QueuedPrompt()
	there, okThere := prefillTime(q.Prompt, queuedThere, lined.Slots[prefill].Key, samples)
	here, okHere := prefillTime(q.Prompt, queuedHere, lined.Slots[serve].Key, samples)
	if !okThere || !okHere {
		if queuedThere > queuedHere+r.cfg.BusyTokens {
			return Aggregated, ReasonPrefillBusy
		}
		return Disaggregated, ReasonLongPrompt
	}
	own, _ := prefillTime(q.Prompt, 0, lined.Slots[prefill].Key, samples)
	there += r.exposed(q.Prompt, own, &lined.View.Workers[serve])
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

func prefillTime(prompt, queued unit.Tokens, key load.Key, samples *fleet.Samples) (time.Duration, bool) {
	sample, ok := samples.Find(key.ID, key.Epoch)
	if !ok {
		return 0, false
	}
	rate, ok := sample.Stats.PrefillTokensPerSecond.Usable()
	if !ok {
		return 0, false
	}
	return cost.PrefillTime(queued, prompt, 0, rate)
}

// kvTokenBytes reads LabelKVTokenBytes; 0 is unknown.
func kvTokenBytes(w *fleet.Worker) unit.Bytes {
	i := slices.IndexFunc(w.Labels, func(l fleet.Label) bool { return l.Key == LabelKVTokenBytes })
	if i < 0 {
		return 0
	}
	n, err := strconv.ParseInt(w.Labels[i].Value, 10, 64)
	if err != nil || n < 0 || n > 1<<30 {
		return 0
	}
	return unit.Bytes(n)
}
