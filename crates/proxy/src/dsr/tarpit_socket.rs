//! The tarpit of a listener while it has an interface, and what it has counted.

use std::rc::Rc;

use logic::dsr::tarpit::{Counted, Rules, Tarpit};
use state::dsr::TarpitReport;
use sys::packet::{FrameBatch, Interface};

use super::sockets::Frames;

/// The packet socket of the tarpit, with what it decides and counts.
#[derive(Default)]
pub(super) struct TarpitSocket {
    /// `None` while it has no interface.
    pub(super) open: Option<Box<Open>>,
    /// What was counted before it was opened the last time.
    before: Counted,
}

pub(super) struct Open {
    pub(super) socket: Rc<Frames>,
    pub(super) batch: FrameBatch,
    pub(super) tarpit: Tarpit,
    pub(super) interface: Interface,
}

impl TarpitSocket {
    /// Where packets come in.
    pub(super) fn socket(&self) -> Option<Rc<Frames>> {
        self.open.as_ref().map(|open| open.socket.clone())
    }

    pub(super) fn report(&self) -> Option<TarpitReport> {
        let open = self.open.as_ref()?;
        let (addresses, used) = open.tarpit.addresses();
        let Counted { tarpitted, held, limited } = self.before.and(open.tarpit.counted());
        let Rules { networks, rate } = open.tarpit.rules();
        Some(TarpitReport {
            networks: networks.iter().map(ToString::to_string).collect(),
            rate: *rate,
            addresses,
            used,
            tarpitted,
            held,
            limited,
        })
    }

    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.before = self.before.and(open.tarpit.counted());
        }
    }
}
