/* The echo admission policy; see policies/abi/testdata/conformance/admission/policy.c. */
import { AdmissionRequest, UNKNOWN, Verdict } from "@yardmaster/policy/assembly";
import { params } from "./policy.gen";

export function admit(r: AdmissionRequest): u64 {
  const what = params.what;
  if (what == 30) return Verdict.admit(200);
  if (what == 31) return Verdict.queue(100);
  if (what == 32) return Verdict.degrade(50);
  if (what == 33) return Verdict.reject(503, 7);
  if (what == 34) return 9;
  if (what == 35) return Verdict.reject(418, 0);
  const v = field(r, what);
  return Verdict.reject(429, v == v ? <u32>v : UNKNOWN);
}

function field(r: AdmissionRequest, what: i64): f64 {
  if (what == 0) return <f64>r.seed;
  if (what == 1) return <f64>r.model;
  if (what == 2) return <f64>r.tenant;
  if (what == 3) return <f64>r.prompt;
  if (what == 4) return <f64>r.output;
  if (what == 5) return <f64>r.class_;
  if (what == 6) return <f64>r.queued;
  if (what == 7) return <f64>r.tenantQueued;
  if (what == 8) return <f64>r.tenantRunning;
  if (what == 9) return <f64>r.workers;
  if (what == 10) return <f64>r.waiting;
  if (what == 11) return <f64>r.tenantTokens;
  if (what == 12) return <f64>r.tenantService;
  if (what == 13) return <f64>r.leastService;
  if (what == 14) return <f64>r.kvUsage;
  if (what == 15) return <f64>r.ttftMs;
  if (what == 16) return <f64>r.sloTtftMs;
  if (what == 17) return <f64>r.deadlineMs;
  if (what == 18) return <f64>r.waitedMs;
  if (what == 19) return <f64>r.itlMs;
  if (what == 20) return <f64>r.sloItlMs;
  return 0;
}
