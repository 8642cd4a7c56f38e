/// A `u32` that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// The request that a router finds a worker for. Times are in milliseconds, NaN if
/// unknown.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct RouterRequest {
    /// Of this decision's random numbers.
    pub seed: u64,
    /// Hash of the model's name.
    pub model: u64,
    /// Hash of the tenant.
    pub tenant: u64,
    /// Hash of the session, 0 if there is none.
    pub session: u64,
    /// Bit i: the manifest's column i is filled.
    pub columns: u64,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of output expected, or [`UNKNOWN`].
    pub output: u32,
    /// Tokens of a KV block, 0 if unknown.
    pub block_tokens: u32,
    /// Priority, 0 the least urgent.
    pub class: u32,
    /// 0 both, 1 prefill, 2 decode.
    pub phase: u32,
    /// Wanted time to first token.
    pub slo_ttft_ms: f32,
    /// Wanted time between tokens.
    pub slo_itl_ms: f32,
    /// In the gateway's queue so far.
    pub waited_ms: f32,
}

/// The request that an admission policy lets in or not. Times are in milliseconds;
/// they and quotas are NaN if unknown.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmissionRequest {
    /// Of this decision's random numbers.
    pub seed: u64,
    /// Hash of the model's name.
    pub model: u64,
    /// Hash of the tenant.
    pub tenant: u64,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of output expected, or [`UNKNOWN`].
    pub output: u32,
    /// Priority, 0 the least urgent.
    pub class: u32,
    /// Requests in this gateway's queue.
    pub queued: u32,
    /// Those of the tenant.
    pub tenant_queued: u32,
    /// The tenant's requests being served.
    pub tenant_running: u32,
    /// Workers that could serve the request.
    pub workers: u32,
    /// Requests that wait at those.
    pub waiting: u32,
    /// Tokens left of the tenant's quota, NaN without one.
    pub tenant_tokens: f32,
    /// The tenant's weighted service, in tokens.
    pub tenant_service: f32,
    /// The least of any tenant that waits.
    pub least_service: f32,
    /// KV blocks held over those there are.
    pub kv_usage: f32,
    /// Predicted time to first token.
    pub ttft_ms: f32,
    /// Wanted time to first token.
    pub slo_ttft_ms: f32,
    /// Until the client gives up.
    pub deadline_ms: f32,
    /// In the gateway's queue so far.
    pub waited_ms: f32,
    /// Predicted time between tokens.
    pub itl_ms: f32,
    /// Wanted time between tokens.
    pub slo_itl_ms: f32,
}

/// What an autoscaler knows beside its samples. Row `pool * samples + sample` of the
/// table is a sample of a pool, the newest last.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolsRequest {
    /// Unix time.
    pub now_ms: u64,
    /// Of this decision's random numbers.
    pub seed: u64,
    /// Bit i: the manifest's column i is filled.
    pub columns: u64,
    /// How many pools there are.
    pub pools: u32,
    /// Samples of each pool.
    pub samples: u32,
    /// Between samples.
    pub interval_ms: u32,
    /// Replicas of all pools together.
    pub budget: u32,
}

/// What an observer knows beside the outcomes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct OutcomesRequest {
    /// Unix time.
    pub now_ms: u64,
    /// Of this call's random numbers.
    pub seed: u64,
    /// Bit i: the manifest's column i is filled.
    pub columns: u64,
    /// 1 where replicated state may be written.
    pub leader: u32,
    /// Outcomes that were dropped since the last call.
    pub lost: u32,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Serve it; the greater priority goes first.
    Admit {
        /// The greater, the sooner.
        priority: u8,
    },
    /// Let it wait.
    Queue {
        /// The greater, the sooner.
        priority: u8,
    },
    /// Refuse it.
    Reject {
        /// 429 or 503.
        status: u16,
        /// When to come back.
        retry_after_ms: u32,
    },
    /// Serve it with a shorter output.
    Degrade {
        /// The greater, the sooner.
        priority: u8,
    },
}

impl Verdict {
    /// The verdict in one word, as the contract has it.
    pub fn word(self) -> u64 {
        match self {
            Verdict::Admit { priority } => u64::from(priority) << 8,
            Verdict::Queue { priority } => u64::from(priority) << 8 | 1,
            Verdict::Reject { status, retry_after_ms } => u64::from(retry_after_ms) << 32 | u64::from(status) << 16 | 2,
            Verdict::Degrade { priority } => u64::from(priority) << 8 | 3,
        }
    }
}

// The contract's sizes.
const _: () = assert!(core::mem::size_of::<RouterRequest>() == 72);
const _: () = assert!(core::mem::size_of::<AdmissionRequest>() == 96);
const _: () = assert!(core::mem::size_of::<PoolsRequest>() == 40);
const _: () = assert!(core::mem::size_of::<OutcomesRequest>() == 32);
