//! Dynamo's cost: the blocks in front of the first token, times a scale, and the blocks
//! that the worker would hold with this request. Blocks that are in the worker's cache
//! need no computing and are held already.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::RouterRequest;

include!("policy_gen.rs");

fn score(r: &RouterRequest, w: &mut Table, p: &Params) -> bool {
    let (scale, each, prompt) = (p.scale as f32, p.request_blocks as f32, r.prompt as f32);
    let blocks = 1.0 / if r.block_tokens > 0 { r.block_tokens as f32 } else { 16.0 };
    let columns = w.queued_tokens.iter().zip(w.hit_tokens).zip(w.active_blocks).zip(w.requests);
    for (score, (((queued, hit), active), requests)) in w.score.iter_mut().zip(columns) {
        let missing = prompt - hit;
        let ahead = queued + missing;
        let compute = if ahead < 0.0 { 0.0 } else { ahead } * blocks;
        let hold = active + missing * blocks;
        *score = scale * compute + hold + each * requests;
    }
    true
}
