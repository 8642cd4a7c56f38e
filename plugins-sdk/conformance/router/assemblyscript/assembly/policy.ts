/* The echo router; see policies/abi/testdata/conformance/router/policy.c. */
import { Level, RouterRequest, Scope, host } from "@yardmaster/policy/assembly";
import { COUNTER_CALLS, COUNTER_ROWS, HISTOGRAM_SIZES, params, table } from "./policy.gen";

const text: usize = memory.data<u8>([0x6e, 0x69, 0x6e, 0x65, 0x6b, 0x76, 0x65, 0x63, 0x68, 0x6f]); // ninekvecho
const buf: usize = memory.data(100, 8);

function field(r: RouterRequest): f64 {
  const what = params.what;
  if (what == 0) return <f64>r.seed;
  if (what == 1) return <f64>r.model;
  if (what == 2) return <f64>r.tenant;
  if (what == 3) return <f64>r.session;
  if (what == 4) return <f64>r.columns;
  if (what == 5) return <f64>r.prompt;
  if (what == 6) return <f64>r.output;
  if (what == 7) return <f64>r.blockTokens;
  if (what == 8) return <f64>r.class_;
  if (what == 9) return <f64>r.phase;
  if (what == 10) return <f64>r.sloTtftMs;
  if (what == 11) return <f64>r.sloItlMs;
  if (what == 12) return <f64>r.waitedMs;
  if (what == 30) return params.weight;
  if (what == 31) return <f64>params.flag;
  if (what == 32) return <f64>params.what;
  if (what == 40) return <f64>host.nowMs();
  if (what == 41) {
    host.rand();
    return <f64>(host.rand() >> 40);
  }
  if (what == 50) return <f64>host.kvAdd(Scope.Local, text, 1, 3);
  if (what == 51) return <f64>host.kvSet(Scope.Replicated, text + 4, 1, text + 5, 1);
  if (what == 52) return <f64>host.kvGet(Scope.Local, text + 3, 7, buf, 100);
  if (what == 53) {
    store<u32>(buf + 96, 0);
    store<u8>(buf, 1);
    store<u32>(buf + 4, 0x676e6f6c); // long
    host.kvSet(Scope.Local, buf + 4, 4, zeros(), 100);
    return <f64>host.kvGet(Scope.Local, buf + 4, 4, buf + 20, 10);
  }
  if (what == 54) {
    let last: i64 = 0;
    for (let i = 0; i < 9; i++) last = host.kvAdd(Scope.Local, text, 4, 1);
    return <f64>last;
  }
  if (what == 61) unreachable();
  if (what == 62) while (params.what == 62) store<u8>(buf, 0);
  return -1;
}

const value: usize = memory.data(100, 8);

function zeros(): usize {
  store<u8>(value, 1);
  return value;
}

export function score(r: RouterRequest, n: i32): bool {
  host.counterAdd(COUNTER_ROWS, n);
  host.counterAdd(COUNTER_CALLS, 1);
  host.histObserve(HISTOGRAM_SIZES, <f64>n);
  host.log(Level.Info, text + 6, 4);
  if (params.what == 60) return false;
  const v = <f32>field(r);
  for (let i = 0; i < n; i++) {
    if (params.what == 20) table.score[i] = table.requests[i];
    else if (params.what == 21) table.score[i] = <f32>table.role[i];
    else if (params.what == 22) table.score[i] = table.notYetKnown[i];
    else table.score[i] = v;
  }
  return true;
}
