/* yardmaster.h: policies for Yardmaster in C, contract ym/1.
 *
 * The header is all there is: no library, no allocator, no start-up code. It is
 * included by policy.gen.h, which `yardmaster policy build` writes from manifest.json
 * and which says what the policy reads:
 *
 *     YM_KIND                  YM_ROUTER, YM_ADMISSION, YM_AUTOSCALER or YM_OBSERVER
 *     YM_INPUTS(F32, U32)      the manifest's columns, in its order
 *     YM_PARAMS(FLOAT, INT, BOOL)
 *     YM_MANIFEST              the file that becomes the custom section
 *
 * The policy then defines one function, by its kind:
 *
 *     int32_t  ym_score(uint32_t n)      router: fill ym_out.score[0..n)
 *     int64_t  ym_route(uint32_t n)      router that defines YM_ROUTES first: a row, or -1
 *     uint64_t ym_admit(void)            admission: ym_verdict_admit() and its like
 *     int32_t  ym_tick(uint32_t pools)   autoscaler: fill ym_out.desired and .reason
 *     int32_t  ym_observe(uint32_t n)    observer
 *
 * YM_OK is "decided"; anything else is "no opinion", and the fallback decides.
 * Unknown is not zero: an f32 that is not known is NaN, a u32 YM_UNKNOWN.
 *
 * Columns stand at multiples of 16 and have YM_ROWS places, a multiple of 4. A loop
 * may therefore run to ym_whole(n) and needs no tail: what lies behind row n is the
 * guest's own. Written that way, clang -O3 -msimd128 makes vectors of it.
 *
 * clang --target=wasm32 -O3 -msimd128 -mbulk-memory -ffreestanding -nostdlib
 *     -Wl,--no-entry -Wl,-z,stack-size=8192 -Wl,--strip-debug policy.c -o policy.wasm
 */
#ifndef YARDMASTER_H
#define YARDMASTER_H

#include <stdbool.h>
#include <stdint.h>

#define YM_ROUTER 1
#define YM_ADMISSION 2
#define YM_AUTOSCALER 3
#define YM_OBSERVER 4

#ifndef YM_KIND
#error "include policy.gen.h, which `yardmaster policy build` writes, not yardmaster.h"
#endif

/* YM_ROWS is how many workers, samples or outcomes one call can take. */
#ifndef YM_ROWS
#define YM_ROWS 4096
#endif
_Static_assert(YM_ROWS % 4 == 0 && YM_ROWS > 0 && YM_ROWS <= 65536, "YM_ROWS is a multiple of 4 up to 65536");

#define YM_OK 0
#define YM_NO_OPINION 1
#define YM_UNKNOWN UINT32_MAX

/* ym_known tells a number from NaN, which is unknown. */
static inline bool ym_known(float v) { return v == v; }

/* ym_whole rounds rows up to whole vectors. */
static inline uint32_t ym_whole(uint32_t n) { return (n + 3) & ~3u; }

#define YM_EXPORT(name) __attribute__((export_name(name)))
#define YM_IMPORT(name) __attribute__((import_module("ym1"), import_name(name)))

/* Host functions. A policy may call those whose capability its manifest lists. */

#define YM_DEBUG 0
#define YM_INFO 1
#define YM_WARN 2
#define YM_ERROR 3

/* log: a line of at most 1 KiB; 16 a call. */
YM_IMPORT("log") void ym_log(uint32_t level, const char *line, uint32_t size);
/* time: Unix time in milliseconds, the same throughout a call. */
YM_IMPORT("now_ms") int64_t ym_now_ms(void);
/* random: the next of a sequence that follows from the request's id. */
YM_IMPORT("rand_u64") uint64_t ym_rand_u64(void);
/* metrics: id is the place in the manifest's list. */
YM_IMPORT("counter_add") void ym_counter_add(uint32_t id, int64_t n);
YM_IMPORT("hist_observe") void ym_hist_observe(uint32_t id, double value);

/* state: 8 operations a call, keys up to 128 bytes, values up to 4 KiB. */
#define YM_LOCAL 0u      /* this node's, may be lost */
#define YM_REPLICATED 1u /* the cluster's; written by autoscalers and observers only */
/* The value's length, or -1; it is copied if it fits. */
YM_IMPORT("kv_get") int32_t ym_kv_get(uint32_t scope, const void *key, uint32_t key_size, void *value, uint32_t value_size);
/* 0, or -1 if refused. */
YM_IMPORT("kv_set") int32_t ym_kv_set(uint32_t scope, const void *key, uint32_t key_size, const void *value, uint32_t value_size);
/* The sum, or INT64_MIN if refused. The value is 8 bytes, little-endian. */
YM_IMPORT("kv_add") int64_t ym_kv_add(uint32_t scope, const void *key, uint32_t key_size, int64_t delta);

/* The request block, and what the kind writes. */

#if YM_KIND == YM_ROUTER
struct ym_request {
	uint64_t seed, model, tenant, session; /* session is 0 if there is none */
	uint64_t columns;                      /* bit i: the manifest's column i is filled */
	uint32_t prompt, output;               /* tokens; output may be YM_UNKNOWN */
	uint32_t block_tokens;                 /* tokens of a KV block, 0 if unknown */
	uint32_t class;                        /* priority, 0 the least urgent */
	uint32_t phase;                        /* 0 both, 1 prefill, 2 decode */
	float slo_ttft_ms, slo_itl_ms, waited_ms;
};
#define YM_OUTPUTS(F32, U32) F32(score)
#ifdef YM_ROUTES
YM_EXPORT("ym_route") int64_t ym_route(uint32_t n);
#else
YM_EXPORT("ym_score") int32_t ym_score(uint32_t n);
#endif

