//! The data path of an address as long as it is open, and the program in the kernel that it may be.

use std::cell::RefCell;
use std::rc::Rc;

use logic::dsr::path::{AtStop, Refusal, Rung};
use logic::dsr::{Director, image};
use state::data_path::{Before, DataPath, PathReport};
use state::dsr::start_confirmation::Phase;
use state::events::Level;
use state::listen::BoundKey;
use state::lock::lock;
use sys::bpf::{AttachedProgram, Counted, Hook, Look, Tallied};
use sys::interfaces::{DriverFeatures, Transmission};

use crate::worker::Worker;

/// The path of an address, as long as it is open.
pub(super) struct Path {
    attached: RefCell<Option<Rc<AttachedProgram>>>,
    report: RefCell<PathReport>,
    driver: RefCell<Option<DriverFeatures>>,
    /// Why the program of an earlier process forwards on beside this path, if it does.
    stays: Option<String>,
}

impl Path {
    pub(super) fn new(mut path: DataPath) -> Self {
        let stays = path.keep().err().map(|error| {
            format!(
                "the program of an earlier process forwards on, so that servers get packets twice: its names cannot be \
                 removed ({error}): stop penstock, then, as root, `penstock ctl dsr detach --all`"
            )
        });
        let DataPath { attached, report, driver, .. } = path;
        Self {
            attached: RefCell::new(attached.map(Rc::new)),
            report: RefCell::new(report),
            driver: RefCell::new(driver),
            stays,
        }
    }

    pub(super) fn rung(&self) -> Rung {
        self.report.borrow().rung
    }

    /// Whether packets that the program sends arrive, as the driver says it.
    pub(super) fn transmission(&self, interface: u32) -> Option<Transmission> {
        self.driver.borrow_mut().as_mut()?.transmission(interface).ok()
    }

    /// Says where packets are forwarded.
    pub(super) fn tell(&self, worker: &Worker, key: &BoundKey) {
        let report = self.report.borrow();
        let events = &worker.front.state.events;
        let subject = || format!("listener.{}.{}", key.listener, key.bind);
        events.record(Level::Info, subject(), report.line());
        if self.driver.borrow().is_some() {
            let message = "the interface is a veth: what xdp sends arrives only while the one at its other end has an XDP program, too";
            events.record(Level::Warning, subject(), message);
        }
        if let Some(stays) = &self.stays {
            events.record(Level::Warning, subject(), stays.clone());
        }
        if let Some(plan) = worker.current().listeners.get(&key.listener) {
            lock(&plan.state.paths).insert(key.bind.to_string(), report.clone());
        }
    }

    /// Ends the path: the program goes away, or stays as the configuration wants it when the process ends.
    pub(super) fn close(&self, worker: &Worker, key: &BoundKey) {
        let current = worker.current();
        let plan = current.listeners.get(&key.listener);
        if let Some(plan) = plan {
            lock(&plan.state.paths).remove(&key.bind.to_string());
        }
        let served = plan.filter(|plan| plan.settings.binds.contains(&key.bind));
        let at_stop = served.and_then(|plan| plan.settings.dsr()).map(|settings| settings.at_stop);
        let Some(attached) = self.attached.take() else { return };
        // One that waits for a confirmation, or was given up, may be what cuts operators off.
        let is_confirmed = worker.front.state.services.start_confirmation.phase() == Phase::Settled;
        if at_stop == Some(AtStop::Keep) && is_confirmed {
            return;
        }
        if let Err(error) = attached.detach() {
            let message = format!("names of the program stay in /sys/fs/bpf/penstock: {error}");
            worker.front.state.events.record(
                Level::Warning,
                format!("listener.{}.{}", key.listener, key.bind),
                message,
            );
        }
    }
}

/// Entries of the table of flows that one tick looks at: a million take half a minute.
pub(super) const LOOKED_AT: usize = 4096;

/// The program, and what is known of it.
pub(super) struct Kernel {
    pub(super) attached: Rc<AttachedProgram>,
    /// The table that it uses, and the state of backends that is in it.
    pub(super) table: u32,
    pub(super) told: Option<u32>,
    /// What it had counted the last time.
    pub(super) counted: Counted,
    pub(super) tallied: Vec<Tallied>,
    /// How far its flows were looked at, and the numbers of flows until there.
    pub(super) look: Look,
    pub(super) flows: Vec<u32>,
}

impl Kernel {
    /// Takes over the program, with the flows of an earlier process.
    pub(super) fn new(path: &Path, director: &mut Director) -> Option<Self> {
        let attached = path.attached.borrow().clone()?;
        let shared = attached.shared();
        let backends = shared.backends();
        director.adopt(&backends);
        let counted = shared.counted();
        let tallied = (0..image::BACKENDS).map(|at| shared.tallied(at)).collect();
        let table = shared.switched() as u32 & 1;
        Some(Self {
            attached,
            table,
            told: None,
            counted,
            tallied,
            look: Look::new(LOOKED_AT),
            flows: Vec::new(),
        })
    }
}

impl Path {
    /// Takes the program away: the process forwards packets from now on.
    pub(super) fn leave_program(&self, reason: &str) {
        let Some(attached) = self.attached.take() else { return };
        // Its interface is gone, or will not have it any more.
        let _ = attached.detach();
        self.driver.take();
        let rung = match attached.hook() {
            Hook::Tc | Hook::TcFilter => Rung::Tc,
            Hook::Xdp => Rung::Xdp,
            Hook::XdpGeneric => Rung::XdpGeneric,
        };
        let mut report = self.report.borrow_mut();
        report.refused.push(Refusal { rung, reason: reason.to_owned() });
        (report.rung, report.hook, report.before) = (Rung::AfPacket, None, Before::Nothing);
    }
}
