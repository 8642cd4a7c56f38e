//! Policies for [Yardmaster] in Rust, contract `ym/1`: the request blocks, the host's
//! functions, and the buffers. There is no allocator and nothing of `std`.
//!
//! A policy is a `cdylib` with a `manifest.json`, a file `src/policy_gen.rs` that
//! `yardmaster policy build` makes of it, and one function, by its kind:
//!
//! ```text
//! fn score(r: &RouterRequest, w: &mut Table, p: &Params) -> bool        // router
//! fn admit(r: &AdmissionRequest, p: &Params) -> Verdict                 // admission
//! fn tick(r: &PoolsRequest, s: &mut Table, p: &Params) -> bool          // autoscaler
//! fn observe(r: &OutcomesRequest, o: &mut Table, p: &Params) -> bool    // observer
//! ```
//!
//! `false` is "no opinion": the host's fallback decides. Unknown is not zero: an
//! `f32` that is not known is NaN, a `u32` [`UNKNOWN`].
//!
//! A column is a slice with a place for each row, so that `zip` over columns has no
//! bounds to check and becomes vectors (`-C target-feature=+simd128`). A panic traps;
//! the host then decides without the policy and makes a fresh instance.
//!
//! On other targets than `wasm32` the crate compiles too, with host functions that do
//! nothing, so that a policy's function can be tested by `cargo test`.
//!
//! [Yardmaster]: https://github.com/yardmaster/yardmaster
#![no_std]
#![deny(missing_docs)]

mod buffers;
mod host;
mod request;

pub use buffers::*;
pub use host::*;
pub use request::*;

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}
