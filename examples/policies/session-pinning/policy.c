/* Each session has a home, and the homes of a worker that is overloaded, or gone, are
 * spread over all others: rendezvous hashing with bounded load. Nothing is remembered,
 * so every gateway sends a session to the same worker without talking to the others. */
#include "policy.gen.h"

/* mix spreads the bits of x over the word; it is invertible. */
static uint64_t mix(uint64_t x) {
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9;
	x ^= x >> 27;
	x *= 0x94d049bb133111eb;
	return x ^ x >> 31;
}

int32_t ym_score(uint32_t n) {
	/* Without a session anywhere is as good. */
	const uint64_t session = ym_request.session ? ym_request.session : ym_request.seed;
	double all = 1;
	for (uint32_t i = 0; i < n; i++)
		all += ym_known(ym_in.requests[i]) ? (double)ym_in.requests[i] : 0;
	const float bound = (float)__builtin_ceil(ym_params.factor * all / n);
	for (uint32_t i = 0; i < n; i++) {
		const uint64_t key = (uint64_t)ym_in.key_high[i] << 32 | ym_in.key_low[i];
		/* 24 bits, which an f32 holds exactly. */
		const float place = (float)(mix(session ^ key) >> 40) / (1 << 24);
		ym_out.score[i] = ym_in.requests[i] >= bound ? place + 1 : place;
	}
	return YM_OK;
}