#elif YM_KIND == YM_ADMISSION
struct ym_request {
	uint64_t seed, model, tenant;
	uint32_t prompt, output, class; /* output may be YM_UNKNOWN */
	uint32_t queued;                /* requests in this gateway's queue */
	uint32_t tenant_queued, tenant_running;
	uint32_t workers, waiting; /* workers that could serve it, requests that wait there */
	float tenant_tokens;       /* left of the tenant's quota, NaN without one */
	float tenant_service, least_service;
	float kv_usage;
	float ttft_ms;     /* predicted */
	float slo_ttft_ms; /* wanted */
	float deadline_ms; /* until the client gives up */
	float waited_ms;
	float itl_ms; /* predicted */
	float slo_itl_ms;
};
#define YM_OUTPUTS(F32, U32)
YM_EXPORT("ym_admit") uint64_t ym_admit(void);

/* ym_verdict_admit serves the request; the greater priority goes first. */
static inline uint64_t ym_verdict_admit(uint8_t priority) { return (uint64_t)priority << 8; }
/* ym_verdict_queue lets it wait. */
static inline uint64_t ym_verdict_queue(uint8_t priority) { return (uint64_t)priority << 8 | 1; }
/* ym_verdict_reject refuses it with 429 or 503. */
static inline uint64_t ym_verdict_reject(uint16_t status, uint32_t retry_after_ms) {
	return (uint64_t)retry_after_ms << 32 | (uint64_t)status << 16 | 2;
}
/* ym_verdict_degrade serves it with a shorter output. */
static inline uint64_t ym_verdict_degrade(uint8_t priority) { return (uint64_t)priority << 8 | 3; }

#elif YM_KIND == YM_AUTOSCALER
struct ym_request {
	uint64_t now_ms, seed;
	uint64_t columns;
	uint32_t pools, samples; /* row = pool * samples + sample, the newest last */
	uint32_t interval_ms;    /* between samples */
	uint32_t budget;         /* replicas of all pools together */
};
#define YM_OUTPUTS(F32, U32) U32(desired) U32(reason)
YM_EXPORT("ym_tick") int32_t ym_tick(uint32_t pools);

#elif YM_KIND == YM_OBSERVER
struct ym_request {
	uint64_t now_ms, seed;
	uint64_t columns;
	uint32_t leader; /* 1 where replicated state may be written */
	uint32_t lost;   /* outcomes that were dropped since the last call */
};
#define YM_OUTPUTS(F32, U32)
YM_EXPORT("ym_observe") int32_t ym_observe(uint32_t n);

#else
#error "YM_KIND is none of the four kinds"
#endif

/* The buffers. The host finds them through ym_layout and writes nowhere else. */

#define YM__F32(name) _Alignas(16) float name[YM_ROWS];
#define YM__U32(name) _Alignas(16) uint32_t name[YM_ROWS];
#define YM__FLOAT(name) double name;
#define YM__INT(name) int64_t name;
#define YM__BOOL(name) int64_t name;
#define YM__ONE(name) +1
#define YM__IN(name) ym_in.name,
#define YM__OUT(name) ym_out.name,

/* A byte each at the start keeps structs without columns legal and no column at 0. */
static struct {
	_Alignas(16) uint8_t ym__first;
	YM_INPUTS(YM__F32, YM__U32)
} ym_in;
static struct {
	_Alignas(16) uint8_t ym__first;
	YM_OUTPUTS(YM__F32, YM__U32)
} ym_out;
static struct {
	YM_PARAMS(YM__FLOAT, YM__INT, YM__BOOL)
	_Alignas(8) uint8_t ym__last;
} ym_params;
_Alignas(8) static struct ym_request ym_request;
_Static_assert(sizeof ym_request == (YM_KIND == YM_ROUTER ? 72 : YM_KIND == YM_ADMISSION ? 96 : YM_KIND == YM_AUTOSCALER ? 40 : 32), "the request block has the contract's size");

enum { ym__inputs = 0 YM_INPUTS(YM__ONE, YM__ONE), ym__outputs = 0 YM_OUTPUTS(YM__ONE, YM__ONE), ym__params = 0 YM_PARAMS(YM__ONE, YM__ONE, YM__ONE) };

static const struct {
	uint32_t magic, abi, words, rows;
	void *request;
	uint32_t request_size;
	void *params;
	uint32_t params_size, inputs, outputs;
	void *columns[ym__inputs + ym__outputs + 1];
} ym__header = {
	0x314c4d59, 1 << 16, 10 + ym__inputs + ym__outputs, YM_ROWS,
	&ym_request, sizeof ym_request, &ym_params, 8 * ym__params, ym__inputs, ym__outputs,
	{YM_INPUTS(YM__IN, YM__IN) YM_OUTPUTS(YM__OUT, YM__OUT) 0},
};

YM_EXPORT("ym_abi_1") void ym_abi_1(void) {}
YM_EXPORT("ym_layout") const void *ym_layout(void) { return &ym__header; }

/* ym_configure is called once, with the parameters in ym_params. A policy may define
 * its own, after it has defined YM_CONFIGURES, and refuse them by not returning YM_OK. */
YM_EXPORT("ym_configure") int32_t ym_configure(uint32_t size);
#ifndef YM_CONFIGURES
int32_t ym_configure(uint32_t size) {
	(void)size;
	return YM_OK;
}
#endif

#ifdef YM_MANIFEST
__asm__(".section .custom_section.yardmaster.manifest,\"\",@\n.incbin \"" YM_MANIFEST "\"\n");
#endif

#endif
