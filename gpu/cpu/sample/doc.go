// Package sample chooses the next token from a model's logits.
//
// A [Sampler] belongs to one request: it knows the request's parameters, the
// tokens it has seen and its random numbers. A number depends on the seed and on
// how many tokens came before, on nothing else, so that a seeded request draws
// the same tokens whatever its neighbours do and whether or not it was put back
// and computed again.
//
// The order is vLLM's: logit bias and suppressed tokens, penalties,
// temperature, min-p, top-k, top-p. Reported log-probabilities are those of
// the model's own distribution, before any of that (vLLM's default,
// logprobs_mode=raw_logprobs).
//
// Logits that are not numbers count as impossible; a step without one possible
// token is an error, never a made-up token. Stop conditions and text are the
// callers' business.
package sample
