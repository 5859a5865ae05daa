//! One io_uring(7) for the TCP sessions of one thread: it receives, sends, connects and closes, and can do nothing else
//! (`IORING_REGISTER_RESTRICTIONS`). It is made before the process gives up io_uring_setup(2), so that no other can be made,
//! and enabled by its thread. It owns the buffers into which the kernel receives, and those that it sends: a caller
//! has them as [`Lease`], which it gives back.
//!
//! Operations are queued, and handed to the kernel by [`Ring::enter`]. A descriptor must stay open until the completions of
//! all operations on it were taken: only [`Ring::close`] may be queued after them.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use io_uring::register::Restriction;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use nix::libc;
use socket2::SockAddr;

mod buffers;

use buffers::{Buffers, GROUP};

pub use buffers::Lease;

/// Sizes of the queues of operations and of results, in entries. The kernel itself keeps results for which there is no room.
const QUEUED: u32 = 512;
const COMPLETED: u32 = 2048;

/// `IORING_ENTER_GETEVENTS`: the kernel also completes what it can.
const GET_EVENTS: u32 = 1;

/// How long [`Ring::end`] waits until the kernel has ended all operations.
const END_LIMIT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    ReceiveClient = 1,
    ReceiveBackend = 2,
    Connect = 3,
    SendBackend = 4,
    SendClient = 5,
    Cancel = 6,
    /// Its end is told only if it fails.
    Close = 7,
}

impl Operation {
    fn of(code: u8) -> Self {
        match code {
            1 => Self::ReceiveClient,
            2 => Self::ReceiveBackend,
            3 => Self::Connect,
            4 => Self::SendBackend,
            5 => Self::SendClient,
            6 => Self::Cancel,
            _ => Self::Close,
        }
    }
}

/// A result of an operation.
#[derive(Debug)]
pub struct Completion {
    /// Of the session.
    pub key: u32,
    pub operation: Operation,
    /// Number of bytes, or the number of the error.
    pub result: Result<usize, i32>,
    /// Received bytes, or those that were to be sent.
    pub lease: Option<Lease>,
    /// Further results of the operation follow.
    pub more: bool,
}

/// Whether the next operation that is queued begins only when this one has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Waits,
    Free,
}

/// What the caller does once the kernel has taken the bytes of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It calls shutdown(2). The kernel holds the bytes back until then, and sends them by TCP in one packet with the end
    /// (`MSG_MORE`).
    ShutsDown,
    Nothing,
}

/// Longest chain of operations that wait for each other: it is handed to the kernel as a whole.
const LONGEST_CHAIN: usize = 4;

struct Queued {
    entry: squeue::Entry,
    next: Next,
    needs: Needs,
}

/// What an entry names, and who has it until the kernel takes the entry.
enum Needs {
    Nothing,
    /// The kernel copies it.
    Address(Box<SockAddr>),
    /// The kernel closes it.
    Socket(OwnedFd),
}

pub struct Ring {
    stage: Stage,
    /// `None` only while it is dropped.
    ring: Option<IoUring>,
    /// Freed after the ring, and only if the kernel has ended all operations.
    buffers: ManuallyDrop<Buffers>,
    queued: VecDeque<Queued>,
    /// Of the entries that the kernel can read and has not taken yet, in their order.
    left: VecDeque<Needs>,
    /// Operations of which the last result was not taken yet.
    outstanding: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The kernel takes no operation yet.
    Made,
    Enabled,
    /// Its descriptor is closed, and the kernel may still have operations.
    Broken,
}

fn word(operation: Operation, key: u32, buffer: u16) -> u64 {
    u64::from(key) | u64::from(operation as u8) << 32 | u64::from(buffer) << 40
}

/// Whether the kernel has taken all operations of the last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batch {
    /// It has: the next operation begins another batch.
    New,
    /// Some of them wait.
    Waits,
}

/// Whether all operations were ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Yes,
    No,
}

