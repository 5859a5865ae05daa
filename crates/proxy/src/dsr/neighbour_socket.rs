//! The socket for questions to machines that had a backend until now, which is open while there are any, and what is decided
//! with the answers. `crates/logic/src/dsr/neighbour.rs` decides.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use logic::dsr::Mac;
use logic::dsr::filter;
use logic::dsr::neighbour::{Changes, Step};
use state::listen::instructions;
use sys::packet::{Interface, PacketSocket, receive_frame, send_frame};

/// Room for an answer: as much of it as is read.
const ROOM: usize = 256;

/// Frames that are read in a tick. Further ones wait, or are lost.
const AT_ONCE: usize = 1024;

/// Changes of Ethernet addresses, and the machines that are asked about them.
#[derive(Default)]
pub(super) struct Claims {
    pub(super) changes: Changes,
    socket: Option<PacketSocket>,
    /// Machines whose answers the socket receives.
    heard: Vec<Mac>,
    /// Backends of which operators are told.
    pub(super) told: HashSet<Box<str>>,
}

impl Claims {
    /// Decides about an Ethernet address that the kernel has found, and asks the machine that had the backend until now.
    pub(super) fn see(
        &mut self,
        at: (&str, IpAddr),
        used: Option<Mac>,
        found: Mac,
        (name, interface): (&str, Interface),
        now: Instant,
    ) -> Step {
        match self.changes.see(at, used, (found, interface.mac), now) {
            Step::Ask(question) => {
                let holders = self.changes.holders();
                if self.socket.is_none() {
                    // Without one the questions have no answer, and the change is taken.
                    self.socket = PacketSocket::new().ok();
                    self.heard.clear();
                }
                // What a machine claims a thousand times a second must not keep an answer out.
                if let Some(socket) = &self.socket
                    && self.heard != holders
                {
                    match socket.bind(name, &instructions(filter::claims(&holders))) {
                        Ok(_) => self.heard = holders,
                        Err(_) => self.socket = None,
                    }
                }
                if let Some(socket) = &self.socket {
                    let _ = send_frame(socket.as_fd(), &question);
                }
                Step::Keep
            }
            step => step,
        }
    }

    /// Takes the answers that have come.
    pub(super) fn receive(&mut self, now: Instant) {
        self.changes.expire(now);
        if !self.changes.is_asking() {
            self.socket = None;
        }
        let Some(socket) = &self.socket else { return };
        let mut room = [0; ROOM];
        for _ in 0..AT_ONCE {
            match receive_frame(socket.as_fd(), &mut room) {
                Ok(length) => self.changes.take(&room[..length]),
                Err(_) => break,
            }
        }
    }
}
