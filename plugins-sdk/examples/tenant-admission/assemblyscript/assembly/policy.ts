/* A token bucket for each tenant. A request takes its prompt and its expected output
 * from it. One that is short for a moment waits; one that is short for longer is
 * refused, and told when to come back. One that would come too late for its client is
 * refused before it costs anybody anything.
 *
 * The buckets are in the node's state, for instances of a policy share no memory. Two
 * requests at the same instant may both be let through on one's tokens: state is read
 * and written in two steps, and what one of them took is forgotten. */
import { AdmissionRequest, Scope, UNKNOWN, Verdict, host } from "@yardmaster/policy/assembly";
import { COUNTER_HOPELESS, COUNTER_REFUSED, params } from "./policy.gen";

const MOST_MS: f64 = 3600000;

// The key is "b" and the tenant, the value the tokens and when that was.
const key: usize = memory.data(9, 8);
const value: usize = memory.data(16, 8);

export function admit(r: AdmissionRequest): u64 {
  const priority: u8 = r.class_ < 255 ? <u8>r.class_ : 255;
  // False if either is unknown.
  if (r.ttftMs > r.deadlineMs) {
    host.counterAdd(COUNTER_HOPELESS, 1);
    return Verdict.reject(503, wholeMs(<f64>r.ttftMs - <f64>r.deadlineMs));
  }
  const output: f64 = r.output == UNKNOWN ? <f64>params.usualOutput : <f64>r.output;
  let need: f64 = <f64>r.prompt + output;
  if (need > params.burstTokens) need = params.burstTokens; // or it would never be served

  store<u8>(key, 0x62);
  store<u64>(key, r.tenant, 1);
  const now = host.nowMs();
  const left = filled(now) - need;
  const shortMs: f64 = left < 0 ? (-left * 1000) / params.tokensPerSecond : 0;
  if (shortMs > params.queueMs) {
    host.counterAdd(COUNTER_REFUSED, 1);
    return Verdict.reject(429, wholeMs(shortMs));
  }
  store<f64>(value, left);
  store<i64>(value, now, 8);
  host.kvSet(Scope.Local, key, 9, value, 16);
  return shortMs > 0 ? Verdict.queue(priority) : Verdict.admit(priority);
}

/** What the bucket under key holds by now. */
function filled(now: i64): f64 {
  if (host.kvGet(Scope.Local, key, 9, value, 16) != 16) return params.burstTokens;
  const at = load<i64>(value, 8);
  const passed: f64 = now > at ? <f64>(now - at) : 0;
  const tokens = load<f64>(value) + (passed * params.tokensPerSecond) / 1000;
  return tokens < params.burstTokens ? tokens : params.burstTokens;
}

function wholeMs(ms: f64): u32 {
  return ms < MOST_MS ? <u32>ceil<f64>(ms) : <u32>MOST_MS;
}
