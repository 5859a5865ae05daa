//! A service whose packets a program in the kernel forwards: tells the program what it must know, and takes over what it
//! has counted. The packet socket receives only the questions who has the address.

use logic::dsr::owner::Ownership;
use logic::dsr::{BackendId, Dropped, image};
use state::ending::Ending;
use sys::bpf::{Look, coarse_now};
use sys::interfaces::Transmission;
use sys::packet;

use super::backends::Tally;
use super::path::LOOKED_AT;
use super::{Round, Server};

impl Server {
    /// Tells the program what has changed.
    pub(super) fn tell_program(&mut self) {
        let (Some(kernel), Some(interface)) = (&mut self.kernel, self.interface) else { return };
        let shared = kernel.attached.shared();
        let mut words = self.director.service_words(interface.mac);
        // Another machine has the address: the program is not to answer for it after the process has ended.
        let answers = match self.holding.yields_to() {
            Some(_) => Ownership::Standby,
            None => self.ownership.unwrap_or(Ownership::Standby),
        };
        image::set_answers(&mut words, answers, coarse_now());
        shared.set_service(&words);
        for (at, words) in self.director.backend_words().enumerate() {
            shared.set_backend(at, &words);
        }
        if self.director.service().port == 0 {
            shared.set_taken(&self.director.taken_words());
        }
        let revision = self.director.revision();
        if kernel.told != Some(revision) {
            kernel.table ^= 1;
            shared.set_table(kernel.table as usize, &self.director.table());
            let left_out = self.director.quic_id().map(|_| {
                let ids = self.director.id_table();
                shared.set_ids(kernel.table as usize, &ids.words);
                ids.left_out
            });
            shared.switch(image::switch(kernel.table));
            kernel.told = Some(revision);
            self.tell_of_ids(&left_out.unwrap_or_default());
        }
    }

    /// Says of which backends the program cannot know the numbers in connection ids of QUIC.
    fn tell_of_ids(&self, left_out: &[BackendId]) {
        let subject = format!("{}.quic-id", self.subject());
        let state = &self.worker.front.state;
        let Some(first) = left_out.first() else { return state.restore(&subject) };
        let message = format!(
            "the table of the program has no place for the quic-id of {} of the backends ({} is the first): their connections are lost when the \
             address of a client changes; give them other numbers, or use data-path = \"af_packet\"",
            left_out.len(),
            self.director.name(*first).unwrap_or_default()
        );
        state.degrade(&subject, &message);
    }

    /// Takes over what the program has counted since the last time.
    pub(super) fn count_kernel(&mut self, round: Round) {
        let Some(kernel) = &mut self.kernel else { return };
        let shared = kernel.attached.shared();
        let (now, before) = (shared.counted(), kernel.counted);
        kernel.counted = now;
        let backends = self.director.backend_words().count();
        for (at, before) in kernel.tallied.iter_mut().take(backends).enumerate() {
            let now = shared.tallied(at);
            if now != *before {
                self.gauges.add(Tally {
                    backend: BackendId::at(at),
                    packets: now.packets.saturating_sub(before.packets),
                    bytes: now.bytes.saturating_sub(before.bytes),
                    began: now.began.saturating_sub(before.began),
                });
                *before = now;
            }
        }
        self.gauges.flush(&self.director, self.worker.index);
        let forwarded = now.forwarded.saturating_sub(before.forwarded);
        let passed = now.passed.saturating_sub(before.passed);
        let bytes = now.bytes.saturating_sub(before.bytes);
        self.totals.packets += forwarded;
        self.totals.bytes += bytes;
        self.totals.passed += passed;
        let counters = self.counters();
        counters.packets_forwarded.add(forwarded);
        counters.packets_passed.add(passed);
        counters.bytes_in.add(bytes);
        counters.sessions.add(now.began.saturating_sub(before.began));
        for (now, before, why) in [
            (now.no_backend, before.no_backend, Dropped::NoBackend),
            (now.not_segmented, before.not_segmented, Dropped::NotSegmented),
        ] {
            let dropped = now.saturating_sub(before);
            if dropped > 0 {
                self.drop_packets(dropped, Ending::Packet(why));
            }
        }
        self.look_at_flows(round);
    }

    /// Looks at a part of the program's table, and publishes the numbers of flows when all of it was seen. Then it rests: each
    /// look delays the packets of other services of this worker by a millisecond.
    fn look_at_flows(&mut self, round: Round) {
        let Some(kernel) = &mut self.kernel else { return };
        if kernel.look.is_at_start() && round == Round::Usual {
            return;
        }
        let now = coarse_now();
        let (director, flows) = (&self.director, &mut kernel.flows);
        let looked = kernel.attached.shared().look_at_flows(&mut kernel.look, |known| {
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
            Err(_) => (kernel.look, kernel.flows) = (Look::new(LOOKED_AT), Vec::new()),
        }
    }

    /// Says when packets that the program sends get lost in the driver: it counts them as forwarded.
    pub(super) fn look_at_driver(&self) {
        let Some(kernel) = &self.kernel else { return };
        let Some(transmission) = self.path.transmission(kernel.attached.index()) else { return };
        let subject = format!("{}.driver", self.subject());
        let state = &self.worker.front.state;
        if transmission == Transmission::Possible {
            return state.restore(&subject);
        }
        let name = self.settings().map_or("", |it| &*it.interface);
        let message = format!(
            "every packet is lost: {name} is a veth, and takes what xdp sends only while the interface at its other end has an XDP program, too: \
             attach one there, which may pass all, or use data-path = \"auto\" and restart"
        );
        state.degrade(&subject, &message);
    }

    /// Forwards packets in this process from now on, if the program's interface is gone: another one with its name is another
    /// one, and a program can be attached only at a start.
    pub(super) fn leave_kernel(&mut self, name: &str) {
        let gone = self.kernel.as_ref().is_some_and(|it| packet::index_of(name) != Some(it.attached.index()));
        let Some(kernel) = self.kernel.take_if(|_| gone) else { return };
        drop(kernel);
        self.worker.front.state.restore(&format!("{}.driver", self.subject()));
        let reason =
            "its interface was removed or is another one now; a restart of penstock attaches it again";
        self.path.leave_program(reason);
        self.director.decide_here();
        self.interface = None;
        self.path.tell(&self.worker, &self.key);
    }
}
