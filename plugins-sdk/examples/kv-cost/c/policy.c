/* Dynamo's cost: the blocks in front of the first token, times a scale, and the
 * blocks that the worker would hold with this request. Blocks that are in the
 * worker's cache need no computing and are held already. */
#include "policy.gen.h"

int32_t ym_score(uint32_t n) {
	const float scale = (float)ym_params.scale;
	const float each = (float)ym_params.request_blocks;
	const float prompt = (float)ym_request.prompt;
	const float blocks = 1.0f / (ym_request.block_tokens ? (float)ym_request.block_tokens : 16.0f);
	for (uint32_t i = 0; i < ym_whole(n); i++) {
		const float missing = prompt - ym_in.hit_tokens[i];
		const float ahead = ym_in.queued_tokens[i] + missing;
		const float compute = (ahead < 0 ? 0 : ahead) * blocks;
		const float hold = ym_in.active_blocks[i] + missing * blocks;
		ym_out.score[i] = scale * compute + hold + each * ym_in.requests[i];
	}
	return YM_OK;
}
