/* The echo observer; see policies/abi/testdata/conformance/observer/policy.c. */
import { OutcomesRequest, Scope, host } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

const key: usize = memory.data<u8>([0x65, 0x63, 0x68, 0x6f]); // echo

export function observe(r: OutcomesRequest, n: i32): bool {
  const what = params.what;
  let v: i64 = 0;
  if (what == 0) v = <i64>r.nowMs;
  if (what == 1) v = <i64>r.seed;
  if (what == 2) v = <i64>r.columns;
  if (what == 3) v = <i64>r.leader;
  if (what == 4) v = <i64>r.lost;
  for (let i = 0; i < n; i++) {
    const ttft = table.ttftMs[i];
    if (what == 20) v += <i64>table.outcome[i];
    if (what == 21 && ttft == ttft) v += <i64>ttft;
  }
  return host.kvAdd(Scope.Replicated, key, 4, v) != i64.MIN_VALUE;
}
