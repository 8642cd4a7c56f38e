/**
 * Policies for Yardmaster in AssemblyScript, contract ym/1: the request blocks, the
 * host's functions, and the buffers.
 *
 * A policy is a manifest.json, a file assembly/policy.gen.ts that `yardmaster policy
 * bind` makes of it, and one function in assembly/policy.ts, by its kind:
 *
 *     export function score(r: RouterRequest, n: i32): bool      // router
 *     export function admit(r: AdmissionRequest): u64            // admission: a Verdict
 *     export function tick(r: PoolsRequest): bool                // autoscaler
 *     export function observe(r: OutcomesRequest, n: i32): bool  // observer
 *
 * It reads columns as table.name[row] and parameters as params.name. False is "no
 * opinion": the host's fallback decides. Unknown is not zero: an f32 that is not known
 * is NaN, a u32 UNKNOWN.
 *
 * Columns and requests are views of static memory. A policy that makes no objects, no
 * arrays and no strings needs no runtime (--runtime stub) and has a few hundred bytes.
 */

/** How many workers, samples or outcomes one call can take. */
// @ts-ignore: decorator
@inline export const ROWS: i32 = 4096;

/** A u32 that is not known. */
// @ts-ignore: decorator
@inline export const UNKNOWN: u32 = 0xffff_ffff;

/** A column of f32. Its rows are not checked: row is below the call's n. */
@unmanaged
export class F32Column {
  // @ts-ignore: decorator
  @inline @operator("[]") get(row: i32): f32 {
    return load<f32>(changetype<usize>(this) + (<usize>row << 2));
  }
  // @ts-ignore: decorator
  @inline @operator("[]=") set(row: i32, v: f32): void {
    store<f32>(changetype<usize>(this) + (<usize>row << 2), v);
  }
  /** Four rows from a multiple of four on; columns have room for whole vectors. */
  // @ts-ignore: decorator
  @inline lanes(row: i32): v128 {
    return v128.load(changetype<usize>(this) + (<usize>row << 2));
  }
  // @ts-ignore: decorator
  @inline setLanes(row: i32, v: v128): void {
    v128.store(changetype<usize>(this) + (<usize>row << 2), v);
  }
}

/** A column of u32. */
@unmanaged
export class U32Column {
  // @ts-ignore: decorator
  @inline @operator("[]") get(row: i32): u32 {
    return load<u32>(changetype<usize>(this) + (<usize>row << 2));
  }
  // @ts-ignore: decorator
  @inline @operator("[]=") set(row: i32, v: u32): void {
    store<u32>(changetype<usize>(this) + (<usize>row << 2), v);
  }
}

/** The request that a router finds a worker for. Times are in milliseconds, NaN if unknown. */
@unmanaged
export class RouterRequest {
  /** Of this decision's random numbers. */
  seed: u64;
  /** Hashes; session is 0 if there is none. */
  model: u64;
  tenant: u64;
  session: u64;
  /** Bit i: the manifest's column i is filled. */
  columns: u64;
  /** Tokens; output may be UNKNOWN. */
  prompt: u32;
  output: u32;
  /** Tokens of a KV block, 0 if unknown. */
  blockTokens: u32;
  /** Priority, 0 the least urgent. */
  class_: u32;
  /** 0 both, 1 prefill, 2 decode. */
  phase: u32;
  sloTtftMs: f32;
  sloItlMs: f32;
  waitedMs: f32;
}

