//! Memory that the allocator keeps for a thread that does not need it any more.

/// Gives the system back what the calling thread has freed and the allocator still holds. mimalloc does that only as it
/// goes about other work: of a thread that fell silent it would keep everything. Takes microseconds per MiB in use.
/// Without the feature `mimalloc` it does nothing.
pub fn give_back() {
    #[cfg(feature = "mimalloc")]
    // SAFETY: any thread may call it at any time (mimalloc.h); it touches only what nobody uses.
    unsafe {
        mi_collect(true);
    }
}

// Without its feature `extended`, which wants one crate more, the library's own crate does not name it.
#[cfg(feature = "mimalloc")]
use libmimalloc_sys as _;

#[cfg(feature = "mimalloc")]
unsafe extern "C" {
    fn mi_collect(force: bool);
}
