//! The traces of a service, and the socket of packets that a program in the kernel decides about.

use std::rc::Rc;
use std::sync::Arc;

use logic::dsr::Service;
use logic::dsr::trace::Told;
use state::dsr::trace::{Trace, Traces};
use sys::packet::FrameBatch;
use tokio::sync::watch;

use super::sockets::Frames;

pub(super) struct Tracer {
    /// Changes when a trace begins or ends.
    pub(super) changes: watch::Receiver<Vec<Arc<Trace>>>,
    /// Those that want packets of this service.
    pub(super) traces: Vec<Arc<Trace>>,
    pub(super) tap: Option<Tap>,
}

/// Packets that the socket of the service does not have: a program in the kernel decides about them, or they are for
/// something else.
pub(super) struct Tap {
    pub(super) socket: Rc<Frames>,
    pub(super) batch: FrameBatch,
    /// Index of the interface, and the service whose packets the socket receives.
    pub(super) interface: u32,
    pub(super) service: Service,
    pub(super) reach: Reach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Packets of the service, as its own socket has them.
    Service,
    /// All that comes to the address.
    Address,
}

impl Tracer {
    pub(super) fn new(traces: &Traces) -> Self {
        let mut changes = traces.follow();
        // There may be one already.
        changes.mark_changed();
        Self { changes, traces: Vec::new(), tap: None }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.traces.is_empty()
    }

    pub(super) fn reach(&self) -> Reach {
        let wants_passed = self.traces.iter().any(|trace| trace.wants_passed());
        if wants_passed { Reach::Address } else { Reach::Service }
    }

    pub(super) fn count(&self) -> usize {
        self.traces.len()
    }

    /// Where packets come in.
    pub(super) fn socket(&self) -> Option<Rc<Frames>> {
        self.tap.as_ref().map(|tap| tap.socket.clone())
    }

    pub(super) fn record(&self, interface: &str, frame: &[u8], told: &Told, place: &str) {
        let comment = format!("{} {place}", told.sentence);
        self.traces.iter().for_each(|trace| trace.record(interface, frame, told, &comment));
    }
}
