//! The echo router; see policies/abi/testdata/conformance/router/policy.c.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::*;

include!("policy_gen.rs");

fn field(r: &RouterRequest, p: &Params) -> f64 {
    let all = [
        r.seed as f64,
        r.model as f64,
        r.tenant as f64,
        r.session as f64,
        r.columns as f64,
        r.prompt.into(),
        r.output.into(),
        r.block_tokens.into(),
        r.class.into(),
        r.phase.into(),
        r.slo_ttft_ms.into(),
        r.slo_itl_ms.into(),
        r.waited_ms.into(),
    ];
    let mut buf = [0; 100];
    buf[0] = 1;
    let length = |v: Option<usize>| v.map_or(-1.0, |n| n as f64);
    match p.what {
        30 => p.weight,
        31 => f64::from(u8::from(p.flag)),
        32 => p.what as f64,
        40 => now_ms() as f64,
        41 => {
            rand_u64();
            (rand_u64() >> 40) as f64
        }
        50 => kv_add(Scope::Local, b"n", 3).unwrap_or(i64::MIN) as f64,
        51 => f64::from(i8::from(kv_set(Scope::Replicated, b"k", b"v")) - 1),
        52 => length(kv_get(Scope::Local, b"nothing", &mut buf)),
        53 => {
            kv_set(Scope::Local, b"long", &buf);
            length(kv_get(Scope::Local, b"long", &mut buf[1..11]))
        }
        54 => (0..9).map(|_| kv_add(Scope::Local, b"nine", 1).unwrap_or(i64::MIN) as f64).last().unwrap_or(0.0),
        61 => panic!(),
        62 => loop {
            core::hint::spin_loop();
        },
        what => usize::try_from(what).ok().and_then(|i| all.get(i)).copied().unwrap_or(-1.0),
    }
}

fn score(r: &RouterRequest, w: &mut Table, p: &Params) -> bool {
    COUNTER_ROWS.add(w.score.len() as i64);
    COUNTER_CALLS.add(1);
    HISTOGRAM_SIZES.observe(w.score.len() as f64);
    log(Level::Info, "echo");
    if p.what == 60 {
        return false;
    }
    let v = field(r, p) as f32;
    for i in 0..w.score.len() {
        w.score[i] = match p.what {
            20 => w.requests[i],
            21 => w.role[i] as f32,
            22 => w.not_yet_known[i],
            _ => v,
        };
    }
    true
}
