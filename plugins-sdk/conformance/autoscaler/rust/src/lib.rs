//! The echo autoscaler; see policies/abi/testdata/conformance/autoscaler/policy.c.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::*;

include!("policy_gen.rs");

fn tick(r: &PoolsRequest, t: &mut Table, p: &Params) -> bool {
    let all = [r.now_ms, r.seed, r.columns, r.pools.into(), r.samples.into(), r.interval_ms.into(), r.budget.into()];
    let mut v = usize::try_from(p.what).ok().and_then(|i| all.get(i)).copied().unwrap_or(0) as u32;
    if p.what == 30 {
        let wrote = kv_set(Scope::Replicated, b"plan", b"abc");
        v = u32::from(wrote) * 100 + kv_get(Scope::Replicated, b"seen", &mut []).unwrap_or(0) as u32;
    }
    let samples = r.samples as usize;
    for pool in 0..t.desired.len() {
        t.desired[pool] = v;
        t.reason[pool] = if p.what == 20 { t.role[pool * samples] } else { t.replicas[(pool + 1) * samples - 1] as u32 };
    }
    true
}