impl Ring {
    /// Makes a ring that takes no operation yet.
    pub fn new() -> io::Result<Self> {
        let ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_submit_all()
            .setup_r_disabled()
            .setup_cqsize(COMPLETED)
            .build(QUEUED)?;
        let buffers = Buffers::new(&ring)?;
        let codes = [
            opcode::RecvMulti::CODE,
            opcode::Send::CODE,
            opcode::Connect::CODE,
            opcode::AsyncCancel2::CODE,
            opcode::Close::CODE,
        ];
        let flags = squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS | squeue::Flags::BUFFER_SELECT;
        let mut allowed: Vec<_> = codes.into_iter().map(Restriction::sqe_op).collect();
        allowed.push(Restriction::sqe_flags_allowed(flags.bits()));
        ring.submitter().register_restrictions(&mut allowed)?;
        Ok(Self {
            stage: Stage::Made,
            ring: Some(ring),
            buffers: ManuallyDrop::new(buffers),
            queued: VecDeque::new(),
            left: VecDeque::new(),
            outstanding: 0,
        })
    }

    /// To be called once, on the thread that uses the ring from then on.
    pub fn enable(&mut self) -> io::Result<()> {
        if let Some(ring) = &self.ring {
            ring.submitter().register_enable_rings()?;
            self.stage = Stage::Enabled;
        }
        Ok(())
    }

