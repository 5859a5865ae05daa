//! Memory that the kernel has given to the process and that nothing in it uses.

use nix::sys::prctl;

/// Has the kernel use small pages (4 KiB) for this process, and for those that it starts. mimalloc asks for huge ones
/// (`MADV_HUGEPAGE`), of which the first byte costs 2 MiB: a server without traffic had 43 MB instead of 28, and a request cost
/// the same (28 November 2026). A kernel that refuses leaves it as it is. PR_SET_THP_DISABLE(2const).
pub fn use_small_pages() {
    let _ = prctl::set_thp_disable(true);
}

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
