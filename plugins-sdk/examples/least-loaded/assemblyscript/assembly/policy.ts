/* The worker with the shortest wait: what it still has to compute, at its measured
 * speed, and something for each request that it serves. */
import { RouterRequest } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

export function score(_: RouterRequest, n: i32): bool {
  const usual = <f32>params.tokenSeconds;
  const each = <f32>params.requestSeconds;
  for (let i = 0; i < n; i++) {
    // Neither unknown (NaN) nor the inverse of a rate of 0 is a speed.
    const measured = table.prefillSecondsPerToken[i];
    const seconds = measured > 0 && measured < 1 ? measured : usual;
    table.score[i] = table.queuedTokens[i] * seconds + table.requests[i] * each;
  }
  return true;
}
