//! A batch of datagrams in memory that is used again and again.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;

use super::call;
use super::control::{Control, Name};

/// Datagrams of one batch.
pub const SLOTS: usize = 32;

/// Room of a slot: more than the largest UDP payload (65,527 bytes over IPv6), so that nothing is ever cut off.
const ROOM: usize = 65_536;

/// Distance of two slots: not a power of two, so that their first bytes do not share one set of the cache.
const STRIDE: usize = ROOM + 128;

/// Most bytes of datagrams that are sent together: the largest payload over IPv4.
const MOST_TOGETHER: usize = 65_507;

/// Which addresses the kernel fills in when it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those of the sender and of this machine.
    Told,
    /// None: the socket is connected.
    Known,
}

/// Up to [`SLOTS`] datagrams with their addresses. To be kept: its memory is two MiB, of which the kernel maps what
/// datagrams have touched.
pub struct Batch {
    bytes: Box<[u8]>,
    /// Where in its slot each datagram begins.
    starts: [usize; SLOTS],
    lengths: [usize; SLOTS],
    names: Box<[Name; SLOTS]>,
    name_lengths: [libc::socklen_t; SLOTS],
    controls: Box<[Control; SLOTS]>,
    control_lengths: [usize; SLOTS],
    targets: [Option<Target>; SLOTS],
    segmentation: Segmentation,
}

/// Where a datagram is sent, and from which of our addresses.
type Target = (SocketAddr, Option<IpAddr>);

/// Whether the kernel gets datagrams of one size for one receiver as one message (UDP_SEGMENT): it passes its layers once,
/// and is cut at the end, or by the network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segmentation {
    On,
    /// A network card calculates no checksums, which the kernel wants for it.
    Off,
}

/// Receiver of datagrams that are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiver {
    /// That of a connected socket.
    OfSocket,
    /// The [`Target`] of each slot.
    OfSlot,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            bytes: vec![0; SLOTS * STRIDE].into_boxed_slice(),
            starts: [0; SLOTS],
            lengths: [0; SLOTS],
            names: Box::new([Name::default(); SLOTS]),
            name_lengths: [0; SLOTS],
            controls: Box::new([Control::default(); SLOTS]),
            control_lengths: [0; SLOTS],
            targets: [None; SLOTS],
            segmentation: Segmentation::On,
        }
    }
}

