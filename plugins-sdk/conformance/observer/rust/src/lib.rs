//! The echo observer; see policies/abi/testdata/conformance/observer/policy.c.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::*;

include!("policy_gen.rs");

fn observe(r: &OutcomesRequest, o: &mut Table, p: &Params) -> bool {
    let all = [r.now_ms, r.seed, r.columns, r.leader.into(), r.lost.into()];
    let mut v = usize::try_from(p.what).ok().and_then(|i| all.get(i)).copied().unwrap_or(0) as i64;
    for (outcome, ttft) in o.outcome.iter().zip(o.ttft_ms) {
        match p.what {
            20 => v += i64::from(*outcome),
            21 if !ttft.is_nan() => v += *ttft as i64,
            _ => {}
        }
    }
    kv_add(Scope::Replicated, b"echo", v).is_some()
}
