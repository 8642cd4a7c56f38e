/* Replicas are there before people are: a timetable sets the fewest, the load adds to
 * it. A pool grows at once and shrinks by one replica a tick. */
import { PoolsRequest } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

const enum Reason {
  Timetable,
  Load,
  Shrinking,
  Starting,
}

const MINUTES_A_DAY: f64 = 24 * 60;

export function tick(r: PoolsRequest): bool {
  const n = <i32>r.samples;
  if (n == 0) return false;
  const fewest = <f64>(isDay(<i64>r.nowMs) ? params.dayReplicas : params.nightReplicas);
  for (let pool = 0; pool < <i32>r.pools; pool++) decide(pool, (pool + 1) * n - 1, fewest);
  return true;
}

/** Whether replicas for the day should be there, or start now. */
function isDay(nowMs: i64): bool {
  const local = nowMs / 60000 + params.utcOffsetMinutes;
  const minute = <f64>(local % 1440);
  const day = local / 1440; // 1970 began on a Thursday
  const from = params.dayFrom * 60 - params.leadMinutes;
  const to = params.dayTo * 60;
  if (minute >= from && minute < to) return isWorkday(day);
  // Before midnight the next day may already cast its shadow.
  return from < 0 && minute >= from + MINUTES_A_DAY && isWorkday(day + 1);
}

function isWorkday(day: i64): bool {
  const weekday = (day + 4) % 7; // 0 is Sunday
  return params.weekends != 0 || (weekday != 0 && weekday != 6);
}

function decide(pool: i32, newest: i32, fewest: f64): void {
  const replicas = orZero(table.replicas[newest]);
  const load = orZero(table.queued[newest]) + orZero(table.running[newest]) + orZero(table.waiting[newest]);
  let want = ceil<f64>(load / params.requestsPerReplica);
  let reason = Reason.Load;
  if (want <= fewest) {
    want = fewest;
    reason = Reason.Timetable;
  }
  if (want < replicas) {
    // While replicas start, what they are for has not been seen.
    const waits = orZero(table.pending[newest]) > 0;
    want = waits ? replicas : replicas - 1;
    reason = waits ? Reason.Starting : Reason.Shrinking;
  }
  table.desired[pool] = <u32>want;
  table.reason[pool] = <u32>reason;
}

function orZero(v: f32): f64 {
  return v == v ? <f64>v : 0;
}
