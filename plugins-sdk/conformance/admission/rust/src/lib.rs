//! The echo admission policy; see policies/abi/testdata/conformance/admission/policy.c.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::*;

include!("policy_gen.rs");

fn admit(r: &AdmissionRequest, p: &Params) -> Verdict {
    let all = [
        r.seed as f64,
        r.model as f64,
        r.tenant as f64,
        r.prompt.into(),
        r.output.into(),
        r.class.into(),
        r.queued.into(),
        r.tenant_queued.into(),
        r.tenant_running.into(),
        r.workers.into(),
        r.waiting.into(),
        r.tenant_tokens.into(),
        r.tenant_service.into(),
        r.least_service.into(),
        r.kv_usage.into(),
        r.ttft_ms.into(),
        r.slo_ttft_ms.into(),
        r.deadline_ms.into(),
        r.waited_ms.into(),
        r.itl_ms.into(),
        r.slo_itl_ms.into(),
    ];
    match p.what {
        30 => Verdict::Admit { priority: 200 },
        31 => Verdict::Queue { priority: 100 },
        32 => Verdict::Degrade { priority: 50 },
        33 => Verdict::Reject { status: 503, retry_after_ms: 7 },
        // An action that there is not cannot be said in Rust.
        34 | 35 => Verdict::Reject { status: 418, retry_after_ms: 0 },
        what => {
            let v: f64 = usize::try_from(what).ok().and_then(|i| all.get(i)).copied().unwrap_or(0.0);
            Verdict::Reject { status: 429, retry_after_ms: if v.is_nan() { UNKNOWN } else { v as u32 } }
        }
    }
}
