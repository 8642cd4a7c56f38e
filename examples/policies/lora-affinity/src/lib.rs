//! Requests for an adapter go where it is loaded, unless that worker has so much more
//! to do that loading it elsewhere is quicker: the load is divided by an affinity.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::RouterRequest;

include!("policy_gen.rs");

fn score(r: &RouterRequest, w: &mut Table, p: &Params) -> bool {
    let (prompt, each) = (r.prompt as f32, p.request_tokens as f32);
    for i in 0..w.score.len() {
        let load = w.queued_tokens[i] + (prompt - w.hit_tokens[i]) + each * (w.requests[i] + 1.0);
        w.score[i] = load / affinity(w, p, i);
    }
    true
}

fn affinity(w: &Table, p: &Params, i: usize) -> f32 {
    if w.lora[i] == 1 {
        1.0 // loaded, or the model needs none
    } else if w.adapter_slots[i] < w.adapters[i] {
        p.no_slot as f32
    } else {
        p.free_slot as f32 // also where the number of slots is unknown
    }
}
