//! Frames that the kernel writes into memory of this process (packet(7), `PACKET_RX_RING`): no system call receives them,
//! and they are sent from where they are.
//!
//! Each place of the ring has room for a frame of a usual network. A larger one, which is still segments or comes from a
//! network with jumbo frames, waits whole in the socket as without a ring; its place says so (`PACKET_COPY_THRESH`).
//!
//! The ring has the second format (`TPACKET_V2`): the kernel wakes the process for each frame. With the third format
//! (`TPACKET_V3`) the kernel gathers frames for a millisecond or longer, which costs less CPU and delays every frame.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::{HEADER, check};

/// Room of a place, with the kernel's description of the frame before it.
const ROOM: usize = 2048;

/// Places, in 4 MiB: 20 ms of 100,000 frames a second.
const PLACES: usize = 2048;

/// Memory that the kernel takes as one, for some places.
const BLOCK: usize = 64 << 10;

/// Where a frame starts in the memory of the ring, with its header of virtio-net, and its length without that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) at: usize,
    pub(super) length: usize,
}

/// What is in a place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    Frame(Spot),
    /// A frame that waits in the socket.
    InSocket,
    /// A frame that neither the place nor the socket has whole.
    Cut,
}

/// The memory, as long as it is the ring of a socket.
pub(super) struct Ring {
    memory: NonNull<libc::c_void>,
    /// The first place that was not looked at yet.
    next: usize,
    /// Places before it whose frames are in use.
    taken: usize,
    /// Frames since the last call of [`Ring::is_stuck`].
    received: u64,
}

// SAFETY: the memory belongs to this value alone, as far as the kernel has given it.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes the ring of a socket, instead of one that it had before. What waits in the socket is lost.
    pub(super) fn open(socket: BorrowedFd<'_>) -> io::Result<Self> {
        Self::close(socket)?;
        set(socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
        set(socket, libc::PACKET_COPY_THRESH, &(1 as libc::c_int))?;
        set(socket, libc::PACKET_RX_RING, &shape(PLACES))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses a place that nothing else uses.
        let memory = unsafe { mmap(None, LENGTH, access, MapFlags::MAP_SHARED, socket, 0) };
        match memory {
            Ok(memory) => Ok(Self { memory, next: 0, taken: 0, received: 0 }),
            Err(error) => {
                Self::close(socket)?;
                Err(error.into())
            }
        }
    }

    /// Ends the ring of a socket, whose memory must not be mapped any more: frames wait in the socket again.
    pub(super) fn close(socket: BorrowedFd<'_>) -> io::Result<()> {
        set(socket, libc::PACKET_RX_RING, &shape(0))
    }

    /// Takes the next place, if it has something.
    pub(super) fn take(&mut self) -> Option<Found> {
        let status = self.status(self.next).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 || self.taken == PLACES {
            return None;
        }
        let start = self.next * ROOM;
        // SAFETY: the kernel has given the place, which starts with this struct of integers, to this process.
        let head = unsafe { self.at(start).cast::<libc::tpacket2_hdr>().read() };
        self.next = (self.next + 1) % PLACES;
        self.taken += 1;
        self.received += 1;
        let (frame, length) = (usize::from(head.tp_mac), head.tp_snaplen as usize);
        let is_whole = head.tp_snaplen == head.tp_len && frame + length <= ROOM;
        Some(match frame.checked_sub(HEADER) {
            _ if status & libc::TP_STATUS_COPY != 0 => Found::InSocket,
            Some(at) if is_whole => Found::Frame(Spot { at: start + at, length }),
            _ => Found::Cut,
        })
    }

    /// Gives all places that were taken back to the kernel. Their spots are no longer valid.
    pub(super) fn release(&mut self) {
        for back in (1..=self.taken).rev() {
            let place = (self.next + PLACES - back) % PLACES;
            self.status(place).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.taken = 0;
    }

    /// Whether frames were lost since the last call although the ring has room and nothing came: kernels choose a place for
    /// a frame, and where they cannot describe it then (an offload without a form of virtio), they wait for that place for
    /// ever.
    pub(super) fn is_stuck(&mut self, lost: u32) -> bool {
        let received = std::mem::take(&mut self.received);
        let is_empty = self.status(self.next).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0;
        lost > 0 && received == 0 && is_empty
    }

    /// The frame in a place that is taken, after its header of virtio-net.
    pub(super) fn frame(&self, spot: Spot) -> &[u8] {
        // SAFETY: `take` has checked that the frame is within its place, which the kernel does not touch until `release`,
        // and only a borrow of the whole ring writes there.
        unsafe { std::slice::from_raw_parts(self.at(spot.at + HEADER), spot.length) }
    }

    /// Its header of virtio-net.
    pub(super) fn header(&self, spot: Spot) -> &[u8] {
        // SAFETY: the same; `take` has found room for the header before the frame.
        unsafe { std::slice::from_raw_parts(self.at(spot.at), HEADER) }
    }

    pub(super) fn frame_mut(&mut self, spot: Spot) -> &mut [u8] {
        // SAFETY: the same, and this is the borrow of the whole ring.
        unsafe { std::slice::from_raw_parts_mut(self.at(spot.at + HEADER), spot.length) }
    }

    /// A byte of the memory.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.memory.as_ptr().cast::<u8>().wrapping_add(offset)
    }

    /// Says whose a place is.
    fn status(&self, place: usize) -> &AtomicU32 {
        // SAFETY: each place is within the memory and starts with this aligned word, which the kernel and this process
        // write one after the other.
        unsafe { AtomicU32::from_ptr(self.at(place % PLACES * ROOM).cast()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open` has made it with this length, and no borrow of it is left.
        let _ = unsafe { munmap(self.memory, LENGTH.get()) };
    }
}

/// Bytes of the memory.
const LENGTH: NonZeroUsize = NonZeroUsize::MIN.saturating_add(PLACES * ROOM - 1);

/// A ring of some places, or none.
fn shape(places: usize) -> libc::tpacket_req {
    let size = |bytes: usize| if places == 0 { 0 } else { bytes as libc::c_uint };
    libc::tpacket_req {
        tp_block_size: size(BLOCK),
        tp_block_nr: size(PLACES * ROOM / BLOCK),
        tp_frame_size: size(ROOM),
        tp_frame_nr: size(PLACES),
    }
}

fn set<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = ptr::from_ref(value).cast();
    // SAFETY: the value lives until the call returns, with its true length; the kernel only reads it.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, length) })
}
