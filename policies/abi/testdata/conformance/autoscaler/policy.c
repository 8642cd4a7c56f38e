/* Echoes, for each pool, a field of the request block (what = 0 to 6) as desired and the
 * newest sample of replicas as the reason; 20: the oldest of role as the reason; 30:
 * what replicated state says after it was written. */
#include "policy.gen.h"

int32_t ym_tick(uint32_t pools) {
	const double all[] = {
		(double)ym_request.now_ms, (double)ym_request.seed, (double)ym_request.columns, ym_request.pools,
		ym_request.samples, ym_request.interval_ms, ym_request.budget,
	};
	uint32_t v = ym_params.what >= 0 && ym_params.what < 7 ? (uint32_t)all[ym_params.what] : 0;
	if (ym_params.what == 30)
		v = (uint32_t)(ym_kv_set(YM_REPLICATED, "plan", 4, "abc", 3) + 1) * 100 + (uint32_t)ym_kv_get(YM_REPLICATED, "seen", 4, &v, 0);
	for (uint32_t pool = 0; pool < pools; pool++) {
		const uint32_t first = pool * ym_request.samples;
		ym_out.desired[pool] = v;
		ym_out.reason[pool] = ym_params.what == 20 ? ym_in.role[first] : (uint32_t)ym_in.replicas[first + ym_request.samples - 1];
	}
	return YM_OK;
}
