//! Learns how long the first token takes from what became of requests: a line through
//! prompt tokens to compute and requests on the worker, by recursive least squares with
//! forgetting. The model is replicated state of 96 bytes, which the router beside it
//! reads at every gateway.
//!
//! What this instance has learnt is also kept in its memory, since a write takes effect
//! later than the next batch comes. Where another node leads, that is forgotten.
#![cfg_attr(target_arch = "wasm32", no_std)]

use core::cell::Cell;
use yardmaster::{kv_get, kv_set, OutcomesRequest, Scope};

include!("policy_gen.rs");

const TERMS: usize = 3;
const KEY: &[u8] = b"ttft";

/// Weights, in milliseconds, and how unsure each is of each.
#[derive(Clone, Copy)]
struct Model {
    weights: [f64; TERMS],
    doubt: [[f64; TERMS]; TERMS],
}

/// Before anything is known: no weights, and much doubt.
const FRESH: Model = Model { weights: [0.0; TERMS], doubt: [[1e4, 0.0, 0.0], [0.0, 1e4, 0.0], [0.0, 0.0, 1e4]] };

/// Doubt does not grow beyond this while nothing new is seen.
const MOST_DOUBT: f64 = 1e6;

struct Memory(Cell<Option<Model>>);

/// A guest has one thread.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(Cell::new(None));

fn observe(r: &OutcomesRequest, o: &mut Table, p: &Params) -> bool {
    if r.leader == 0 {
        MEMORY.0.set(None);
        return true;
    }
    let mut model = MEMORY.0.get().or_else(load).unwrap_or(FRESH);
    let mut learnt = false;
    for i in 0..o.outcome.len() {
        let uncached = o.prompt_tokens[i] - o.hit_tokens[i];
        let (ttft, requests) = (o.ttft_ms[i], o.requests[i]);
        // Unknown numbers fail the comparisons.
        if o.outcome[i] == 0 && ttft > 0.0 && ttft < 600_000.0 && uncached >= 0.0 && requests >= 0.0 {
            let terms = [1.0, f64::from(uncached) / 1000.0, f64::from(requests)];
            model.learn(terms, f64::from(ttft), p.memory);
            learnt = true;
        }
    }
    MEMORY.0.set(Some(model));
    !learnt || kv_set(Scope::Replicated, KEY, &model.bytes())
}

impl Model {
    fn learn(&mut self, terms: [f64; TERMS], seen: f64, memory: f64) {
        let mut pull = [0.0; TERMS]; // doubt · terms
        for (row, v) in self.doubt.iter().zip(&mut pull) {
            *v = dot(row, &terms);
        }
        let all = memory + dot(&terms, &pull);
        let miss = seen - dot(&self.weights, &terms);
        for i in 0..TERMS {
            self.weights[i] += pull[i] / all * miss;
        }
        // Each element once, for the matrix is symmetric and must stay so.
        for i in 0..TERMS {
            for k in 0..=i {
                let v = (self.doubt[i][k] - pull[i] * pull[k] / all) / memory;
                let v = if v > MOST_DOUBT { MOST_DOUBT } else if v < -MOST_DOUBT { -MOST_DOUBT } else { v };
                self.doubt[i][k] = v;
                self.doubt[k][i] = v;
            }
        }
    }

    fn numbers(&mut self) -> impl Iterator<Item = &mut f64> {
        self.weights.iter_mut().chain(self.doubt.iter_mut().flatten())
    }

    fn bytes(mut self) -> [u8; 8 * TERMS * (TERMS + 1)] {
        let mut out = [0; 8 * TERMS * (TERMS + 1)];
        for (v, to) in self.numbers().zip(out.chunks_exact_mut(8)) {
            to.copy_from_slice(&v.to_le_bytes());
        }
        out
    }
}

fn load() -> Option<Model> {
    let mut bytes = [0; 8 * TERMS * (TERMS + 1)];
    if kv_get(Scope::Replicated, KEY, &mut bytes) != Some(bytes.len()) {
        return None;
    }
    let mut model = FRESH;
    for (v, from) in model.numbers().zip(bytes.chunks_exact(8)) {
        let mut word = [0; 8];
        word.copy_from_slice(from);
        *v = f64::from_le_bytes(word);
    }
    Some(model)
}

fn dot(a: &[f64; TERMS], b: &[f64; TERMS]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}