    /// Number of its descriptor, which is readable when there are results.
    pub fn number(&self) -> RawFd {
        self.ring.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    pub fn give_back(&mut self, lease: Lease) {
        self.buffers.give_back(lease);
    }

    pub fn bytes(&self, lease: &Lease) -> &[u8] {
        self.buffers.bytes(lease)
    }

    /// Number of operations that wait for [`Self::enter`].
    pub fn waiting(&self) -> usize {
        self.left.len() + self.queued.len()
    }

    /// Whether operations wait for [`Self::enter`].
    pub fn has_queued(&self) -> bool {
        self.waiting() > 0
    }

    fn push(&mut self, entry: squeue::Entry, next: Next, needs: Needs) {
        self.queued.push_back(Queued { entry, next, needs });
    }

    /// Moves queued operations to where the kernel reads them, no chain in parts.
    fn fill(&mut self) {
        let Self { ring: Some(ring), queued, left, .. } = self else { return };
        let mut queue = ring.submission();
        while let Some(length) = queued.iter().position(|queued| queued.next == Next::Free).map(|at| at + 1) {
            debug_assert!(length <= LONGEST_CHAIN);
            if queue.capacity() - queue.len() < length {
                return;
            }
            for Queued { entry, needs, .. } in queued.drain(..length) {
                left.push_back(needs);
                // SAFETY: what the entry points to lives until its completion: a buffer of the ring, which is in no lease
                // meanwhile; or until it was taken: an address, which `left` has until then.
                let pushed = unsafe { queue.push(&entry) };
                debug_assert!(pushed.is_ok(), "there was room");
            }
        }
    }

    /// Hands over what is queued, as much as the kernel takes at once, and lets it complete what it can.
    pub fn enter(&mut self) -> io::Result<()> {
        self.fill();
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let count = u32::try_from(ring.submission().len()).unwrap_or(u32::MAX);
        // SAFETY: there is no argument.
        let entered = unsafe { ring.submitter().enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) };
        let taken = self.left.len().saturating_sub(ring.submission().len());
        for needs in self.left.drain(..taken) {
            match needs {
                Needs::Nothing => {}
                Needs::Address(copied) => drop(copied),
                // The kernel has closed it.
                Needs::Socket(closed) => drop(closed.into_raw_fd()),
            }
        }
        match entered {
            Err(error) if !is_for_now(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Appends the results that there are.
    pub fn take(&mut self, into: &mut Vec<Completion>) {
        let Self { ring: Some(ring), buffers, outstanding, .. } = self else { return };
        for entry in ring.completion() {
            let data = entry.user_data();
            let operation = Operation::of((data >> 32) as u8);
            let result = usize::try_from(entry.result()).map_err(|_| -entry.result());
            let lease = match operation {
                Operation::SendBackend | Operation::SendClient => Some(buffers.sent((data >> 40) as u16)),
                _ => cqueue::buffer_select(entry.flags())
                    .map(|buffer| buffers.received(buffer, result.unwrap_or(0))),
            };
            let more = cqueue::more(entry.flags());
            if !more && operation != Operation::Close {
                *outstanding = outstanding.saturating_sub(1);
            }
            into.push(Completion { key: data as u32, operation, result, lease, more });
        }
    }

    fn begin(&mut self, entry: squeue::Entry, next: Next, needs: Needs) {
        self.outstanding += 1;
        self.push(entry.flags(flags(next)), next, needs);
    }

    /// Receives again and again, until the end of the connection.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, operation: Operation, key: u32) {
        let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
        self.begin(entry.user_data(word(operation, key, 0)), Next::Free, Needs::Nothing);
    }

    pub fn connect(&mut self, socket: BorrowedFd<'_>, address: SocketAddr, key: u32, next: Next) {
        let address = Box::new(SockAddr::from(address));
        let entry = opcode::Connect::new(Fd(socket.as_raw_fd()), address.as_ptr().cast(), address.len());
        let entry = entry.build().user_data(word(Operation::Connect, key, 0));
        self.begin(entry, next, Needs::Address(address));
    }

    /// Sends bytes; the completion has them again.
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        lease: Lease,
        (operation, key): (Operation, u32),
        next: Next,
        then: Then,
    ) {
        let buffer = lease.buffer();
        let (start, length) = self.buffers.send(lease);
        let more = if then == Then::ShutsDown { libc::MSG_MORE } else { 0 };
        let entry = opcode::Send::new(Fd(socket.as_raw_fd()), start, length).flags(libc::MSG_NOSIGNAL | more);
        self.begin(entry.build().user_data(word(operation, key, buffer)), next, Needs::Nothing);
    }

    /// Ends all operations on a descriptor, whose completions follow.
    pub fn cancel(&mut self, socket: BorrowedFd<'_>, key: u32) {
        let which = CancelBuilder::fd(Fd(socket.as_raw_fd())).all();
        let entry = opcode::AsyncCancel2::new(which).build().user_data(word(Operation::Cancel, key, 0));
        self.begin(entry, Next::Free, Needs::Nothing);
    }

    pub fn close(&mut self, socket: OwnedFd) {
        let entry = opcode::Close::new(Fd(socket.as_raw_fd())).build();
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(word(Operation::Close, 0, 0));
        self.push(entry, Next::Free, Needs::Socket(socket));
    }

    /// Ends all operations, and waits until they are over. Their results are lost: the caller has no session any more. What the
    /// kernel would not end ends with the descriptor of the ring, so that no connection stays open without an owner.
    pub fn end(&mut self) {
        if self.end_all() == Ended::No {
            self.ring = None;
            self.stage = Stage::Broken;
            self.queued.clear();
            self.left.clear();
        }
    }

    fn end_all(&mut self) -> Ended {
        match self.stage {
            Stage::Made => return Ended::Yes,
            Stage::Broken => return Ended::No,
            Stage::Enabled => {}
        }
        let until = Instant::now() + END_LIMIT;
        let mut ended = Vec::new();
        let mut batch = Batch::New;
        while self.outstanding > 0 || self.has_queued() {
            // In each batch: a cancel that comes in one with an operation may find nothing to cancel yet.
            if batch == Batch::New {
                let which = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
                self.begin(which.user_data(word(Operation::Cancel, 0, 0)), Next::Free, Needs::Nothing);
            }
            let entered = self.enter();
            self.take(&mut ended);
            for lease in ended.drain(..).filter_map(|one| one.lease) {
                self.buffers.give_back(lease);
            }
            if entered.is_err() || Instant::now() >= until {
                return Ended::No;
            }
            batch = if self.has_queued() { Batch::Waits } else { Batch::New };
            if self.outstanding == 0 || batch == Batch::Waits {
                continue;
            }
            let pause = Timespec::new().nsec(20_000_000);
            let Some(ring) = &self.ring else { return Ended::No };
            // Waits for a result, or for the end of the pause.
            let _ = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&pause));
        }
        Ended::Yes
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.end();
        // Closes the descriptor.
        self.ring = None;
        if self.stage != Stage::Broken {
            // SAFETY: dropped once, here. No operation is left, and the kernel has no descriptor of the ring for a new one.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
        // Else they are leaked: the kernel may write into them after the close.
    }
}

/// Whether the kernel may take the operations at the next call.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ETIME))
}

fn flags(next: Next) -> squeue::Flags {
    match next {
        Next::Waits => squeue::Flags::IO_LINK,
        Next::Free => squeue::Flags::empty(),
    }
}

#[cfg(test)]
mod tests;
