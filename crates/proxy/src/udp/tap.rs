//! Connects a flow with a capture that an operator started: `crates/state/src/capture.rs`. There is no handshake, so the
//! flows that are there already are captured too, from their next datagram on.

use std::net::SocketAddr;

use logic::pcapng::From;
use logic::udp::FlowKey;
use state::capture::{Captures, DatagramTap};
use sys::datagram::Batch;

/// What one flow has of the captures.
#[derive(Default)]
pub(super) struct Tapping {
    /// The capture that was asked last.
    asked: u64,
    tap: Option<Box<DatagramTap>>,
}

impl Tapping {
    /// Records the datagrams of these slots. Without a capture that is one look at a flag.
    #[inline]
    pub(super) fn record(
        &mut self,
        captures: &Captures,
        whose: Whose<'_>,
        from: From,
        batch: &Batch,
        slots: std::ops::Range<usize>,
    ) {
        let Some(number) = captures.number() else { return };
        if self.asked != number {
            self.ask(number, captures, whose);
        }
        if let Some(tap) = &self.tap {
            slots.for_each(|slot| tap.record(from, batch.datagram(slot)));
        }
    }

    #[cold]
    fn ask(&mut self, number: u64, captures: &Captures, Whose { listener, key, bound }: Whose<'_>) {
        let tap = captures.tap_datagrams(listener, key.client(), ours(key, bound));
        (self.asked, self.tap) = (number, tap.map(Box::new));
    }
}

/// The flow whose datagrams are recorded.
#[derive(Clone, Copy)]
pub(super) struct Whose<'a> {
    pub(super) listener: &'a str,
    pub(super) key: &'a FlowKey,
    /// Address of the listening socket.
    pub(super) bound: SocketAddr,
}

/// Where the client sends to.
pub(super) fn ours(key: &FlowKey, bound: SocketAddr) -> SocketAddr {
    let bound = SocketAddr::new(key.local.unwrap_or(bound.ip()), bound.port());
    key.told.map_or(bound, |told| told.destination)
}
