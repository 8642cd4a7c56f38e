/* Echoes a field of the request block (what = 0 to 20) as the time of a refusal, all
 * ones if it is unknown, or
 * 30 admits with priority 200, 31 queues with 100, 32 degrades with 50, 33 refuses with
 * 503, 34 gives an action that there is not, 35 a status that may not be. */
#include "policy.gen.h"

uint64_t ym_admit(void) {
	const double all[] = {
		(double)ym_request.seed, (double)ym_request.model, (double)ym_request.tenant, ym_request.prompt, ym_request.output,
		ym_request.class, ym_request.queued, ym_request.tenant_queued, ym_request.tenant_running, ym_request.workers,
		ym_request.waiting, ym_request.tenant_tokens, ym_request.tenant_service, ym_request.least_service,
		ym_request.kv_usage, ym_request.ttft_ms, ym_request.slo_ttft_ms, ym_request.deadline_ms, ym_request.waited_ms,
		ym_request.itl_ms, ym_request.slo_itl_ms,
	};
	switch (ym_params.what) {
	case 30: return ym_verdict_admit(200);
	case 31: return ym_verdict_queue(100);
	case 32: return ym_verdict_degrade(50);
	case 33: return ym_verdict_reject(503, 7);
	case 34: return 9;
	case 35: return ym_verdict_reject(418, 0);
	}
	const double v = ym_params.what >= 0 && ym_params.what < 21 ? all[ym_params.what] : 0;
	return ym_verdict_reject(429, v == v ? (uint32_t)v : YM_UNKNOWN);
}