/** The request that an admission policy lets in or not. Times and quotas are NaN if unknown. */
@unmanaged
export class AdmissionRequest {
  seed: u64;
  model: u64;
  tenant: u64;
  /** Tokens; output may be UNKNOWN. */
  prompt: u32;
  output: u32;
  class_: u32;
  /** Requests in this gateway's queue, and those of the tenant. */
  queued: u32;
  tenantQueued: u32;
  tenantRunning: u32;
  /** Workers that could serve the request, and requests that wait there. */
  workers: u32;
  waiting: u32;
  /** Left of the tenant's quota. */
  tenantTokens: f32;
  tenantService: f32;
  leastService: f32;
  /** KV blocks held over those there are. */
  kvUsage: f32;
  /** Predicted, and wanted. */
  ttftMs: f32;
  sloTtftMs: f32;
  /** Until the client gives up. */
  deadlineMs: f32;
  waitedMs: f32;
  /** Predicted, and wanted. */
  itlMs: f32;
  sloItlMs: f32;
}

/** What an autoscaler knows beside its samples: row = pool * samples + sample, the newest last. */
@unmanaged
export class PoolsRequest {
  nowMs: u64;
  seed: u64;
  columns: u64;
  pools: u32;
  samples: u32;
  /** Between samples. */
  intervalMs: u32;
  /** Replicas of all pools together. */
  budget: u32;
}

/** What an observer knows beside the outcomes. */
@unmanaged
export class OutcomesRequest {
  nowMs: u64;
  seed: u64;
  columns: u64;
  /** 1 where replicated state may be written. */
  leader: u32;
  /** Outcomes that were dropped since the last call. */
  lost: u32;
}

/** What becomes of a request. */
export namespace Verdict {
  /** Serves it; the greater priority goes first. */
  export function admit(priority: u8): u64 {
    return (<u64>priority) << 8;
  }
  /** Lets it wait. */
  export function queue(priority: u8): u64 {
    return ((<u64>priority) << 8) | 1;
  }
  /** Refuses it with 429 or 503. */
  export function reject(status: u16, retryAfterMs: u32): u64 {
    return ((<u64>retryAfterMs) << 32) | ((<u64>status) << 16) | 2;
  }
  /** Serves it with a shorter output. */
  export function degrade(priority: u8): u64 {
    return ((<u64>priority) << 8) | 3;
  }
}

/** Whose state is meant: this node's, which may be lost, or the cluster's, which only
 * autoscalers and observers write. */
export const enum Scope {
  Local,
  Replicated,
}

export const enum Level {
  Debug,
  Info,
  Warn,
  Error,
}

/** The host's functions. A policy may call those whose capability its manifest lists. */
export namespace host {
  /** log: a line of at most 1 KiB. */
  // @ts-ignore: decorator
  @external("ym1", "log") export declare function log(level: u32, line: usize, size: u32): void;
  /** time: Unix time in milliseconds, the same throughout a call. */
  // @ts-ignore: decorator
  @external("ym1", "now_ms") export declare function nowMs(): i64;
  /** random: the next of a sequence that follows from the request's id. */
  // @ts-ignore: decorator
  @external("ym1", "rand_u64") export declare function rand(): u64;
  /** metrics: id is the place in the manifest's list. */
  // @ts-ignore: decorator
  @external("ym1", "counter_add") export declare function counterAdd(id: u32, n: i64): void;
  // @ts-ignore: decorator
  @external("ym1", "hist_observe") export declare function histObserve(id: u32, value: f64): void;
  /** state: the value's length, or -1; it is copied if it fits. */
  // @ts-ignore: decorator
  @external("ym1", "kv_get") export declare function kvGet(scope: u32, key: usize, keySize: u32, value: usize, valueSize: u32): i32;
  /** 0, or -1 if refused. */
  // @ts-ignore: decorator
  @external("ym1", "kv_set") export declare function kvSet(scope: u32, key: usize, keySize: u32, value: usize, valueSize: u32): i32;
  /** The sum, or i64.MIN_VALUE if refused. */
  // @ts-ignore: decorator
  @external("ym1", "kv_add") export declare function kvAdd(scope: u32, key: usize, keySize: u32, delta: i64): i64;
}

/** Ends a call that cannot go on; the host then decides without the policy. */
export function abort(_message: usize, _file: usize, _line: u32, _column: u32): void {
  unreachable();
}
