/* A pool grows when requests wait or KV blocks run short, and shrinks by one when
 * neither is so. Both are means over the samples. While replicas start, the pool does
 * not change: what they will take over is not seen yet. */
#include "policy.gen.h"

enum { HOLD, QUEUE, KV, IDLE, STARTING, UNKNOWN };

/* mean is that of the known values; NaN without one. */
static double mean(const float *values, uint32_t n) {
	double sum = 0, known = 0;
	for (uint32_t i = 0; i < n; i++)
		if (ym_known(values[i])) {
			sum += (double)values[i];
			known += 1;
		}
	return sum / known;
}

static double or_zero(float v) { return ym_known(v) ? (double)v : 0; }

static void decide(uint32_t pool, uint32_t first, uint32_t samples) {
	const uint32_t last = first + samples - 1;
	const double replicas = or_zero(ym_in.replicas[last]);
	const double ready = or_zero(ym_in.ready[last]);
	const double serving = ready > 1 ? ready : 1;
	const double queue = (mean(ym_in.queued + first, samples) + mean(ym_in.waiting + first, samples)) / serving;
	const double kv = mean(ym_in.kv_usage + first, samples);

	/* How far above its mark each signal is; comparisons with NaN are false. */
	const double by_queue = queue / ym_params.queue_high;
	const double by_kv = kv / ym_params.kv_high;
	double want = replicas;
	uint32_t reason = HOLD;
	if (!ym_known((float)queue) && !ym_known((float)kv)) {
		reason = UNKNOWN;
	} else if (or_zero(ym_in.pending[last]) > 0) {
		reason = STARTING;
	} else if (by_queue > 1 || by_kv > 1) {
		const bool kv_leads = by_kv > 1 && !(by_queue > by_kv);
		const double factor = kv_leads ? by_kv : by_queue;
		want = serving * (factor < 2 ? factor : 2); /* at most double */
		want = __builtin_ceil(want);
		want = want > replicas ? want : replicas;
		reason = kv_leads ? KV : QUEUE;
	} else if (queue < ym_params.queue_low && kv < ym_params.kv_low && replicas > 0) {
		want = replicas - 1;
		reason = IDLE;
	}
	ym_out.desired[pool] = (uint32_t)want;
	ym_out.reason[pool] = reason;
}

int32_t ym_tick(uint32_t pools) {
	const uint32_t samples = ym_request.samples;
	if (samples == 0)
		return YM_NO_OPINION;
	for (uint32_t pool = 0; pool < pools; pool++)
		decide(pool, pool * samples, samples);
	return YM_OK;
}
