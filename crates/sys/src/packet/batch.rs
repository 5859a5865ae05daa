//! Frames in memory that is used again and again: received with one system call, or by the kernel into a ring
//! (`crates/sys/src/packet/ring.rs`), and sent with one from where they are.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;

use super::HEADER;
use super::ring::{Found, Ring, Spot};

/// Frames of one batch.
pub const SLOTS: usize = 32;

/// Room of a slot: a packet of 64 KiB with its headers.
const ROOM: usize = HEADER + 18 + 65_536;

/// Distance of two slots: not a power of two, so that their first bytes do not share one set of the cache.
const STRIDE: usize = ROOM + 124;

/// Up to [`SLOTS`] frames. To be kept: its memory is two MiB, of which the kernel maps what frames have touched.
pub struct FrameBatch {
    bytes: Box<[u8]>,
    ring: Option<Ring>,
    /// Where frames are that the ring has.
    spots: [Option<Spot>; SLOTS],
    /// Length of each frame without its header. 0: it did not fit.
    lengths: [usize; SLOTS],
    /// Slots that are to be sent, in order.
    waiting: [usize; SLOTS],
    count: usize,
    sent: usize,
}

impl Default for FrameBatch {
    fn default() -> Self {
        Self {
            bytes: vec![0; SLOTS * STRIDE].into_boxed_slice(),
            ring: None,
            spots: [None; SLOTS],
            lengths: [0; SLOTS],
            waiting: [0; SLOTS],
            count: 0,
            sent: 0,
        }
    }
}

impl FrameBatch {
    /// Lets the kernel write the frames of a socket into a ring. Frames that wait in the socket are lost, and nothing else may
    /// receive from it.
    pub fn use_ring(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.leave_ring(socket)?;
        self.ring = Some(Ring::open(socket)?);
        Ok(())
    }

    /// Lets frames wait in the socket again. What is in the batch or the ring is lost.
    pub fn leave_ring(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        (self.count, self.sent) = (0, 0);
        (self.spots, self.lengths) = ([None; SLOTS], [0; SLOTS]);
        if self.ring.take().is_none() {
            return Ok(());
        }
        Ring::close(socket)
    }

    /// Whether the ring takes no frames any more; `lost` is the number of those that it did not take since the last call.
    pub fn is_stuck(&mut self, lost: u32) -> bool {
        self.ring.as_mut().is_some_and(|ring| ring.is_stuck(lost))
    }

    /// Receives frames, without a wait. Returns their number, which is at least one; `WouldBlock` if none is there. What
    /// waited to be sent is forgotten.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        (self.count, self.sent) = (0, 0);
        if self.ring.is_some() {
            return self.receive_from_ring(socket);
        }
        let mut parts = [NOTHING; SLOTS];
        // All pointers come from one borrow: a later one would end the earlier ones.
        let bytes = self.bytes.as_mut_ptr();
        let mut heads = no_heads();
        for (slot, (head, part)) in heads.iter_mut().zip(&mut parts).enumerate() {
            *part = libc::iovec { iov_base: bytes.wrapping_add(slot * STRIDE).cast(), iov_len: ROOM };
            head.msg_hdr.msg_iov = part;
            head.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each head points to memory of its own slot, which lives in `self` and `parts` until the call returns,
        // with its true length. The number of heads is that of the array.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                heads.as_mut_ptr(),
                SLOTS as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (length, head) in self.lengths.iter_mut().zip(&heads).take(count) {
            let is_whole = head.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            *length = if is_whole { (head.msg_len as usize).saturating_sub(HEADER) } else { 0 };
        }
        Ok(count)
    }

