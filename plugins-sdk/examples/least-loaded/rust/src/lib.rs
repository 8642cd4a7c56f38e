//! The worker with the shortest wait: what it still has to compute, at its measured
//! speed, and something for each request that it serves.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::RouterRequest;

include!("policy_gen.rs");

fn score(_: &RouterRequest, w: &mut Table, p: &Params) -> bool {
    let (usual, each) = (p.token_seconds as f32, p.request_seconds as f32);
    let columns = w.queued_tokens.iter().zip(w.prefill_seconds_per_token).zip(w.requests);
    for (score, ((queued, &measured), requests)) in w.score.iter_mut().zip(columns) {
        // Neither unknown (NaN) nor the inverse of a rate of 0 is a speed.
        let seconds = if measured > 0.0 && measured < 1.0 { measured } else { usual };
        *score = queued * seconds + requests * each;
    }
    true
}
