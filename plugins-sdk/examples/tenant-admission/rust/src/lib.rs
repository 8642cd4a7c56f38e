//! A token bucket for each tenant. A request takes its prompt and its expected output
//! from it. One that is short for a moment waits; one that is short for longer is
//! refused, and told when to come back. One that would come too late for its client is
//! refused before it costs anybody anything.
//!
//! The buckets are in the node's state, for instances of a policy share no memory. Two
//! requests at the same instant may both be let through on one's tokens: state is read
//! and written in two steps, and what one of them took is forgotten.
#![cfg_attr(target_arch = "wasm32", no_std)]

use yardmaster::{kv_get, kv_set, now_ms, AdmissionRequest, Scope, Verdict, UNKNOWN};

include!("policy_gen.rs");

const MOST_MS: f64 = 3_600_000.0;

fn admit(r: &AdmissionRequest, p: &Params) -> Verdict {
    let priority = r.class.min(255) as u8;
    // False if either is unknown.
    if r.ttft_ms > r.deadline_ms {
        COUNTER_HOPELESS.add(1);
        return Verdict::Reject { status: 503, retry_after_ms: whole_ms(f64::from(r.ttft_ms) - f64::from(r.deadline_ms)) };
    }
    let output = if r.output == UNKNOWN { p.usual_output as f64 } else { f64::from(r.output) };
    let mut need = f64::from(r.prompt) + output;
    if need > p.burst_tokens {
        need = p.burst_tokens; // or it would never be served
    }

    let mut key = [b'b'; 9];
    key[1..].copy_from_slice(&r.tenant.to_le_bytes());
    let now = now_ms();
    let left = filled(&key, now, p) - need;
    let short_ms = if left < 0.0 { -left * 1000.0 / p.tokens_per_second } else { 0.0 };
    if short_ms > p.queue_ms {
        COUNTER_REFUSED.add(1);
        return Verdict::Reject { status: 429, retry_after_ms: whole_ms(short_ms) };
    }
    let mut value = [0; 16];
    value[..8].copy_from_slice(&left.to_le_bytes());
    value[8..].copy_from_slice(&now.to_le_bytes());
    kv_set(Scope::Local, &key, &value);
    if short_ms > 0.0 {
        Verdict::Queue { priority }
    } else {
        Verdict::Admit { priority }
    }
}

/// What the bucket holds by now.
fn filled(key: &[u8], now: i64, p: &Params) -> f64 {
    let mut value = [0; 16];
    if kv_get(Scope::Local, key, &mut value) != Some(value.len()) {
        return p.burst_tokens;
    }
    let word = u128::from_le_bytes(value);
    let tokens = f64::from_bits(word as u64);
    let at = (word >> 64) as u64 as i64;
    let passed = if now > at { (now - at) as f64 } else { 0.0 };
    let tokens = tokens + passed * p.tokens_per_second / 1000.0;
    if tokens < p.burst_tokens { tokens } else { p.burst_tokens }
}

fn whole_ms(ms: f64) -> u32 {
    if !(ms < MOST_MS) {
        return MOST_MS as u32;
    }
    let whole = ms as u32; // towards 0
    whole + u32::from(f64::from(whole) < ms)
}
