//! Traces of the packets of a service (`crates/state/src/dsr/trace.rs`). Packets that this process forwards are told as
//! they are decided. Those that a program in the kernel forwards come to a further packet socket, which is open only as
//! long as there is a trace: it has them before `tc`, and what that decides is known by its table of flows. A program of
//! XDP is before all sockets: what it forwards or drops is not seen here. The same socket has packets that are not for the
//! service, if an operator asks for them.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Instant;

use logic::dsr::trace::{Memory, Told, Traced};
use logic::dsr::tunnel::Offload;
use logic::dsr::{Mac, Service, Transports};
use state::events::Level;
use state::listen::filter;
use sys::bpf::coarse_now;
use sys::packet::{FrameBatch, PacketSocket};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use super::Server;
use super::tracer::{Reach, Tap};

impl Server {
    /// Takes the list of traces that want packets of this service, after one has begun or ended.
    pub(super) fn follow_traces(&mut self) {
        let traces = self.worker.front.state.services.traces();
        self.tracer.traces = traces.of(&self.key.listener, &self.key.bind.to_string());
        if let Err(error) = self.follow_tap() {
            let message = format!("packets of a trace cannot be received: {error}");
            self.worker.front.state.events.record(Level::Warning, self.subject(), message);
        }
        self.publish();
    }

    /// Opens the socket of the trace of a program in the kernel, and closes it at the end.
    pub(super) fn follow_tap(&mut self) -> Result<(), String> {
        let reach = self.tracer.reach();
        let is_needed = self.kernel.is_some() && self.tracer.is_on() || reach == Reach::Address;
        let wanted = self.interface.filter(|_| is_needed);
        let Some(interface) = wanted else {
            self.tracer.tap = None;
            return Ok(());
        };
        if let Some(tap) = &self.tracer.tap
            && (tap.interface, tap.reach, tap.service) == (interface.index, reach, self.director.service())
        {
            if let Ok(lost @ 1..) = tap.socket.get_ref().lost() {
                self.tracer.traces.iter().for_each(|trace| trace.miss(lost.into()));
            }
            return Ok(());
        }
        self.tracer.tap = None;
        let socket = PacketSocket::new().map_err(|error| error.to_string())?;
        let name = self.settings().map_or("", |it| &*it.interface);
        let service = self.director.service();
        let seen = match reach {
            Reach::Service => service,
            Reach::Address => Service { port: 0, transports: Transports::TcpAndUdp, ..service },
        };
        let bound = socket.bind(name, &filter(&seen)).map_err(|error| error.to_string())?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; `PacketSocket` keeps the one descriptor it owns"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE).map_err(|error| error.to_string())?;
        self.tracer.tap = Some(Tap {
            socket: Rc::new(socket),
            batch: FrameBatch::default(),
            interface: bound.index,
            reach,
            service: self.director.service(),
        });
        Ok(())
    }

    /// Records a frame of the batch that is about to be decided about.
    pub(super) fn trace(&mut self, slot: usize, own: Mac, now: Instant) {
        let offload = Offload::read(self.batch.offload(slot));
        let told = self.director.tell(self.batch.frame(slot), own, Memory::Here(now), &offload);
        if told.verdict == Traced::Passed && self.tracer.tap.is_some() {
            // The socket of the trace receives this frame as well, and records it.
            return;
        }
        let told = self.told_here(told);
        let (interface, place) = self.place();
        self.tracer.record(&interface, self.batch.frame(slot), &told, &place);
    }

    /// Records frames that a program in the kernel has decided about.
    pub(super) fn take_traced(&mut self, guard: io::Result<AsyncFdReadyGuard<'_, PacketSocket>>) {
        // An error is about the interface: the next tick sees it.
        let Ok(mut guard) = guard else { return self.tracer.tap = None };
        let Some(mut tap) = self.tracer.tap.take() else { return };
        let received = guard.try_io(|socket| tap.batch.receive(socket.get_ref().as_fd()));
        let count = match received {
            Ok(Ok(count)) => count,
            // As in `Server::run`: one frame was dropped, or the interface is gone.
            Ok(Err(error)) if error.kind() == io::ErrorKind::NetworkDown => return,
            Ok(Err(_)) | Err(_) => 0,
        };
        let (interface, place) = self.place();
        for slot in 0..count {
            let frame = tap.batch.frame(slot);
            if !frame.is_empty() {
                let offload = Offload::read(tap.batch.offload(slot));
                let told = self.tell_of_kernel(frame, &offload);
                if self.kernel.is_none() && told.verdict != Traced::Passed {
                    // The socket of the service receives this frame as well, and has recorded it.
                    continue;
                }
                self.tracer.record(&interface, frame, &told, &place);
            }
        }
        self.tracer.tap = Some(tap);
    }

    /// What is told on this machine, which may be no owner of the address.
    fn told_here(&self, told: Told) -> Told {
        if self.is_owner() && self.holding.yields_to().is_none() { told } else { told.on_standby() }
    }

    fn tell_of_kernel(&mut self, frame: &[u8], offload: &Offload) -> Told {
        let own = self.interface.map_or([0; 6], |it| it.mac);
        let entry = self.kernel.as_ref().and_then(|kernel| {
            let flow = self.director.flow_of(frame)?;
            // A kernel that does not show it to this user: the flow is told as a new one.
            kernel.attached.shared().look_up_flow(&self.director.flow_key(&flow)).ok().flatten()
        });
        let entry = entry.as_ref().map(|entry| &entry[..]);
        let told = self.director.tell(frame, own, Memory::Kernel { entry, now: coarse_now() }, offload);
        self.told_here(told)
    }

    /// The interface, and which service this is.
    pub(super) fn place(&self) -> (Box<str>, String) {
        let settings = self.settings();
        let transports = settings.map_or("", |it| it.transports.as_str());
        let place =
            format!("[listener.{} {} {transports}, {}]", self.key.listener, self.key.bind, self.path.rung());
        (settings.map_or_else(Box::default, |it| it.interface.clone()), place)
    }
}
