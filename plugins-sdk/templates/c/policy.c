/* my-policy: the worker that has the least to compute before the first token. */
#include "policy.gen.h"

int32_t ym_score(uint32_t n) {
	const float prompt = (float)ym_request.prompt;
	const float weight = (float)ym_params.hit_weight;
	for (uint32_t i = 0; i < ym_whole(n); i++)
		ym_out.score[i] = ym_in.queued_tokens[i] + (prompt - weight * ym_in.hit_tokens[i]);
	return YM_OK;
}
