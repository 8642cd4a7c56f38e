//! my-policy: the worker that has the least to compute before the first token.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::RouterRequest;

include!("policy_gen.rs");

#[cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]
fn score(r: &RouterRequest, w: &mut Table, p: &Params) -> bool {
    let (prompt, weight) = (r.prompt as f32, p.hit_weight as f32);
    for (score, (queued, hit)) in w.score.iter_mut().zip(w.queued_tokens.iter().zip(w.hit_tokens)) {
        *score = queued + (prompt - weight * hit);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_prompt_is_worth_a_queue() {
        let mut score = [0.0; 2];
        let mut table = Table { queued_tokens: &[900.0, 100.0], hit_tokens: &[992.0, 0.0], score: &mut score };
        let request = RouterRequest { prompt: 1000, ..Default::default() };
        assert!(super::score(&request, &mut table, &Params { hit_weight: 1.0 }));
        assert_eq!(score, [908.0, 1100.0]);
    }
}
