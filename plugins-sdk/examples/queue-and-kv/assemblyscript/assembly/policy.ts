/* A pool grows when requests wait or KV blocks run short, and shrinks by one when
 * neither is so. Both are means over the samples. While replicas start, the pool does
 * not change: what they will take over is not seen yet. */
import { F32Column, PoolsRequest } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

const enum Reason {
  Hold,
  Queue,
  KV,
  Idle,
  Starting,
  Unknown,
}

export function tick(r: PoolsRequest): bool {
  const n = <i32>r.samples;
  if (n == 0) return false;
  for (let pool = 0; pool < <i32>r.pools; pool++) decide(pool, pool * n, (pool + 1) * n);
  return true;
}

function decide(pool: i32, from: i32, to: i32): void {
  const replicas = orZero(table.replicas[to - 1]);
  const ready = orZero(table.ready[to - 1]);
  const serving: f64 = ready > 1 ? ready : 1;
  const queue = (mean(table.queued, from, to) + mean(table.waiting, from, to)) / serving;
  const kv = mean(table.kvUsage, from, to);

  // How far above its mark each signal is; comparisons with NaN are false.
  const byQueue = queue / params.queueHigh;
  const byKV = kv / params.kvHigh;
  let want = replicas;
  let reason = Reason.Hold;
  if (isNaN(queue) && isNaN(kv)) {
    reason = Reason.Unknown;
  } else if (orZero(table.pending[to - 1]) > 0) {
    reason = Reason.Starting;
  } else if (byKV > 1 && !(byQueue > byKV)) {
    want = grown(replicas, serving, byKV);
    reason = Reason.KV;
  } else if (byQueue > 1) {
    want = grown(replicas, serving, byQueue);
    reason = Reason.Queue;
  } else if (queue < params.queueLow && kv < params.kvLow && replicas > 0) {
    want = replicas - 1;
    reason = Reason.Idle;
  }
  table.desired[pool] = <u32>want;
  table.reason[pool] = <u32>reason;
}

/** At most double, and no less than there are. */
function grown(replicas: f64, serving: f64, factor: f64): f64 {
  const want = ceil<f64>(serving * (factor < 2 ? factor : 2));
  return want > replicas ? want : replicas;
}

/** That of the known values; NaN without one. */
function mean(column: F32Column, from: i32, to: i32): f64 {
  let sum: f64 = 0;
  let known: f64 = 0;
  for (let i = from; i < to; i++) {
    const v = column[i];
    if (v == v) {
      sum += <f64>v;
      known += 1;
    }
  }
  return sum / known;
}

function orZero(v: f32): f64 {
  return v == v ? <f64>v : 0;
}
