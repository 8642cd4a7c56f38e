//! A pool grows when requests wait or KV blocks run short, and shrinks by one when
//! neither is so. Both are means over the samples. While replicas start, the pool does
//! not change: what they will take over is not seen yet.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::PoolsRequest;

include!("policy_gen.rs");

const HOLD: u32 = 0;
const QUEUE: u32 = 1;
const KV: u32 = 2;
const IDLE: u32 = 3;
const STARTING: u32 = 4;
const UNKNOWN: u32 = 5;

fn tick(r: &PoolsRequest, t: &mut Table, p: &Params) -> bool {
    let n = r.samples as usize;
    if n == 0 {
        return false;
    }
    for pool in 0..r.pools as usize {
        let (desired, reason) = decide(t, p, pool * n, (pool + 1) * n);
        t.desired[pool] = desired;
        t.reason[pool] = reason;
    }
    true
}

fn decide(t: &Table, p: &Params, from: usize, to: usize) -> (u32, u32) {
    let replicas = or_zero(t.replicas[to - 1]);
    let ready = or_zero(t.ready[to - 1]);
    let serving = if ready > 1.0 { ready } else { 1.0 };
    let queue = (mean(&t.queued[from..to]) + mean(&t.waiting[from..to])) / serving;
    let kv = mean(&t.kv_usage[from..to]);

    // How far above its mark each signal is; comparisons with NaN are false.
    let (by_queue, by_kv) = (queue / p.queue_high, kv / p.kv_high);
    if queue.is_nan() && kv.is_nan() {
        (replicas as u32, UNKNOWN)
    } else if or_zero(t.pending[to - 1]) > 0.0 {
        (replicas as u32, STARTING)
    } else if by_kv > 1.0 && !(by_queue > by_kv) {
        (grown(replicas, serving, by_kv), KV)
    } else if by_queue > 1.0 {
        (grown(replicas, serving, by_queue), QUEUE)
    } else if queue < p.queue_low && kv < p.kv_low && replicas > 0.0 {
        ((replicas - 1.0) as u32, IDLE)
    } else {
        (replicas as u32, HOLD)
    }
}

/// At most double, and no less than there are.
fn grown(replicas: f64, serving: f64, factor: f64) -> u32 {
    let want = serving * if factor < 2.0 { factor } else { 2.0 };
    let whole = want as u32; // towards 0
    let want = whole + u32::from(f64::from(whole) < want);
    want.max(replicas as u32)
}

/// That of the known values; NaN without one.
fn mean(values: &[f32]) -> f64 {
    let (mut sum, mut known) = (0.0, 0.0);
    for &v in values {
        if !v.is_nan() {
            sum += f64::from(v);
            known += 1.0;
        }
    }
    sum / known
}

fn or_zero(v: f32) -> f64 {
    if v.is_nan() {
        0.0
    } else {
        f64::from(v)
    }
}
