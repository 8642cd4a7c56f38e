/// How much a log line matters.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Level {
    /// For whoever writes the policy.
    Debug,
    /// Worth knowing.
    Info,
    /// Worth looking at.
    Warn,
    /// Something is wrong.
    Error,
}

/// Whose state is meant.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Scope {
    /// This node's, which may be lost.
    Local,
    /// The cluster's, which only autoscalers and observers write.
    Replicated,
}

/// One of the manifest's counters, by its place.
#[derive(Clone, Copy, Debug)]
pub struct Counter(pub u32);

/// One of the manifest's histograms, by its place.
#[derive(Clone, Copy, Debug)]
pub struct Histogram(pub u32);

#[cfg(target_arch = "wasm32")]
mod imports {
    #[link(wasm_import_module = "ym1")]
    extern "C" {
        pub fn log(level: u32, line: *const u8, size: u32);
        pub fn now_ms() -> i64;
        pub fn rand_u64() -> u64;
        pub fn counter_add(id: u32, n: i64);
        pub fn hist_observe(id: u32, value: f64);
        pub fn kv_get(scope: u32, key: *const u8, key_size: u32, value: *mut u8, value_size: u32) -> i32;
        pub fn kv_set(scope: u32, key: *const u8, key_size: u32, value: *const u8, value_size: u32) -> i32;
        pub fn kv_add(scope: u32, key: *const u8, key_size: u32, delta: i64) -> i64;
    }
}

// Without a host there is no state, no clock and no chance.
#[cfg(not(target_arch = "wasm32"))]
#[allow(clippy::missing_safety_doc)]
mod imports {
    pub unsafe fn log(_: u32, _: *const u8, _: u32) {}
    pub unsafe fn now_ms() -> i64 {
        0
    }
    pub unsafe fn rand_u64() -> u64 {
        0
    }
    pub unsafe fn counter_add(_: u32, _: i64) {}
    pub unsafe fn hist_observe(_: u32, _: f64) {}
    pub unsafe fn kv_get(_: u32, _: *const u8, _: u32, _: *mut u8, _: u32) -> i32 {
        -1
    }
    pub unsafe fn kv_set(_: u32, _: *const u8, _: u32, _: *const u8, _: u32) -> i32 {
        -1
    }
    pub unsafe fn kv_add(_: u32, _: *const u8, _: u32, _: i64) -> i64 {
        i64::MIN
    }
}

/// Writes a line of at most 1 KiB. The manifest needs the capability `log`.
pub fn log(level: Level, line: &str) {
    unsafe { imports::log(level as u32, line.as_ptr(), line.len() as u32) }
}

/// Unix time in milliseconds, the same throughout a call. The manifest needs the
/// capability `time`.
pub fn now_ms() -> i64 {
    unsafe { imports::now_ms() }
}

/// The next of a sequence that follows from the request's id. The manifest needs the
/// capability `random`.
pub fn rand_u64() -> u64 {
    unsafe { imports::rand_u64() }
}

impl Counter {
    /// Adds to the counter. The manifest needs the capability `metrics`.
    pub fn add(self, n: i64) {
        unsafe { imports::counter_add(self.0, n) }
    }
}

impl Histogram {
    /// Counts a value. The manifest needs the capability `metrics`.
    pub fn observe(self, value: f64) {
        unsafe { imports::hist_observe(self.0, value) }
    }
}

/// Copies the value under a key into `value`, if it fits, and returns its whole
/// length; `None` if there is none. The manifest needs the capability `state`, for 8
/// operations a call.
pub fn kv_get(scope: Scope, key: &[u8], value: &mut [u8]) -> Option<usize> {
    let n = unsafe { imports::kv_get(scope as u32, key.as_ptr(), key.len() as u32, value.as_mut_ptr(), value.len() as u32) };
    usize::try_from(n).ok()
}

/// Stores a value of at most 4 KiB under a key of at most 128 bytes, and says whether
/// it did.
pub fn kv_set(scope: Scope, key: &[u8], value: &[u8]) -> bool {
    unsafe { imports::kv_set(scope as u32, key.as_ptr(), key.len() as u32, value.as_ptr(), value.len() as u32) == 0 }
}

/// Adds to the number under a key, 8 bytes with the lowest first, and returns the sum;
/// `None` if refused.
pub fn kv_add(scope: Scope, key: &[u8], delta: i64) -> Option<i64> {
    match unsafe { imports::kv_add(scope as u32, key.as_ptr(), key.len() as u32, delta) } {
        i64::MIN => None,
        sum => Some(sum),
    }
}
