/* Echoes a field of the request block (what = 0 to 12) as every score, or
 * 20 requests, 21 role, 22 the optional column, of each row
 * 30 weight, 31 flag, 32 what
 * 40 now_ms, 41 the second of two random numbers, >> 40
 * 50 kv_add to a local number, 51 kv_set of replicated state, which a router may not,
 * 52 kv_get of nothing, 53 of 100 bytes into 10, 54 the ninth operation
 * 60 no opinion, 61 a trap, 62 an endless loop
 * and counts rows and calls. */
#include "policy.gen.h"

static double field(int64_t what) {
	const double all[] = {
		(double)ym_request.seed, (double)ym_request.model, (double)ym_request.tenant, (double)ym_request.session,
		(double)ym_request.columns, ym_request.prompt, ym_request.output, ym_request.block_tokens, ym_request.class,
		ym_request.phase, ym_request.slo_ttft_ms, ym_request.slo_itl_ms, ym_request.waited_ms,
	};
	char buf[100] = {1};
	double last = 0;
	switch (what) {
	case 30: return ym_params.weight;
	case 31: return (double)ym_params.flag;
	case 32: return (double)ym_params.what;
	case 40: return (double)ym_now_ms();
	case 41: ym_rand_u64(); return (double)(ym_rand_u64() >> 40);
	case 50: return (double)ym_kv_add(YM_LOCAL, "n", 1, 3);
	case 51: return ym_kv_set(YM_REPLICATED, "k", 1, "v", 1);
	case 52: return ym_kv_get(YM_LOCAL, "nothing", 7, buf, sizeof buf);
	case 53: ym_kv_set(YM_LOCAL, "long", 4, buf, sizeof buf); return ym_kv_get(YM_LOCAL, "long", 4, buf + 1, 10);
	case 54:
		for (int i = 0; i < 9; i++)
			last = (double)ym_kv_add(YM_LOCAL, "nine", 4, 1);
		return last;
	case 61: __builtin_trap();
	case 62:
		for (volatile int i = 1; i;)
			;
	}
	return what >= 0 && what < 13 ? all[what] : -1;
}

int32_t ym_score(uint32_t n) {
	ym_counter_add(YM_COUNTER_ROWS, n);
	ym_counter_add(YM_COUNTER_CALLS, 1);
	ym_hist_observe(YM_HISTOGRAM_SIZES, n);
	ym_log(YM_INFO, "echo", 4);
	if (ym_params.what == 60)
		return YM_NO_OPINION;
	const float v = (float)field(ym_params.what);
	for (uint32_t i = 0; i < n; i++)
		ym_out.score[i] = ym_params.what == 20 ? ym_in.requests[i]
			: ym_params.what == 21 ? (float)ym_in.role[i]
			: ym_params.what == 22 ? ym_in.not_yet_known[i] : v;
	return YM_OK;
}
