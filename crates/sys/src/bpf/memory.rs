//! Memory that a map of the kernel and this process have in common (`BPF_F_MMAPABLE`).

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::libc::c_void;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

pub(super) struct Memory {
    at: NonNull<c_void>,
    words: usize,
}

// SAFETY: the memory is only used as atomic words, which all threads may use.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

impl Memory {
    /// The first words of a map, which has at least as many.
    pub(super) fn map(map: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let length = NonZeroUsize::new(words * 8).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses a place that nothing else uses.
        let at = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, map, 0) }?;
        Ok(Self { at, words })
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory is mapped as long as `self` lives, at the start of a page, with this length, and every value is
        // an atomic word. The program in the kernel writes whole words.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `map` has made it with this length, and no borrow of `words` is left.
        let _ = unsafe { munmap(self.at, self.words * 8) };
    }
}
