//! Tunnels to backends: the way to each, the frames that travel through them, and answers to packets that are too long.
//! `crates/logic/src/dsr/tunnel.rs` makes the frames.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use logic::dsr::tunnel::{self, Cutting, Frames, Offload, Unfit, Way};
use logic::dsr::{BackendId, Director, Dropped, Mac};
use state::ending::Ending;
use state::listen::{filter, questions, questions_and_long};
use sys::bpf::coarse_now;
use sys::packet::{Instruction, send_frame, send_frames};

use super::packets::Fate;
use super::sockets::has_room;
use super::{Server, TICK};
use crate::accept::CloseSignal;

/// A frame of ours on its way to a backend: as it is, or in its tunnel.
pub(super) fn wrapped(director: &Director, name: &str, frame: Vec<u8>) -> Option<Vec<u8>> {
    let Some(room) = director.room() else { return Some(frame) };
    let way = Way {
        own: frame.get(6..12)?.try_into().ok()?,
        to: frame.get(..6)?.try_into().ok()?,
        tunnel: director.tunnel_of(name)?,
        room,
    };
    let mut frames = Frames::default();
    tunnel::encapsulate(&frame, &Offload::default(), &way, &mut frames).ok()?;
    frames.waiting().next().map(<[u8]>::to_vec)
}

impl Server {
    /// What the socket receives.
    pub(super) fn filter(&self) -> Vec<Instruction> {
        let service = self.director.service();
        match (&self.kernel, self.director.room()) {
            (None, _) => filter(&service),
            (Some(_), None) => questions(&service),
            (Some(_), Some(room)) => {
                let most = room.saturating_add(tunnel::overhead(service.vip));
                questions_and_long(&service, room, most)
            }
        }
    }

    /// Takes the MTU of the interface. Returns whether another length fits now.
    pub(super) fn follow_mtu(&mut self, interface: &str) -> bool {
        let Some(before) = self.director.room() else { return false };
        let Ok(mtu) = sys::interfaces::mtu(interface) else { return false };
        let room = tunnel::room(self.director.service().vip, mtu);
        self.director.set_room(Some(room));
        room != before
    }

    /// Puts the frame of a slot into those for a backend. Returns whether that is done; if not, it is counted as dropped.
    pub(super) fn tunnel(
        &mut self,
        slot: usize,
        backend: BackendId,
        [own, to]: [Mac; 2],
        now: Instant,
    ) -> bool {
        let (Some(room), Some(tunnel)) = (self.director.room(), self.director.tunnel(backend)) else {
            self.drop_packets(1, Ending::Packet(Dropped::NoBackend));
            return false;
        };
        let offload = Offload::read(self.batch.offload(slot));
        let way = Way { own, to, tunnel, room };
        match tunnel::encapsulate(self.batch.frame(slot), &offload, &way, &mut self.tunnels.frames) {
            Ok(()) => return true,
            Err(Unfit::TooLong) => self.refuse(slot, own, room, now),
            Err(Unfit::NotSegmented) => self.drop_packets(1, Ending::Packet(Dropped::NotSegmented)),
        }
        false
    }

    /// Whether a frame that the program in the kernel leaves may be too long for a tunnel.
    pub(super) fn is_long(&self, slot: usize) -> bool {
        let room = self.director.room();
        room.is_some_and(|room| self.batch.frame(slot).len() > usize::from(room) + ETHERNET)
    }

    /// Answers such a frame, if it is one packet of the service.
    pub(super) fn refuse_long(&mut self, slot: usize, own: Mac, now: Instant) {
        let Some(room) = self.director.room() else { return };
        let is_one = Offload::read(self.batch.offload(slot)).cut == Cutting::No;
        let frame = self.batch.frame(slot);
        if is_one && (self.director.is_of_service(frame) || self.is_followed(frame)) {
            self.refuse(slot, own, room, now);
        }
    }

    /// Whether a frame has a later fragment that the program in the kernel would send to the backend of the first one.
    fn is_followed(&self, frame: &[u8]) -> bool {
        let (Some(kernel), Some(key)) = (&self.kernel, self.director.later_fragment(frame)) else {
            return false;
        };
        let held = kernel.attached.shared().look_up_fragment(&Director::fragment_key(&key));
        // Where the kernel does not show it to this user, nothing is known of it.
        held.ok().flatten().is_some_and(|held| self.director.is_followed(&held, coarse_now()))
    }

    /// Drops a packet that is too long, and tells its sender what fits.
    fn refuse(&mut self, slot: usize, own: Mac, room: u16, now: Instant) {
        self.drop_packets(1, Ending::Packet(Dropped::TooLong));
        if let Some(frame) = tunnel::refusal(self.batch.frame(slot), own, room)
            && self.tunnels.refusals.take(now)
        {
            // One that is lost comes again with the next packet.
            let _ = send_frame(self.socket.get_ref().as_fd(), &frame);
        }
    }

    /// Sends the frames that travel through tunnels, as [`Self::send`] sends others.
    pub(super) async fn send_tunnelled(&mut self, close_signal: &CloseSignal) -> io::Result<()> {
        let socket = self.socket.clone();
        let deadline = tokio::time::Instant::now() + TICK;
        while self.tunnels.frames.count() > 0 {
            match send_frames(socket.get_ref().as_fd(), self.tunnels.frames.waiting()) {
                Ok(sent) => {
                    self.tunnels.frames.skip(sent);
                    self.sending.settle(sent, Fate::Sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::select! {
                    biased;
                    ready = has_room(&socket) => if ready.is_err() { break },
                    () = close_signal.closed() => break,
                    () = tokio::time::sleep_until(deadline) => break,
                },
                Err(_) => {
                    self.tunnels.frames.skip(1);
                    self.sending.settle(1, Fate::Lost);
                }
            }
        }
        self.sending.settle(self.tunnels.frames.count(), Fate::Lost);
        self.tunnels.frames.clear();
        Ok(())
    }
}

/// Length of an Ethernet header.
const ETHERNET: usize = 14;
