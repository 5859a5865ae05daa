//! Sockets of flows to backends.
//!
//! To make, register and close a socket takes most of the CPU of a query, so the socket of a flow that has ended with its
//! last reply rests and serves a later one. Meanwhile it has neither a peer nor a port: no late reply of a backend reaches
//! the next client, whose port is as hard to guess as that of a new socket.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use logic::udp::FlowId;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use state::account::{Kind, SlotCache};
use sys::socket::Outgoing;

/// Sockets of one server that rest.
const MOST_RESTING: usize = 256;

/// Shortest rest. A datagram that the kernel was about to put into a socket when this lost its port is in it by then. Either
/// epoll has reported that, and the socket is closed, or the datagram is thrown away before the next flow.
const REST: Duration = Duration::from_millis(1);

/// When a socket that rests is closed.
const UNUSED: Duration = Duration::from_secs(1);

/// The epoll instance of all flows.
pub(super) struct OwnedEpoll(pub(super) Epoll);

impl OwnedEpoll {
    pub(super) fn new() -> nix::Result<Self> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self)
    }
}

impl AsRawFd for OwnedEpoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.0.as_raw_fd()
    }
}

pub(super) struct BackendSocket {
    socket: UdpSocket,
    family: Family,
    /// Local address that it was bound to; it keeps that.
    source: Option<IpAddr>,
    /// In the epoll instance.
    number: u32,
    // Given back after the socket is closed.
    _slot: FlowSlot,
}

/// The other end of a socket, and the configured address of this one, or that of the client.
#[derive(Clone, Copy)]
pub(super) struct Remote {
    pub(super) address: SocketAddr,
    pub(super) source: Option<IpAddr>,
}

impl Remote {
    pub(super) fn of((address, outgoing): (SocketAddr, Outgoing)) -> Self {
        Self { address, source: outgoing.source }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn of(address: SocketAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl BackendSocket {
    pub(super) fn can_reach(&self, remote: Remote) -> bool {
        self.family == Family::of(remote.address) && self.source == remote.source
    }

    /// Takes the socket from its backend to another one.
    pub(super) fn turn_to(&self, address: SocketAddr) -> std::io::Result<()> {
        sys::datagram::disconnect(&self.socket)?;
        sys::datagram::drain(&self.socket)?;
        sys::datagram::connect_again(&self.socket, address)
    }
}

impl AsFd for BackendSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One slot of the account of descriptors, for the socket of a flow.
pub(super) struct FlowSlot(Rc<SlotCache>);

impl FlowSlot {
    /// Wraps a slot of [`Kind::Flows`] that was taken.
    pub(super) fn taken(slot_cache: Rc<SlotCache>) -> Self {
        Self(slot_cache)
    }
}

impl Drop for FlowSlot {
    fn drop(&mut self) {
        self.0.give_of(Kind::Flows, 1);
    }
}

/// The sockets of one server.
pub(super) struct Sockets {
    epoll: Rc<OwnedEpoll>,
    /// The flow of each socket, by its number; `None` for one that rests.
    flows: Vec<Option<FlowId>>,
    /// Numbers of sockets that are closed.
    free: Vec<u32>,
    /// The one that has rested for longest first.
    resting: VecDeque<(Instant, BackendSocket)>,
    /// When the epoll instance last told every socket in which something waits.
    told: Option<Instant>,
}

impl Sockets {
    pub(super) fn new(epoll: Rc<OwnedEpoll>) -> Self {
        Self { epoll, flows: Vec::new(), free: Vec::new(), resting: VecDeque::new(), told: None }
    }

    /// Registers a new socket, connected to `remote`.
    pub(super) fn add(
        &mut self,
        socket: UdpSocket,
        remote: Remote,
        slot: FlowSlot,
    ) -> nix::Result<BackendSocket> {
        let number = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            // There are fewer sockets than descriptors.
            u32::try_from(self.flows.len() - 1).unwrap_or(u32::MAX)
        });
        let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(number));
        if let Err(error) = self.epoll.0.add(&socket, event) {
            self.free.push(number);
            return Err(error);
        }
        Ok(BackendSocket {
            socket,
            family: Family::of(remote.address),
            source: remote.source,
            number,
            _slot: slot,
        })
    }

    /// A socket that has rested, connected to `remote`.
    pub(super) fn use_again(&mut self, remote: Remote, now: Instant) -> Option<BackendSocket> {
        let rested = |(since, _): &&(Instant, BackendSocket)| now.saturating_duration_since(*since) >= REST;
        let at = self.resting.iter().take_while(rested).position(|(_, socket)| socket.can_reach(remote))?;
        let (since, socket) = self.resting.remove(at)?;
        let is_empty = self.told.is_some_and(|told| told.saturating_duration_since(since) >= REST);
        let emptied = if is_empty { Ok(()) } else { sys::datagram::drain(&socket.socket) };
        match emptied.and_then(|()| sys::datagram::connect_again(&socket.socket, remote.address)) {
            Ok(()) => Some(socket),
            Err(_) => {
                self.close(socket);
                None
            }
        }
    }

    pub(super) fn has_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// The epoll instance was asked at this time or later, and has told every socket in which something waits: of those that
    /// rest, [`Self::close_resting`] has closed these.
    pub(super) fn note_told(&mut self, now: Instant) {
        self.told = Some(now);
    }

    pub(super) fn assign(&mut self, socket: &BackendSocket, flow: FlowId) {
        self.flows[socket.number as usize] = Some(flow);
    }

    /// The flow of an event of the epoll instance.
    pub(super) fn flow_of(&self, number: u64) -> Option<FlowId> {
        *self.flows.get(usize::try_from(number).ok()?)?
    }

    /// Lets a socket rest whose flow has ended as it should, if there is room.
    pub(super) fn rest(&mut self, socket: BackendSocket, room: usize) {
        let has_room = self.resting.len() < MOST_RESTING.min(room);
        if !has_room || sys::datagram::disconnect(&socket.socket).is_err() {
            return self.close(socket);
        }
        self.flows[socket.number as usize] = None;
        // Not the time at which this turn began: a long turn would count as rest.
        self.resting.push_back((Instant::now(), socket));
    }

    pub(super) fn close(&mut self, socket: BackendSocket) {
        self.flows[socket.number as usize] = None;
        self.free.push(socket.number);
        drop(socket);
        if self.free.len() == self.flows.len() {
            // Gives the memory of a flood back.
            (self.flows, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// Closes a socket that rests, because something waits in it.
    pub(super) fn close_resting(&mut self, number: u64) {
        let at = self.resting.iter().position(|(_, socket)| u64::from(socket.number) == number);
        if let Some((_, socket)) = at.and_then(|at| self.resting.remove(at)) {
            self.close(socket);
        }
    }

    /// When to call [`Self::close_unused`] next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.resting.front().map(|(since, _)| *since + UNUSED)
    }

    pub(super) fn close_unused(&mut self, now: Instant) {
        let is_unused =
            |(since, _): &mut (Instant, BackendSocket)| now.saturating_duration_since(*since) >= UNUSED;
        while let Some((_, socket)) = self.resting.pop_front_if(is_unused) {
            self.close(socket);
        }
    }
}
