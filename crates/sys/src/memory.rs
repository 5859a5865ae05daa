//! Memory that the calling thread has freed and that the allocator still holds.

/// Returns the memory that the calling thread has freed to the system. mimalloc returns memory only during other calls
/// of the thread: for an idle thread it would keep all of it. Takes microseconds per MiB in use. Does nothing without
/// the feature `mimalloc`.
pub fn give_back() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: any thread may call `mi_collect` at any time (mimalloc.h); the function frees only memory that is not in
    // use.
    unsafe {
        mi_collect(true);
    }
}

// `libmimalloc_sys` declares `mi_collect` only with its feature `extended`, which needs one more crate.
#[cfg(feature = "mimalloc")]
use libmimalloc_sys as _;

#[cfg(feature = "mimalloc")]
unsafe extern "C" {
    fn mi_collect(force: bool);
}
