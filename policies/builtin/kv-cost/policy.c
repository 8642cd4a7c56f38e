/* The native policy kv-cost, operation for operation, so that both pick the same worker
 * of any fleet. The cost is computed in f64, as natively, and scores are f32: what is
 * written is the distance from the best cost, so that the best one is exactly 0 and
 * nobody else is, however large the costs. Blends stretch scores to [0, 1] and see no
 * difference. */
#include "policy.gen.h"

static double cost[YM_ROWS];

int32_t ym_score(uint32_t n) {
	const double scale = ym_params.scale;
	const double each = ym_params.request_blocks;
	const double prompt = ym_request.prompt;
	const double block = ym_request.block_tokens ? ym_request.block_tokens : 16;
	for (uint32_t i = 0; i < ym_whole(n); i++) {
		const double queued = ym_in.queued_tokens[i], hit = ym_in.hit_tokens[i];
		const double ahead = (queued + prompt - hit) / block;
		const double held = (double)ym_in.active_blocks[i] + (prompt - hit) / block;
		cost[i] = scale * (ahead < 0 ? 0 : ahead) + held + each * (double)ym_in.requests[i];
	}
	double best = __builtin_inf();
	for (uint32_t i = 0; i < n; i++)
		best = cost[i] < best ? cost[i] : best; /* NaN is never the best */
	for (uint32_t i = 0; i < ym_whole(n); i++)
		ym_out.score[i] = (float)(cost[i] - best);
	return YM_OK;
}
