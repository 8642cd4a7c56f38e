/* The worker whose first token should come first, by what the observer beside this
 * policy has learnt. Before that, it has no opinion. Scores are seconds. */
#include "policy.gen.h"

int32_t ym_score(uint32_t n) {
	/* Milliseconds: of every request, for 1,000 tokens to compute, for each request on
	 * the worker; and how sure that is, which is the learner's own. */
	double weights[12];
	if (ym_kv_get(YM_REPLICATED, "ttft", 4, weights, sizeof weights) != sizeof weights)
		return YM_NO_OPINION;
	const float each = (float)(weights[0] / 1000);
	const float token = (float)(weights[1] / 1e6);
	const float request = (float)(weights[2] / 1000);
	const float prompt = (float)ym_request.prompt;
	for (uint32_t i = 0; i < ym_whole(n); i++) {
		const float work = ym_in.queued_tokens[i] + (prompt - ym_in.hit_tokens[i]);
		ym_out.score[i] = each + token * work + request * ym_in.requests[i];
	}
	return YM_OK;
}
