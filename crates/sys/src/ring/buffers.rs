//! Memory into which the kernel receives and from which it sends: one block, in buffers of one size that all connections
//! share. A table that the kernel reads says which of them are free.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

/// Number of buffers; a power of two.
const COUNT: u16 = 1024;
const SIZE: u16 = 4096;
const PAGE: usize = 4096;

const MEMORY: Layout = pages(COUNT as usize * SIZE as usize);
const TABLE: Layout = pages(COUNT as usize * size_of::<BufRingEntry>());

const fn pages(size: usize) -> Layout {
    match Layout::from_size_align(size, PAGE) {
        Ok(layout) => layout,
        Err(_) => panic!("sizes are constants"),
    }
}

/// Number of the group of buffers in the ring.
pub(super) const GROUP: u16 = 0;

/// Received bytes in a buffer. One that is dropped instead of given back is lost to the ring.
#[derive(Debug)]
#[must_use = "Ring::give_back"]
pub struct Lease {
    buffer: u16,
    from: u16,
    to: u16,
}

impl Lease {
    pub fn len(&self) -> usize {
        usize::from(self.to - self.from)
    }

    pub fn is_empty(&self) -> bool {
        self.to == self.from
    }

    /// Leaves the first bytes out.
    pub fn advance(&mut self, count: usize) {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        self.from = self.from.saturating_add(count).min(self.to);
    }

    pub(super) fn buffer(&self) -> u16 {
        self.buffer
    }
}

pub(super) struct Buffers {
    memory: NonNull<u8>,
    table: NonNull<BufRingEntry>,
    /// Number of entries of the table that were written, modulo 2^16.
    tail: u16,
    /// What the kernel sends from each buffer.
    sending: Box<[(u16, u16)]>,
}

// SAFETY: the memory belongs to this value alone, and to the kernel, which does not ask which thread has it.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Makes the buffers of a ring that is not enabled yet, and tells the kernel of them.
    pub(super) fn new(ring: &IoUring) -> io::Result<Self> {
        // SAFETY: neither layout has size 0.
        let (table, memory) = unsafe { (alloc_zeroed(TABLE).cast::<BufRingEntry>(), alloc_zeroed(MEMORY)) };
        let (Some(table), Some(memory)) = (NonNull::new(table), NonNull::new(memory)) else {
            handle_alloc_error(MEMORY);
        };
        let mut buffers = Self { memory, table, tail: 0, sending: vec![(0, 0); usize::from(COUNT)].into() };
        (0..COUNT).for_each(|buffer| buffers.provide(buffer));
        let address = table.as_ptr() as u64;
        // SAFETY: the table has so many entries, is on a page of its own, and lives until the ring has ended: `Ring` frees the
        // buffers after its descriptor is closed and no operation is left, or never.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, COUNT, GROUP, 0)? };
        Ok(buffers)
    }

    /// Lets the kernel receive into a buffer.
    fn provide(&mut self, buffer: u16) {
        let address = self.at(buffer, 0) as u64;
        // SAFETY: the index is below COUNT, and the kernel reads no entry before the tail is moved past it. The tail is a part
        // of the first entry that these functions leave alone.
        unsafe {
            let entry = &mut *self.table.as_ptr().add(usize::from(self.tail & (COUNT - 1)));
            entry.set_addr(address);
            entry.set_len(u32::from(SIZE));
            entry.set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the table was zeroed and is aligned, only this thread writes its tail, and the kernel reads it atomically.
        unsafe {
            let tail = BufRingEntry::tail(self.table.as_ptr()).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    pub(super) fn give_back(&mut self, lease: Lease) {
        self.provide(lease.buffer);
    }

    fn at(&self, buffer: u16, from: u16) -> *mut u8 {
        debug_assert!(buffer < COUNT && from <= SIZE);
        let offset = usize::from(buffer % COUNT) * usize::from(SIZE) + usize::from(from.min(SIZE));
        // SAFETY: the offset is within the block, or at its end.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    /// The bytes of a lease.
    pub(super) fn bytes(&self, lease: &Lease) -> &[u8] {
        let start = self.at(lease.buffer, lease.from);
        // SAFETY: the kernel has filled the buffer up to `to`, which is at most SIZE, and does not write into it again before it
        // is given back, which consumes the lease.
        unsafe { std::slice::from_raw_parts(start, lease.len()) }
    }

    /// Bytes that the kernel has received into a buffer.
    pub(super) fn received(&self, buffer: u16, count: usize) -> Lease {
        let to = u16::try_from(count).unwrap_or(SIZE).min(SIZE);
        Lease { buffer: buffer % COUNT, from: 0, to }
    }

    /// Returns where the bytes are, and keeps the lease for [`Self::sent`].
    pub(super) fn send(&mut self, lease: Lease) -> (*const u8, u32) {
        let Lease { buffer, from, to } = lease;
        self.sending[usize::from(buffer)] = (from, to);
        (self.at(buffer, from), u32::from(to - from))
    }

    /// The lease of a send that is over.
    pub(super) fn sent(&self, buffer: u16) -> Lease {
        let (from, to) = self.sending[usize::from(buffer % COUNT)];
        Lease { buffer: buffer % COUNT, from, to }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: both were allocated with these layouts. The kernel has no operation with them any more: see `Ring`.
        unsafe {
            dealloc(self.table.as_ptr().cast(), TABLE);
            dealloc(self.memory.as_ptr(), MEMORY);
        }
    }
}
