package abi

// Type is the type of a column's values, of 4 bytes.
type Type uint8

// The types of columns.
const (
	F32 Type = iota // unknown is NaN
	U32             // unknown is all ones
)

// String is the type's name.
func (t Type) String() string {
	if t == U32 {
		return "u32"
	}
	return "f32"
}

// UnknownU32 is a u32 that is not known.
const UnknownU32 = ^uint32(0)

// Column is one column of a kind's table.
type Column struct {
	Name string
	Type Type
	Help string // meaning and unit
}

// Columns returns the columns that policies of the kind may read, in no order that
// matters: a guest sees those of its manifest, in the manifest's order.
func (k Kind) Columns() []Column {
	switch k {
	case Router:
		return routerColumns()
	case Autoscaler:
		return autoscalerColumns()
	case Observer:
		return observerColumns()
	default:
		return nil
	}
}

// routerColumns describe workers, a row each.
func routerColumns() []Column {
	return []Column{
		{"key_low", U32, "low half of a hash of the worker's id, the same at every gateway"},
		{"key_high", U32, "high half of that hash"},
		{"role", U32, "0 both phases, 1 prefill, 2 decode"},
		{"zone", U32, "a number for the worker's zone, the same for the same zone at every gateway"},
		{"lora", U32, "1 if the worker has the request's adapter loaded, as far as known, or it needs none; 0 if not"},
		{"in_flight", F32, "this gateway's requests on the worker"},
		{"requests", F32, "all gateways' requests on the worker, as far as known"},
		{"queued_tokens", F32, "prompt tokens sent and not yet computed"},
		{"hit_tokens", F32, "leading prompt tokens that the worker's cache holds"},
		{"active_blocks", F32, "KV blocks that requests hold"},
		{"capacity_blocks", F32, "KV blocks that there are"},
		{"running", F32, "requests being computed, as the worker last said"},
		{"waiting", F32, "requests accepted and not begun, as the worker last said"},
		{"prefill_rate", F32, "prompt tokens per second, measured"},
		{"prefill_seconds_per_token", F32, "its inverse"},
		{"step_ms", F32, "time that a decode step takes, as measured by the worker, in milliseconds"},
		{"siblings", F32, "requests on the worker that share half the hit or more"},
		{"share", F32, "work given lately, over the candidates' mean"},
		{"age_ms", F32, "age of what the worker last said, in milliseconds"},
		{"kv_token_bytes", F32, "bytes of KV that a token takes, by label"},
		{"group", U32, "workers of one group can compute parts of prompts for each other; 0 is none"},
		{"adapters", F32, "adapters that the worker serves, if the model is one of them; 0 if it is the worker's own"},
		{"adapter_slots", F32, "adapters that the worker keeps loaded at once, by label"},
		{"adapter_idle_s", F32, "seconds since this gateway sent the worker a request for the adapter; infinite if not lately"},
		{"missed_tokens", F32, "prompt tokens that this gateway gave the worker to compute in the last three minutes"},
		{"found_tokens", F32, "prompt tokens of those requests that its cache held"},
	}
}

// autoscalerColumns describe pools, a row for each sample of each: row
// pool × samples + sample, the newest last.
func autoscalerColumns() []Column {
	return []Column{
		{"role", U32, "0 both phases, 1 prefill, 2 decode"},
		{"replicas", F32, "replicas planned"},
		{"ready", F32, "replicas that serve"},
		{"pending", F32, "replicas that start"},
		{"draining", F32, "replicas that drain"},
		{"least", F32, "the fewest replicas configured"},
		{"most", F32, "the most replicas configured"},
		{"arrivals", F32, "requests per second"},
		{"prompt_tokens", F32, "prompt tokens per second"},
		{"output_tokens", F32, "output tokens per second"},
		{"hit_ratio", F32, "part of the prompt tokens found in caches"},
		{"queued", F32, "requests that wait at gateways"},
		{"running", F32, "requests being computed"},
		{"waiting", F32, "requests that wait at workers"},
		{"kv_usage", F32, "KV blocks held, over those that there are"},
		{"ttft_p50_ms", F32, "median time to first token, in milliseconds"},
		{"ttft_p95_ms", F32, "95th percentile of the time to first token, in milliseconds"},
		{"itl_p50_ms", F32, "median time between tokens, in milliseconds"},
		{"itl_p95_ms", F32, "95th percentile of the time between tokens, in milliseconds"},
		{"slo_ttft_ms", F32, "wanted time to first token, in milliseconds"},
		{"slo_itl_ms", F32, "wanted time between tokens, in milliseconds"},
		{"prefill_rate", F32, "prompt tokens per second that one replica computes, measured"},
		{"decode_rate", F32, "output tokens per second that one replica has given at its best, measured"},
		{"kv_tokens", F32, "tokens that one replica's KV cache holds"},
	}
}

// observerColumns describe requests that have ended, a row each.
func observerColumns() []Column {
	return []Column{
		{"key_low", U32, "low half of the hash of the worker's id"},
		{"key_high", U32, "high half of that hash"},
		{"tenant_low", U32, "low half of a hash of the tenant"},
		{"tenant_high", U32, "high half of that hash"},
		{"outcome", U32, "0 served, 1 the client's fault, 2 refused, 3 the worker's fault, 4 timed out, 5 the client left"},
		{"prompt_tokens", F32, "tokens of the prompt"},
		{"predicted_hit_tokens", F32, "tokens believed to be in the worker's cache"},
		{"hit_tokens", F32, "tokens that the engine found in its cache"},
		{"output_tokens", F32, "tokens generated"},
		{"queued_ms", F32, "time in the gateway's queue, in milliseconds"},
		{"ttft_ms", F32, "time to first token, in milliseconds"},
		{"itl_ms", F32, "mean time between tokens, in milliseconds"},
		{"requests", F32, "requests on the worker when this one was sent"},
		{"score", F32, "the score with which the worker was chosen"},
	}
}
