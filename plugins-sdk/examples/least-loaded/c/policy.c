/* The worker with the shortest wait: what it still has to compute, at its measured
 * speed, and something for each request that it serves. */
#include "policy.gen.h"

int32_t ym_score(uint32_t n) {
	const float usual = (float)ym_params.token_seconds;
	const float each = (float)ym_params.request_seconds;
	for (uint32_t i = 0; i < ym_whole(n); i++) {
		/* Neither unknown (NaN) nor the inverse of a rate of 0 is a speed. */
		const float measured = ym_in.prefill_seconds_per_token[i];
		const float seconds = measured > 0 && measured < 1 ? measured : usual;
		ym_out.score[i] = ym_in.queued_tokens[i] * seconds + ym_in.requests[i] * each;
	}
	return YM_OK;
}
