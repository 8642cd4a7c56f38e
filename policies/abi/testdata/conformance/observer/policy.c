/* Echoes into the number "echo" of replicated state a field of the request block (what =
 * 0 to 4), 20 the sum of outcomes, or 21 that of the known times to first token. */
#include "policy.gen.h"

int32_t ym_observe(uint32_t n) {
	const int64_t all[] = {
		(int64_t)ym_request.now_ms, (int64_t)ym_request.seed, (int64_t)ym_request.columns, ym_request.leader, ym_request.lost,
	};
	int64_t v = ym_params.what >= 0 && ym_params.what < 5 ? all[ym_params.what] : 0;
	for (uint32_t i = 0; i < n; i++) {
		if (ym_params.what == 20)
			v += ym_in.outcome[i];
		if (ym_params.what == 21 && ym_known(ym_in.ttft_ms[i]))
			v += (int64_t)ym_in.ttft_ms[i];
	}
	return ym_kv_add(YM_REPLICATED, "echo", 4, v) == INT64_MIN ? YM_NO_OPINION : YM_OK;
}
