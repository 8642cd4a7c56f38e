use core::cell::UnsafeCell;

/// How many workers, samples or outcomes one call can take.
pub const ROWS: usize = 4096;

/// Something that the host writes between calls. A guest has one thread, and the host
/// writes only while the guest does not run.
#[doc(hidden)]
#[repr(C, align(16))]
pub struct Shared<T>(UnsafeCell<T>);

unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[doc(hidden)]
    pub const fn new(v: T) -> Self {
        Shared(UnsafeCell::new(v))
    }

    #[doc(hidden)]
    pub const fn at(&self) -> *mut T {
        self.0.get()
    }
}

/// A column's memory.
#[doc(hidden)]
pub type Column<T> = Shared<[T; ROWS]>;

/// The first `n` rows of a column. It panics if there are fewer.
///
/// # Safety
///
/// No other reference to the column may be alive.
#[doc(hidden)]
pub unsafe fn rows<'a, T>(column: &'a Column<T>, n: usize) -> &'a mut [T] {
    assert!(n <= ROWS);
    core::slice::from_raw_parts_mut(column.at().cast::<T>(), n)
}

/// The header through which the host finds the buffers.
#[doc(hidden)]
#[repr(C)]
pub struct Header<const COLUMNS: usize> {
    pub magic: u32,
    pub abi: u32,
    pub words: u32,
    pub rows: u32,
    pub request: *const u8,
    pub request_size: u32,
    pub params: *const u8,
    pub params_size: u32,
    pub inputs: u32,
    pub outputs: u32,
    pub columns: [*const u8; COLUMNS],
}

unsafe impl<const COLUMNS: usize> Sync for Header<COLUMNS> {}

/// What a call returns: that it has decided, or not.
#[doc(hidden)]
pub fn code(decided: bool) -> i32 {
    i32::from(!decided)
}
