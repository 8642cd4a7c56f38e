/* The echo autoscaler; see policies/abi/testdata/conformance/autoscaler/policy.c. */
import { PoolsRequest, Scope, host } from "@yardmaster/policy/assembly";
import { params, table } from "./policy.gen";

const text: usize = memory.data<u8>([0x70, 0x6c, 0x61, 0x6e, 0x73, 0x65, 0x65, 0x6e, 0x61, 0x62, 0x63]); // planseenabc

export function tick(r: PoolsRequest): bool {
  const what = params.what;
  let v: u32 = 0;
  if (what == 0) v = <u32>r.nowMs;
  if (what == 1) v = <u32>r.seed;
  if (what == 2) v = <u32>r.columns;
  if (what == 3) v = r.pools;
  if (what == 4) v = r.samples;
  if (what == 5) v = r.intervalMs;
  if (what == 6) v = r.budget;
  if (what == 30) {
    const wrote = host.kvSet(Scope.Replicated, text, 4, text + 8, 3) + 1;
    v = <u32>(wrote * 100 + host.kvGet(Scope.Replicated, text + 4, 4, text, 0));
  }
  for (let pool = 0; pool < <i32>r.pools; pool++) {
    const first = pool * <i32>r.samples;
    table.desired[pool] = v;
    table.reason[pool] = what == 20 ? table.role[first] : <u32>table.replicas[first + <i32>r.samples - 1];
  }
  return true;
}
