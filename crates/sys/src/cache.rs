//! The cache of the processor.

/// Bytes that the processor moves at once.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Lets the processor bring a value into its cache, because the caller uses it soon: the wait for memory, 115 ns on an AMD EPYC
/// (30 November 2026), passes beside other work. Does nothing on processors other than x86-64.
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of::<T>()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(value).cast::<i8>().wrapping_add(at);
        // SAFETY: the instruction changes no memory and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