impl Batch {
    /// Receives datagrams into these slots, without a wait. Returns their number, which is at least one; `WouldBlock` if
    /// no datagram is there.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        slots: Range<usize>,
        addresses: Addresses,
    ) -> io::Result<usize> {
        let wanted = within(slots);
        if let (1, Addresses::Known) = (wanted.len(), addresses) {
            return self.receive_one(socket, wanted.start);
        }
        let mut parts = [NOTHING; SLOTS];
        // All pointers come from one borrow: a later one would end the earlier ones.
        let bytes = self.bytes.as_mut_ptr();
        let mut heads = no_heads();
        for (at, slot) in wanted.clone().enumerate() {
            parts[at] = libc::iovec { iov_base: bytes.wrapping_add(slot * STRIDE).cast(), iov_len: ROOM };
        }
        for ((slot, head), part) in wanted.clone().zip(&mut heads).zip(&mut parts) {
            head.msg_hdr.msg_iov = part;
            head.msg_hdr.msg_iovlen = 1;
            if addresses == Addresses::Told {
                head.msg_hdr.msg_name = (&raw mut self.names[slot]).cast();
                head.msg_hdr.msg_namelen = size_of::<Name>() as libc::socklen_t;
                head.msg_hdr.msg_control = (&raw mut self.controls[slot]).cast();
                head.msg_hdr.msg_controllen = size_of::<Control>() as _;
            }
        }
        // SAFETY: each head points to memory of its own slot, which lives in `self` and `parts` until the call returns,
        // with the true lengths. The number of heads is within the array.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                heads.as_mut_ptr(),
                wanted.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (slot, head) in wanted.zip(&heads).take(count) {
            (self.starts[slot], self.lengths[slot]) = (0, head.msg_len as usize);
            self.name_lengths[slot] = head.msg_hdr.msg_namelen;
            self.control_lengths[slot] = head.msg_hdr.msg_controllen as _;
        }
        Ok(count)
    }

    /// The same for one slot of a connected socket, with the cheaper recv(2).
    fn receive_one(&mut self, socket: BorrowedFd<'_>, slot: usize) -> io::Result<usize> {
        let length = call::receive(socket, &mut self.bytes[slot * STRIDE..][..ROOM], 0)?;
        (self.starts[slot], self.lengths[slot]) = (0, length);
        (self.name_lengths[slot], self.control_lengths[slot]) = (0, 0);
        Ok(1)
    }

    /// The datagram in a slot.
    pub fn datagram(&self, slot: usize) -> &[u8] {
        &self.bytes[slot * STRIDE + self.starts[slot]..][..self.lengths[slot]]
    }

    /// Cuts bytes off the beginning of a datagram.
    pub fn cut(&mut self, slot: usize, count: usize) {
        let count = count.min(self.lengths[slot]);
        self.starts[slot] += count;
        self.lengths[slot] -= count;
    }

    /// The sender of a datagram, if its addresses were told.
    pub fn sender(&self, slot: usize) -> Option<SocketAddr> {
        self.names[slot].read(self.name_lengths[slot] as usize)
    }

    /// Our address to which a datagram was sent, if the socket tells it. To be asked before the slot is sent.
    pub fn local(&mut self, slot: usize) -> Option<IpAddr> {
        self.controls[slot].local(self.control_lengths[slot])
    }

    /// Sets where [`Self::send_to`] sends the datagram of a slot, and from which of our addresses.
    pub fn address(&mut self, slot: usize, to: SocketAddr, from: Option<IpAddr>) {
        self.targets[slot] = Some((to, from));
    }

    /// Sends the datagrams of these slots on a connected socket, in order, without a wait, each behind `prefix`. Returns
    /// how many were sent; an error is about the first of them.
    pub fn send(&mut self, socket: BorrowedFd<'_>, slots: Range<usize>, prefix: &[u8]) -> io::Result<usize> {
        self.send_runs(socket, within(slots), prefix, Receiver::OfSocket)
    }

    /// The same to the address of each slot.
    pub fn send_to(&mut self, socket: BorrowedFd<'_>, slots: Range<usize>) -> io::Result<usize> {
        self.send_runs(socket, within(slots), &[], Receiver::OfSlot)
    }

    fn send_runs(
        &mut self,
        socket: BorrowedFd<'_>,
        slots: Range<usize>,
        prefix: &[u8],
        receiver: Receiver,
    ) -> io::Result<usize> {
        let sent = self.try_send(socket, slots.clone(), prefix, receiver, self.segmentation);
        let Err(error) = &sent else { return sent };
        let is_single =
            self.end_of_run(slots.clone(), prefix.len(), receiver, self.segmentation) <= slots.start + 1;
        match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            _ if is_single => return sent,
            Errno::EIO => self.segmentation = Segmentation::Off,
            // The datagrams are larger than the path takes without fragments.
            Errno::EINVAL | Errno::EMSGSIZE => {}
            _ => return sent,
        }
        self.try_send(socket, slots, prefix, receiver, Segmentation::Off)
    }

    fn try_send(
        &mut self,
        socket: BorrowedFd<'_>,
        slots: Range<usize>,
        prefix: &[u8],
        receiver: Receiver,
        segmentation: Segmentation,
    ) -> io::Result<usize> {
        if let (1, true, Receiver::OfSocket) = (slots.len(), prefix.is_empty(), receiver) {
            return self.send_one(socket, slots.start);
        }
        let mut parts = [NOTHING; 2 * SLOTS];
        let mut used = 0;
        // All pointers come from one borrow: a later one would end the earlier ones.
        let bytes = self.bytes.as_mut_ptr();
        for slot in slots.clone() {
            if !prefix.is_empty() {
                // The kernel only reads it.
                let base = prefix.as_ptr().cast_mut().cast();
                parts[used] = libc::iovec { iov_base: base, iov_len: prefix.len() };
                used += 1;
            }
            let base = bytes.wrapping_add(slot * STRIDE + self.starts[slot]).cast();
            parts[used] = libc::iovec { iov_base: base, iov_len: self.lengths[slot] };
            used += 1;
        }
        let parts_each = if prefix.is_empty() { 1 } else { 2 };
        let parts = parts.as_mut_ptr();
        let mut heads = no_heads();
        let mut ends = [slots.start; SLOTS];
        let (mut count, mut first) = (0, slots.start);
        while first < slots.end {
            let end = self.end_of_run(first..slots.end, prefix.len(), receiver, segmentation);
            let head = &mut heads[count].msg_hdr;
            head.msg_iov = parts.wrapping_add((first - slots.start) * parts_each);
            head.msg_iovlen = ((end - first) * parts_each) as _;
            let mut control = 0;
            if let (Receiver::OfSlot, Some((to, from))) = (receiver, self.targets[first]) {
                (self.names[first], self.name_lengths[first]) = Name::of(to);
                head.msg_name = (&raw mut self.names[first]).cast();
                head.msg_namelen = self.name_lengths[first];
                control = from.map_or(0, |from| self.controls[first].write_local(from));
            }
            if end - first > 1 {
                let segment = prefix.len() + self.lengths[first];
                control = self.controls[first].write_segment(control, segment as u16);
            }
            if control > 0 {
                head.msg_control = (&raw mut self.controls[first]).cast();
                head.msg_controllen = control as _;
            }
            ends[count] = end;
            (count, first) = (count + 1, end);
        }
        // SAFETY: each head points to memory of its slots, of `prefix` and of `parts`, with the true lengths, all of which
        // live until the call returns; the kernel only reads it, and `count` is within the array.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                heads.as_mut_ptr(),
                count as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(sent.checked_sub(1).map_or(0, |last| ends[last] - slots.start))
    }

    /// Sends the datagram of one slot on a connected socket, with the cheaper send(2).
    fn send_one(&self, socket: BorrowedFd<'_>, slot: usize) -> io::Result<usize> {
        call::send(socket, self.datagram(slot)).map(|_| 1)
    }

    /// End of the datagrams, from the first one on, that go to one receiver as one message: all have the same length, but
    /// the last one may be shorter.
    fn end_of_run(
        &self,
        slots: Range<usize>,
        prefix: usize,
        receiver: Receiver,
        segmentation: Segmentation,
    ) -> usize {
        let first = slots.start;
        let segment = prefix + self.lengths.get(first).copied().unwrap_or(0);
        let alone = (first + 1).min(slots.end);
        if segmentation == Segmentation::Off || segment == 0 {
            return alone;
        }
        let (mut end, mut total) = (alone, segment);
        for slot in alone..slots.end {
            let length = prefix + self.lengths[slot];
            let is_other = receiver == Receiver::OfSlot && self.targets[slot] != self.targets[first];
            if is_other || length == 0 || length > segment || total + length > MOST_TOGETHER {
                break;
            }
            (end, total) = (slot + 1, total + length);
            if length < segment {
                break;
            }
        }
        end
    }
}

const NOTHING: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

fn no_heads() -> [libc::mmsghdr; SLOTS] {
    // SAFETY: zeroes are a value of this struct of integers and pointers: a message without any part.
    unsafe { std::mem::zeroed() }
}

/// Those of the slots that exist.
fn within(slots: Range<usize>) -> Range<usize> {
    slots.start.min(SLOTS)..slots.end.min(SLOTS)
}
