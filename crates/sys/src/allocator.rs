//! The allocator of the process: mimalloc.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// mimalloc as the allocator of the process. It is asked for an alignment only where it would not give it anyway: with
/// one, it searches a block for most sizes above 1 KiB, instead of taking the first.
pub struct Mimalloc;

/// Alignment of each block of at least as many bytes (`MI_MAX_ALIGN_SIZE`, mimalloc/types.h).
const ALIGNED_ANYWAY: usize = 16;

/// Whether each block of this size has the alignment, also without being asked for it. Smaller blocks have 8 bytes, and
/// are aligned to 8.
fn is_aligned_anyway(size: usize, align: usize) -> bool {
    align <= ALIGNED_ANYWAY / 2 || align == ALIGNED_ANYWAY && size >= ALIGNED_ANYWAY
}

// SAFETY: the functions of mimalloc have the contract of this trait, and do not unwind. Those without an alignment are
// called only where each block has it.
unsafe impl GlobalAlloc for Mimalloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: `align` is a power of two.
        let block = unsafe {
            match is_aligned_anyway(size, align) {
                true => mi_malloc(size),
                false => mi_malloc_aligned(size, align),
            }
        };
        block.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: `align` is a power of two.
        let block = unsafe {
            match is_aligned_anyway(size, align) {
                true => mi_zalloc(size),
                false => mi_zalloc_aligned(size, align),
            }
        };
        block.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller got the block from this allocator.
        unsafe { mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (block, align) = (block.cast(), layout.align());
        // SAFETY: the caller got the block from this allocator; `align` is a power of two.
        let block = unsafe {
            match is_aligned_anyway(size, align) {
                true => mi_realloc(block, size),
                false => mi_realloc_aligned(block, size, align),
            }
        };
        block.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_its_alignment_also_after_it_has_grown() {
        for align in [1, 2, 4, 8, 16, 32, 64, 128, 4096] {
            for size in [1, 7, 8, 9, 15, 16, 17, 24, 40, 100, 129, 1000, 1025, 3333, 9000, 70_000, 3_000_000]
            {
                let layout = Layout::from_size_align(size, align).unwrap();
                let larger = Layout::from_size_align(size + 700, align).unwrap();
                // SAFETY: each block is given back with its own layout.
                unsafe {
                    let some: Vec<*mut u8> = (0..5).map(|_| Mimalloc.alloc(layout)).collect();
                    let zeroed = Mimalloc.alloc_zeroed(layout);
                    assert!((0..size).all(|at| *zeroed.add(at) == 0), "{size}");
                    for block in some.into_iter().chain([zeroed]) {
                        assert!(!block.is_null() && block.addr() % align == 0, "{size} {align}");
                        block.write(7);
                        let grown = Mimalloc.realloc(block, layout, larger.size());
                        assert!(!grown.is_null() && grown.addr() % align == 0, "{size} {align}");
                        assert_eq!(grown.read(), 7);
                        Mimalloc.dealloc(grown, larger);
                    }
                }
            }
        }
    }
}
