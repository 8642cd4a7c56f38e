/* A token bucket for each tenant. A request takes its prompt and its expected output
 * from it. One that is short for a moment waits; one that is short for longer is
 * refused, and told when to come back. One that would come too late for its client
 * is refused before it costs anybody anything.
 *
 * The buckets are in the node's state, for instances of a policy share no memory.
 * Two requests at the same instant may both be let through on one's tokens: state is
 * read and written in two steps, and what one of them took is forgotten. */
#include "policy.gen.h"

#define MOST_MS 3600000.0

struct bucket {
	double tokens;
	int64_t at_ms;
};

/* The key is "b" and the tenant. */
struct __attribute__((packed)) key {
	char kind;
	uint64_t tenant;
};

static double filled(const struct key *key, int64_t now) {
	struct bucket b;
	if (ym_kv_get(YM_LOCAL, key, sizeof *key, &b, sizeof b) != sizeof b)
		return ym_params.burst_tokens;
	const double passed = now > b.at_ms ? (double)(now - b.at_ms) : 0;
	const double tokens = b.tokens + passed * ym_params.tokens_per_second / 1000;
	return tokens < ym_params.burst_tokens ? tokens : ym_params.burst_tokens;
}

static uint32_t whole_ms(double ms) {
	if (!(ms < MOST_MS))
		return (uint32_t)MOST_MS;
	return (uint32_t)__builtin_ceil(ms);
}

uint64_t ym_admit(void) {
	const uint8_t priority = ym_request.class < 255 ? (uint8_t)ym_request.class : 255;
	if (ym_request.ttft_ms > ym_request.deadline_ms) { /* false if either is unknown */
		ym_counter_add(YM_COUNTER_HOPELESS, 1);
		return ym_verdict_reject(503, whole_ms((double)ym_request.ttft_ms - (double)ym_request.deadline_ms));
	}
	const double output = ym_request.output == YM_UNKNOWN ? (double)ym_params.usual_output : (double)ym_request.output;
	double need = (double)ym_request.prompt + output;
	if (need > ym_params.burst_tokens) /* or it would never be served */
		need = ym_params.burst_tokens;

	const struct key key = {'b', ym_request.tenant};
	struct bucket b = {0, ym_now_ms()};
	b.tokens = filled(&key, b.at_ms) - need;
	const double short_ms = b.tokens < 0 ? -b.tokens * 1000 / ym_params.tokens_per_second : 0;
	if (short_ms > ym_params.queue_ms) {
		ym_counter_add(YM_COUNTER_REFUSED, 1);
		return ym_verdict_reject(429, whole_ms(short_ms));
	}
	ym_kv_set(YM_LOCAL, &key, sizeof key, &b, sizeof b);
	return short_ms > 0 ? ym_verdict_queue(priority) : ym_verdict_admit(priority);
}