    fn receive_from_ring(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let Some(ring) = &mut self.ring else { return Ok(0) };
        ring.release();
        (self.spots, self.lengths) = ([None; SLOTS], [0; SLOTS]);
        let mut count = 0;
        while count < SLOTS
            && let Some(found) = ring.take()
        {
            (self.spots[count], self.lengths[count]) = match found {
                Found::Frame(spot) => (Some(spot), spot.length),
                Found::InSocket => {
                    let room = &mut self.bytes[count * STRIDE..][..ROOM];
                    let flags =
                        nix::sys::socket::MsgFlags::MSG_DONTWAIT | nix::sys::socket::MsgFlags::MSG_TRUNC;
                    let mut got = nix::sys::socket::recv(socket.as_raw_fd(), room, flags);
                    // An error of the interface is told once, before the frame that waits.
                    if !matches!(got, Ok(_) | Err(Errno::EAGAIN | Errno::EINVAL)) {
                        got = nix::sys::socket::recv(socket.as_raw_fd(), room, flags);
                    }
                    // One that the kernel cannot give is gone, as one that does not fit.
                    let length = got.unwrap_or(0);
                    (None, if length <= ROOM { length.saturating_sub(HEADER) } else { 0 })
                }
                Found::Cut => (None, 0),
            };
            count += 1;
        }
        if count == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    /// The frame in a slot; empty if it did not fit.
    pub fn frame(&self, slot: usize) -> &[u8] {
        match (&self.ring, self.spots[slot]) {
            (Some(ring), Some(spot)) => ring.frame(spot),
            _ => &self.bytes[slot * STRIDE + HEADER..][..self.lengths[slot]],
        }
    }

    /// What the kernel has left to be done with the frame in a slot: `struct virtio_net_hdr`.
    pub fn offload(&self, slot: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        match (&self.ring, self.spots[slot]) {
            (Some(ring), Some(spot)) => header.copy_from_slice(ring.header(spot)),
            _ => header.copy_from_slice(&self.bytes[slot * STRIDE..][..HEADER]),
        }
        header
    }

    pub fn frame_mut(&mut self, slot: usize) -> &mut [u8] {
        match (&mut self.ring, self.spots[slot]) {
            (Some(ring), Some(spot)) => ring.frame_mut(spot),
            _ => &mut self.bytes[slot * STRIDE + HEADER..][..self.lengths[slot]],
        }
    }

    /// Lets [`Self::send`] send the frame of a slot, after those that it is to send already.
    pub fn add(&mut self, slot: usize) {
        if slot < SLOTS && self.count < SLOTS {
            self.waiting[self.count] = slot;
            self.count += 1;
        }
    }

    /// Slots that wait to be sent.
    pub fn waiting(&self) -> &[usize] {
        &self.waiting[self.sent..self.count]
    }

    /// Leaves out the first one of those that wait.
    pub fn skip(&mut self) {
        self.sent = (self.sent + 1).min(self.count);
    }

    /// Sends the frames that wait, without a wait. Returns how many were sent; an error is about the first of them.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut parts = [NOTHING; SLOTS];
        let mut heads = no_heads();
        let bytes = self.bytes.as_mut_ptr();
        let waiting = &self.waiting[self.sent..self.count];
        for ((slot, head), part) in waiting.iter().zip(&mut heads).zip(&mut parts) {
            let base = match (&self.ring, self.spots[*slot]) {
                (Some(ring), Some(spot)) => ring.at(spot.at),
                _ => bytes.wrapping_add(slot * STRIDE),
            };
            let base = base.cast();
            *part = libc::iovec { iov_base: base, iov_len: HEADER + self.lengths[*slot] };
            head.msg_hdr.msg_iov = part;
            head.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each head points to memory of its slot or of a place of the ring that is taken, and of `parts`, with its
        // true length, all of which live until the call returns; the kernel only reads it, and the number of heads is within the array.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                heads.as_mut_ptr(),
                waiting.len() as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        self.sent = (self.sent + sent).min(self.count);
        Ok(sent)
    }
}

/// Sends one frame of our own, which is complete.
pub fn send_frame(socket: BorrowedFd<'_>, frame: &[u8]) -> io::Result<()> {
    let bytes = [&[0; HEADER], frame].concat();
    nix::sys::socket::send(socket.as_raw_fd(), &bytes, nix::sys::socket::MsgFlags::MSG_DONTWAIT)?;
    Ok(())
}

/// Sends frames of our own, which are complete, with one system call and without a wait: at most [`SLOTS`]. Returns how many
/// were sent; an error is about the first of them.
pub fn send_frames<'a>(socket: BorrowedFd<'_>, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
    const PLAIN: &[u8; HEADER] = &[0; HEADER];
    let mut parts = [[NOTHING; 2]; SLOTS];
    let mut heads = no_heads();
    let mut count = 0;
    for ((head, part), frame) in heads.iter_mut().zip(&mut parts).zip(frames) {
        let part_of =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        *part = [part_of(PLAIN), part_of(frame)];
        head.msg_hdr.msg_iov = part.as_mut_ptr();
        head.msg_hdr.msg_iovlen = 2;
        count += 1;
    }
    // SAFETY: each head points to two parts, of bytes that live until the call returns, with their true lengths; the kernel
    // only reads them, and `count` heads were filled in.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            heads.as_mut_ptr(),
            count,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives one frame, without a wait: as much of it as `room` holds. Returns its length.
pub fn receive_frame(socket: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
    let flags = nix::sys::socket::MsgFlags::MSG_DONTWAIT;
    let length = nix::sys::socket::recv(socket.as_raw_fd(), room, flags)?;
    if length < HEADER {
        return Ok(0);
    }
    room.copy_within(HEADER..length, 0);
    Ok(length - HEADER)
}

const NOTHING: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

fn no_heads() -> [libc::mmsghdr; SLOTS] {
    // SAFETY: zeroes are a value of this struct of integers and pointers: a message without any part.
    unsafe { std::mem::zeroed() }
}
