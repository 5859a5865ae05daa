//! A service whose packets a program in the kernel forwards: tells the program what it must know, and takes over what it
//! has counted. The packet socket receives only the questions who has the address.

use std::cell::RefCell;
use std::rc::Rc;

use logic::dsr::path::{AtStop, Refusal, Rung};
use logic::dsr::{BackendId, Director, Dropped, image};
use state::data_path::{DataPath, PathReport};
use state::ending::Ending;
use state::events::Level;
use state::listen::BoundKey;
use state::lock::lock;
use sys::bpf::{Counted, Plane, Tallied, coarse_now};
use sys::packet;

use super::Server;
use crate::worker::Worker;

/// Entries of the table of flows that one tick looks at: a million take half a minute.
const LOOKED_AT: usize = 4096;

/// The path of an address, as long as it is open.
pub(crate) struct Path {
    plane: RefCell<Option<Rc<Plane>>>,
    report: RefCell<PathReport>,
}

impl Path {
    pub(super) fn new(path: DataPath) -> Self {
        let DataPath { plane, report } = path;
        Self { plane: RefCell::new(plane.map(Rc::new)), report: RefCell::new(report) }
    }

    /// Says where packets are forwarded.
    pub(super) fn tell(&self, worker: &Worker, key: &BoundKey) {
        let report = self.report.borrow();
        let events = &worker.front.state.events;
        events.record(Level::Info, format!("listener.{}.{}", key.listener, key.bind), report.line());
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
        let Some(plane) = self.plane.take() else { return };
        if at_stop == Some(AtStop::Keep) {
            return;
        }
        if let Err(error) = plane.detach() {
            let message = format!("names of the program stay in /sys/fs/bpf/penstock: {error}");
            worker.front.state.events.record(
                Level::Warning,
                format!("listener.{}.{}", key.listener, key.bind),
                message,
            );
        }
    }
}

/// The program, and what is known of it.
pub(super) struct Kernel {
    plane: Rc<Plane>,
    /// The table that it uses, and the state of backends that is in it.
    table: u32,
    drawn: Option<u32>,
    counted: Counted,
    tallied: Vec<Tallied>,
    place: Option<u32>,
    flows: Vec<u32>,
}

impl Kernel {
    /// Takes over the program, with the flows of an earlier process.
    pub(super) fn new(path: &Path, director: &mut Director) -> Option<Self> {
        let plane = path.plane.borrow().clone()?;
        let shared = plane.shared();
        let backends = shared.backends();
        director.adopt(&backends);
        let counted = shared.counted();
        let tallied = (0..image::BACKENDS).map(|at| shared.tallied(at)).collect();
        let table = shared.switched() as u32 & 1;
        Some(Self { plane, table, drawn: None, counted, tallied, place: None, flows: Vec::new() })
    }
}

impl Server {
    /// Tells the program what has changed.
    pub(super) fn draw(&mut self) {
        let (Some(kernel), Some(interface)) = (&mut self.kernel, self.interface) else { return };
        let shared = kernel.plane.shared();
        shared.set_service(&self.director.service_words(interface.mac));
        for (at, words) in self.director.backend_words().enumerate() {
            shared.set_backend(at, &words);
        }
        let revision = self.director.revision();
        if kernel.drawn != Some(revision) {
            kernel.table ^= 1;
            shared.set_table(kernel.table as usize, &self.director.table());
            shared.switch(image::switch(kernel.table));
            kernel.drawn = Some(revision);
        }
    }

    /// Takes over what the program has counted since the last time.
    pub(super) fn count_kernel(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        let shared = kernel.plane.shared();
        let (now, before) = (shared.counted(), kernel.counted);
        kernel.counted = now;
        let backends = self.director.backend_words().count();
        for (at, before) in kernel.tallied.iter_mut().take(backends).enumerate() {
            let now = shared.tallied(at);
            if now != *before {
                let (bytes, began) =
                    (now.bytes.saturating_sub(before.bytes), now.began.saturating_sub(before.began));
                self.gauges.add(BackendId::at(at), bytes, began);
                *before = now;
            }
        }
        self.gauges.flush(&self.director, self.worker.index);
        let counters = self.counters();
        counters.packets_forwarded.add(now.forwarded.saturating_sub(before.forwarded));
        counters.packets_passed.add(now.passed.saturating_sub(before.passed));
        counters.bytes_in.add(now.bytes.saturating_sub(before.bytes));
        counters.sessions.add(now.began.saturating_sub(before.began));
        let dropped = now.no_backend.saturating_sub(before.no_backend);
        if dropped > 0 {
            self.drop_packets(dropped, Ending::Packet(Dropped::NoBackend));
        }
        self.look_at_flows();
    }

    /// Looks at a part of the program's table, and publishes the numbers of flows when all of it was seen.
    fn look_at_flows(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        let now = coarse_now();
        let (director, flows) = (&self.director, &mut kernel.flows);
        let looked = kernel.plane.shared().look_at_flows(&mut kernel.place, LOOKED_AT, |known| {
            if let Some(backend) = director.owner(known, now) {
                let at = backend.number();
                flows.resize(flows.len().max(at + 1), 0);
                flows[at] += 1;
            }
        });
        match looked {
            Ok(false) => {}
            Ok(true) => {
                self.director.set_flows(flows);
                flows.clear();
            }
            // A kernel that does not show it to this user: backends are kept as if they had flows.
            Err(_) => (kernel.place, kernel.flows) = (None, Vec::new()),
        }
    }

    /// Forwards packets in this process from now on, if the program's interface is gone: another one with its name is another
    /// one, and a program can be attached only at a start.
    pub(super) fn leave_kernel(&mut self, name: &str) {
        let gone = self.kernel.as_ref().is_some_and(|it| packet::index_of(name) != Some(it.plane.index()));
        let Some(kernel) = self.kernel.take_if(|_| gone) else { return };
        let rung = rung(&kernel.plane);
        drop(kernel);
        self.path.close_plane();
        self.director.decide_here();
        self.interface = None;
        let mut report = self.path.report.borrow_mut();
        let reason =
            "its interface was removed or is another one now; a restart of penstock attaches it again";
        report.refused.push(Refusal { rung, reason: reason.to_owned() });
        report.rung = Rung::AfPacket;
        drop(report);
        self.path.tell(&self.worker, &self.key);
    }
}

impl Path {
    /// Takes the program away.
    fn close_plane(&self) {
        if let Some(plane) = self.plane.take() {
            // Its interface is gone, or will not have it any more.
            let _ = plane.detach();
        }
    }
}

fn rung(plane: &Plane) -> Rung {
    match plane.hook() {
        sys::bpf::Hook::Tc => Rung::Tc,
        sys::bpf::Hook::Xdp => Rung::Xdp,
        sys::bpf::Hook::XdpGeneric => Rung::XdpGeneric,
    }
}
